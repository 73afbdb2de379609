"""The Kafka listener: accepts connections, knows which APIs are served, and looks after all connections once a second."""

import asyncio
import logging
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock import limits
from penstock.core.broker import Broker
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.fetch_session import FetchSessions
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.gateways.kafka.produce_lane import SWEEP_MS
from penstock.gateways.kafka.receive import BufferPool
from penstock.meters import Histogram
from penstock.ports import EndOfTurn
from penstock.types import Gateway
from penstock.wire.kafka.api_versions_generated import ApiVersionsResponseApiKey
from penstock.wire.kafka.apis import API, Api, ApiKey, DecodeTable, EncodeTable

logger = logging.getLogger("penstock.kafka")

_BACKLOG: Final = 1024
_QUICK_SHARE: Final = 0.1
"""Of the grace of a stop: so long requests have that wait for the disk alone."""


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """The bounds of this gateway."""

    request_bytes_max: int = limits.REQUEST_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    connection_idle_ms_max: int = limits.CONNECTION_IDLE_MS_MAX
    pending_requests_max: int = limits.CONNECTION_PENDING_REQUESTS_MAX
    pending_output_bytes_max: int = limits.CONNECTION_PENDING_OUTPUT_BYTES_MAX
    fetch_bytes_max: int = limits.FETCH_BYTES_MAX
    fetch_sessions_max: int = limits.FETCH_SESSIONS_MAX


class Served:
    """One API as this gateway serves it. The codec is imported when a client first uses the API."""

    __slots__ = ("_api", "handle", "latency", "max_version", "min_version", "name")

    def __init__(self, api: Api, handle: Callable[[Any, Any], Any], latency: Histogram) -> None:
        self._api = api
        self.latency = latency
        self.name = api.name
        self.min_version = api.min_version
        self.max_version = api.max_version
        self.handle = handle

    @property
    def decode(self) -> DecodeTable:
        """By version."""
        return self._api.decode_request_table

    @property
    def encode(self) -> EncodeTable:
        """By version."""
        return self._api.encode_response_table

    def header_version(self, version: int) -> int:
        """Of the response."""
        return self._api.response_header_version(version)


class KafkaGateway:
    """All Kafka connections of this node."""

    def __init__(self, broker: Broker, turn: EndOfTurn, bounds: KafkaLimits) -> None:
        self.broker: Final = broker
        self.turn: Final = turn
        self.bounds: Final = bounds
        self.loop: Final = asyncio.get_running_loop()
        self.buffers: Final = BufferPool()
        self.fetch_sessions: Final = FetchSessions(broker.entropy, bounds.fetch_sessions_max)
        meters = broker.meters
        self.served: Final = {
            int(key): Served(API[key], handle, meters.latency(Gateway.KAFKA, API[key].name))
            for key, handle in HANDLERS.items()
        }
        self.produce_latency: Final = self.served[ApiKey.PRODUCE].latency
        self.fetch_latency: Final = self.served[ApiKey.FETCH].latency
        meters.connections[Gateway.KAFKA.value] = lambda: len(self._connections)
        self.advertised: Final = [
            ApiVersionsResponseApiKey(api_key=key, min_version=served.min_version, max_version=served.max_version)
            for key, served in sorted(self.served.items())
        ]
        self.swept_ms = broker.clock.monotonic_ms()
        """When the connections were last looked after, at most ``SWEEP_MS`` ago: a clock for deadlines, for free."""
        self.unhurried: Final[dict[Callable[[], None], None]] = {}
        """What makes each request answer now that waits for something to happen: called when the gateway stops."""
        self._connections: set[KafkaConnection] = set()
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event = asyncio.Event()

    async def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is the gateway's from here on."""
        self._server = await self.loop.create_server(lambda: KafkaConnection(self), sock=listener, backlog=_BACKLOG)
        self._sweep = self.loop.call_later(SWEEP_MS / 1000, self._look_after)

    async def stop(self, grace_seconds: float) -> None:
        """Accept nobody new, answer what is under way, then close everything."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.close()
        for answer_now in list(self.unhurried):
            answer_now()
        if not await self._drain(grace_seconds * _QUICK_SHARE):
            # What is left waits for other members of its group, who will not come.
            self.broker.groups.close()
            if not await self._drain(grace_seconds * (1 - _QUICK_SHARE)):
                for connection in list(self._connections):
                    connection.abort()

    async def _drain(self, seconds: float) -> bool:
        """Whether all connections are gone in time."""
        if self._connections:
            try:
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
            except TimeoutError:
                return False
        return True

    def admit(self, connection: KafkaConnection) -> bool:
        """Whether there is room for one more."""
        if self._stopping:
            return False
        if len(self._connections) >= self.bounds.connections_max:
            self.broker.meters.connections_refused.add((Gateway.KAFKA.value,))
            logger.warning(
                "refusing %s: %d connections are open (limits.connections_max)",
                connection.client_host,
                len(self._connections),
            )
            return False
        self._connections.add(connection)
        self._drained.clear()
        return True

    def forget(self, connection: KafkaConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._drained.set()

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def _look_after(self) -> None:
        now_ms = self.swept_ms = self.broker.clock.monotonic_ms()
        for connection in list(self._connections):
            connection.look_after(now_ms)
        self._sweep = self.loop.call_later(SWEEP_MS / 1000, self._look_after)

    def count_error(self, reason: str) -> None:
        """A request was refused."""
        self.broker.meters.request_errors.add((Gateway.KAFKA.value, reason.lower()))

    def say_closing(self, connection: KafkaConnection, why: str) -> None:
        """The broker closes a connection, and an operator may want to know why."""
        logger.warning("closing %s: %s", connection.client_host, why)

    def report_bug(self, connection: KafkaConnection, error: BaseException) -> None:
        """A mistake of ours: the whole trace goes to the log."""
        logger.error("request of %s failed: %s", connection.client_host, "".join(traceback.format_exception(error)))
