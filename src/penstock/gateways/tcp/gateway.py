"""The listener for JSON lines: accepts connections and looks after all of them once a second."""

import asyncio
import logging
import socket
import traceback
from dataclasses import dataclass
from typing import Final

from penstock import limits
from penstock.core.broker import Broker
from penstock.gateways.tcp.connection import TcpConnection
from penstock.gateways.tcp.requests import FIELDS
from penstock.ports import EndOfTurn
from penstock.types import Gateway

logger = logging.getLogger("penstock.tcp")

_BACKLOG: Final = 1024
_SWEEP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TcpBounds:
    """The bounds of this gateway."""

    line_bytes_max: int = limits.TCP_LINE_BYTES_MAX
    kept_bytes_max: int = limits.TCP_KEPT_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    idle_ms_max: int = limits.CONNECTION_IDLE_MS_MAX
    pending_lines_max: int = limits.TCP_PENDING_LINES_MAX
    pending_output_bytes_max: int = limits.TCP_PENDING_OUTPUT_BYTES_MAX
    fetch_records_max: int = limits.TCP_FETCH_RECORDS_MAX
    fetch_bytes_max: int = limits.TCP_FETCH_BYTES_MAX
    session_timeout_ms: int = 10_000
    """A member of a group that is silent for so long is one no more."""


class TcpGateway:
    """All connections of this node that speak JSON lines."""

    def __init__(self, broker: Broker, turn: EndOfTurn, bounds: TcpBounds) -> None:
        self.broker: Final = broker
        self.turn: Final = turn
        self.bounds: Final = bounds
        self.loop: Final = asyncio.get_running_loop()
        self.kept_bytes = 0
        """Of all lines that have not ended."""
        self._latency: Final = {api: broker.meters.latency(Gateway.TCP, api) for api in FIELDS}
        self._connections: set[TcpConnection] = set()
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._drained: Final = asyncio.Event()
        broker.meters.connections[Gateway.TCP.value] = lambda: len(self._connections)

    async def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is the gateway's from here on."""
        self._server = await self.loop.create_server(lambda: TcpConnection(self), sock=listener, backlog=_BACKLOG)
        self._sweep = self.loop.call_later(_SWEEP_SECONDS, self._look_after)

    async def stop(self, grace_seconds: float) -> None:
        """Accept nobody new, answer what is under way, then close everything."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._drained.wait()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()

    def admit(self, connection: TcpConnection) -> str | None:
        """Why there is no room for one more; None when there is."""
        if self._stopping:
            return "The broker is stopping; connect again in a moment"
        if len(self._connections) >= self.bounds.connections_max:
            self.broker.meters.connections_refused.add((Gateway.TCP.value,))
            logger.warning(
                "refusing %s: %d connections are open (limits.connections_max)",
                connection.caller.client,
                len(self._connections),
            )
            return f"Too many connections: {len(self._connections)} are open; close some, then connect again"
        self._connections.add(connection)
        self._drained.clear()
        return None

    def forget(self, connection: TcpConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._drained.set()

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def _look_after(self) -> None:
        now_ms = self.broker.clock.monotonic_ms()
        for connection in list(self._connections):
            connection.look_after(now_ms)
        self._sweep = self.loop.call_later(_SWEEP_SECONDS, self._look_after)

    def observe(self, api: str, seconds: float, count: int) -> None:
        """So many requests of one type took so long."""
        self._latency[api].observe(seconds, count)

    def count_error(self, kind: str) -> None:
        """A request was refused."""
        self.broker.meters.request_errors.add((Gateway.TCP.value, kind))

    def report_bug(self, connection: TcpConnection, error: BaseException) -> None:
        """A mistake of ours: the whole trace goes to the log."""
        logger.error("request of %s failed: %s", connection.caller.client, "".join(traceback.format_exception(error)))
