"""The HTTP listener: Starlette on uvicorn in the broker's event loop, with a fast lane for the hot calls."""

import asyncio
import functools
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.routing import Route

from penstock import limits
from penstock.core.broker import Broker
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.security.identity import Identity
from penstock.gateways.connections import SWEEP_MS
from penstock.gateways.http.server.answers import encoder
from penstock.gateways.http.server.app import build_app
from penstock.gateways.http.server.browsers import BrowserGuard, KnownHosts
from penstock.gateways.http.server.connection import HttpConnection
from penstock.gateways.http.server.errors import Refusal
from penstock.gateways.http.server.lane import LaneTable
from penstock.gateways.http.server.logins import Logins
from penstock.gateways.http.server.openapi import document
from penstock.ports import EndOfTurn
from penstock.settings import HttpSettings
from penstock.transport.listener import Accepting, Arrival, Door, Listener
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.observe.metrics import MetricsText

_USE_HTTPS_TEXT: Final = b"This port speaks TLS: use https://\n"
USE_HTTPS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_USE_HTTPS_TEXT), _USE_HTTPS_TEXT)
)
"""The answer to a client that does not use TLS where it must."""
_STOP_GRACE_SECONDS: Final = 1.0
_STOP_POLL_SECONDS: Final = 0.01
_HELD_BYTES_FREE: Final = 64 * limits.KIB
"""An incomplete body or line of this size is always allowed, however many clients there are."""
_REFUSED_AT_ONCE_MAX: Final = 100
"""Connections over the limit that are kept open to send them a refusal; further ones are closed at once."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The bounds of this gateway that are not configurable."""

    head_bytes_max: int = 32 * limits.KIB
    """The request line and all headers of a request."""
    lane_body_bytes_max: int = 256 * limits.KIB
    """A larger body goes through ASGI, which counts the bytes as they arrive."""
    held_bytes_max: int = 256 * limits.MIB
    """Incomplete bodies and lines of all connections together; above it, large ones are refused."""
    unsent_bytes_max: int = 256 * limits.MIB
    """Answers that clients have not read, of all connections together; above it, large ones are refused."""
    keep_alive_ms: int = 75_000
    """An idle connection is closed after this time."""
    request_idle_ms_max: int = 30_000
    """A connection whose request stops arriving, or whose answer is not read, is closed after this time."""
    stream_idle_ms_max: int = limits.CONNECTION_IDLE_MS_MAX
    """The same for a request that is a stream."""
    pipelined_max: int = 1024
    """Unanswered requests of a connection; above it, reading pauses."""
    output_bytes_max: int = 1 * limits.MIB
    """Unread answers of a connection; above it, nothing more is produced for it."""
    line_bytes_max: int = 4 * limits.MIB
    """A line of an NDJSON body."""
    batch_records_max: int = 100_000
    """Records of a batch."""
    stranger_ms_max: int = 10_000
    """A client that must authenticate has this time for each request until one is authenticated."""
    streams_max: int = 1000
    """Streams (tails, consumers, redrives) that are open at the same time."""
    fast_lane: bool = True


class _Server(uvicorn.Server):
    """uvicorn without its own listener and signal handlers, since the broker has some, and with a bound on the time of a stop."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's
        """Connections come from the broker's listener."""
        await self.lifespan.startup()
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's
        """Answer what is under way, then abort what is left."""
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        if await _is_met(lambda: not state.connections and not state.tasks):
            return
        for connection in list(state.connections):
            connection.transport.abort()
        if not await _is_met(lambda: not state.tasks):
            for task in state.tasks:
                task.cancel("the gateway stops")


async def _is_met(condition: Callable[[], bool]) -> bool:
    """Whether the condition is true in time."""
    for _ in range(round(_STOP_GRACE_SECONDS / _STOP_POLL_SECONDS)):
        if condition():
            return True
        await asyncio.sleep(_STOP_POLL_SECONDS)
    return condition()


class HttpGateway:
    """The HTTP gateway of a node. Handlers reach the broker through it."""

    def __init__(
        self,
        broker: Broker,
        turn: EndOfTurn,
        settings: HttpSettings,
        is_ready: Callable[[], bool],
        problem: Callable[[], str | None] = lambda: None,
        bounds: HttpBounds | None = None,
    ) -> None:
        """``problem`` tells why the metadata store of a cluster cannot be reached, if it cannot."""
        self.broker: Final = broker
        self.turn: Final = turn
        self.settings: Final = settings
        self.bounds: Final = bounds or HttpBounds()
        self.is_ready: Final = is_ready
        self.problem: Final = problem
        self.loop: Final = asyncio.get_running_loop()
        self.routes: list[Route] = []
        """Set when the application is built."""
        self.streams: Final[dict[Callable[[], None], Identity]] = {}
        """What ends each open stream, and whose it is: called when the gateway stops, or the identity is no longer current."""
        self.logins: Final = Logins(broker.authenticator, broker.clock, broker.entropy.secret(32))
        self.logins.on_changed.append(self._end_streams)
        self.guard = BrowserGuard(KnownHosts())
        self.lane: Final = LaneTable(self)
        self.held_bytes = 0
        """Of incomplete bodies and lines."""
        self._request_prefix = broker.entropy.uuid().hex[:12].encode()
        self._request_count = 0
        self._config = uvicorn.Config(
            build_app(self),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=HttpConnection,
            # A client must not choose the address that is logged and limited.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=self.bounds.keep_alive_ms // 1000,
        )
        self._server = _Server(self._config)
        self._serving: asyncio.Task[None] | None = None
        self._door: Accepting | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._default_headers: object = None
        self._rendered_headers = b""
        broker.meters.connections[Gateway.HTTP.value] = lambda: self.connection_count

    async def start(self, listener: Listener) -> None:
        """Serve a listener. INVALID_CONFIG if the settings cannot be read."""
        self.guard = BrowserGuard(KnownHosts.of(self.broker.settings, listener.address.host))
        self._config.load()
        self._serving = asyncio.create_task(self._server.serve(), name="http")
        self._door = await listener.serve(Door(self._connect, lambda _: USE_HTTPS))
        self._sweep = self.loop.call_later(SWEEP_MS / 1000, self._sweep_again)

    def _connect(self, arrival: Arrival) -> HttpConnection:
        return HttpConnection(self, arrival, self._config, self._server.server_state, {})

    async def stop(self) -> None:
        """Answer what is under way, then close everything."""
        if self._door is not None:
            self._door.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for end in list(self.streams):
            end()
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._server.server_state.connections)

    def has_room(self) -> bool | None:
        """Whether a new connection may be served. If not, it is sent a refusal, or, if far too many are open, closed at once (None)."""
        most, count = self.settings.connections_max, self.connection_count
        if count <= most:
            return True
        self.broker.meters.connections_refused.add((Gateway.HTTP.value,))
        return False if count <= most + _REFUSED_AT_ONCE_MAX else None

    def hold(self, before_bytes: int, now_bytes: int) -> bool:
        """Count ``now_bytes`` of an incomplete body or line, instead of ``before_bytes``. Returns whether that many may be kept."""
        self.held_bytes += now_bytes - before_bytes
        return now_bytes <= _HELD_BYTES_FREE or self.held_bytes <= self.bounds.held_bytes_max

    @property
    def unsent_bytes(self) -> int:
        """Of answers that clients have not read."""
        return sum(connection.transport.get_write_buffer_size() for connection in self._server.server_state.connections)

    def begin_stream(self, end: Callable[[], None], identity: Identity) -> None:
        """Register an endless stream; ``end`` is called when the gateway stops, or the identity is no longer current. 503 if there are
        too many.
        """
        if len(self.streams) >= self.bounds.streams_max:
            raise Refusal(503, f"There are {self.bounds.streams_max} open streams. Close some, or try again later.")
        self.streams[end] = identity

    def end_stream(self, end: Callable[[], None]) -> None:
        """Remove a stream, if it is registered."""
        self.streams.pop(end, None)

    def _end_streams(self) -> None:
        """End those whose user, password or key is gone, or whose token has expired."""
        for end, identity in list(self.streams.items()):
            if not self.logins.is_current(identity):
                end()

    @functools.cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document."""
        return encoder.encode(document(self.routes, secured=self.logins.is_required))

    @functools.cached_property
    def metrics(self) -> "MetricsText":
        """The numbers of this node; their library is not loaded before they are needed."""
        from penstock.observe.metrics import MetricsText

        return MetricsText(self.broker, self.problem)

    def default_headers(self) -> bytes:
        """The headers that uvicorn puts first in every answer: the date, which changes once a second."""
        now = self._server.server_state.default_headers
        if now is not self._default_headers:
            self._default_headers = now
            self._rendered_headers = b"".join(b"%s: %s\r\n" % header for header in now)
        return self._rendered_headers

    def look_after(self) -> None:
        """Close idle connections, answer requests that take too long, and end streams whose token has expired."""
        self._end_streams()
        now_ms = self.broker.clock.monotonic_ms()
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.look_after(now_ms)

    def _sweep_again(self) -> None:
        self.look_after()
        self._sweep = self.loop.call_later(SWEEP_MS / 1000, self._sweep_again)

    def caller(self, host: str, listener: str) -> Caller:
        """A client on this host, at this listener."""
        return Caller(ANONYMOUS, Gateway.HTTP, host, listener=listener)

    def new_request_id(self) -> bytes:
        """A unique id for a request."""
        self._request_count += 1
        return b"%s-%x" % (self._request_prefix, self._request_count)
