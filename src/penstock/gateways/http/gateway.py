"""The HTTP listener: Starlette on uvicorn, in the broker's event loop, with a fast lane before it for the hot calls."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.requests import Request
from starlette.routing import Route

from penstock import limits
from penstock.core.access import ANONYMOUS, Caller
from penstock.core.broker import Broker
from penstock.gateways.http.app import build_app
from penstock.ports import EndOfTurn
from penstock.types import Acks, Gateway

_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The bounds of this gateway."""

    body_bytes_max: int = 32 * limits.MIB
    """Of one request that is not streamed."""
    head_bytes_max: int = 32 * limits.KIB
    """The request line and all headers of one request."""
    lane_body_bytes_max: int = 4 * limits.MIB
    """A larger body goes through ASGI."""
    connections_max: int = limits.CONNECTIONS_MAX
    keep_alive_ms: int = 75_000
    """A connection without a request is closed after this."""
    request_idle_ms_max: int = 30_000
    """A request whose bytes stop coming, or an answer that nobody takes, ends its connection after this."""
    pipelined_max: int = 1024
    """Requests of one connection that are not answered; reading pauses above it."""
    output_bytes_max: int = 1 * limits.MIB
    """What a slow reader has not taken before nothing more is made for it."""
    line_bytes_max: int = 4 * limits.MIB
    """One line of an NDJSON body."""
    batch_records_max: int = 100_000
    """Records of one batch."""
    streams_max: int = 1000
    """Streams (tails, consumers, NDJSON) at the same time."""
    fast_lane: bool = True


@dataclass(frozen=True, slots=True)
class HttpDefaults:
    """What a request means that does not say."""

    partitions: int = 4
    replication_factor: int = 1
    retention_seconds: int = 604_800
    retention_bytes: int = 1_073_741_824
    acks: Acks = Acks.LEADER
    max_poll_records: int = 500
    session_timeout_ms: int = 30_000
    request_timeout_ms: int = 30_000


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the broker has some already."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signals alone."""
        yield


class HttpGateway:
    """Serves while the broker runs. Handlers find the broker and everything about this gateway here."""

    def __init__(
        self,
        broker: Broker,
        turn: EndOfTurn,
        bounds: HttpBounds,
        is_ready: Callable[[], bool],
        defaults: HttpDefaults | None = None,
    ) -> None:
        self.broker: Final = broker
        self.turn: Final = turn
        self.bounds: Final = bounds
        self.defaults: Final = defaults or HttpDefaults()
        self.is_ready: Final = is_ready
        self.loop: Final = asyncio.get_running_loop()
        self.routes: list[Route] = []
        """All of them, once the application is built."""
        self.on_stop: Final[dict[Callable[[], None], None]] = {}
        """What ends each stream that would go on for ever: called when the gateway stops."""
        self._request_prefix = broker.entropy.uuid().hex[:12].encode()
        self._request_count = 0
        config = uvicorn.Config(
            build_app(self),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http="httptools",
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=bounds.keep_alive_ms // 1000,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is the gateway's from here on."""
        # From this moment: whoever connects before uvicorn has started waits in the backlog.
        listener.listen(_BACKLOG)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http")

    async def stop(self) -> None:
        """Finish what is under way and close."""
        for end in list(self.on_stop):
            end()
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def caller(self, request: Request) -> Caller:
        """Who asks."""
        return self.caller_at(request.client.host if request.client else "")

    def caller_at(self, host: str) -> Caller:
        """Who asks from this host."""
        return Caller(ANONYMOUS, Gateway.HTTP, host)

    def new_request_id(self) -> bytes:
        """An id that no other request of this broker has."""
        self._request_count += 1
        return b"%s-%x" % (self._request_prefix, self._request_count)
