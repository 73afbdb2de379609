"""The listener for JSON lines."""

from dataclasses import dataclass
from typing import Final

from penstock import limits
from penstock.core.broker import Broker
from penstock.gateways.connections import ConnectionGateway
from penstock.gateways.tcp.answers import failure
from penstock.gateways.tcp.connection import TcpConnection
from penstock.gateways.tcp.requests import FIELDS
from penstock.ports import EndOfTurn
from penstock.settings import LimitSettings, TcpSettings
from penstock.transport.listener import Door, Listener
from penstock.types import Gateway

USE_TLS: Final = "This port speaks TLS: connect with TLS"
_TAKE_SECONDS: Final = 1.0
"""How long a stop waits for clients to read their answers."""


@dataclass(frozen=True, slots=True)
class TcpBounds:
    """The bounds of this gateway that are not configurable."""

    kept_bytes_max: int = limits.TCP_KEPT_BYTES_MAX
    pending_lines_max: int = limits.TCP_PENDING_LINES_MAX
    pending_output_bytes_max: int = limits.TCP_PENDING_OUTPUT_BYTES_MAX
    unsent_bytes_max: int = limits.TCP_UNSENT_BYTES_MAX
    fetch_records_max: int = limits.TCP_FETCH_RECORDS_MAX
    fetch_bytes_max: int = limits.TCP_FETCH_BYTES_MAX


class TcpGateway(ConnectionGateway[TcpConnection]):
    """All clients that use JSON lines."""

    def __init__(
        self,
        broker: Broker,
        turn: EndOfTurn,
        settings: TcpSettings,
        limits: LimitSettings,
        bounds: TcpBounds | None = None,
    ) -> None:
        super().__init__(Gateway.TCP, broker, turn, limits)
        self.settings: Final = settings
        self.bounds: Final = bounds or TcpBounds()
        self.kept_bytes = 0
        """Of all incomplete lines."""
        self._latency: Final = {api: broker.meters.latency(Gateway.TCP, api) for api in FIELDS}

    async def start(self, listener: Listener) -> None:
        """Serve a listener."""
        await self._listen(listener, Door(lambda arrival: TcpConnection(self, arrival), lambda _: failure(USE_TLS)))

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, answer what is under way, then close everything."""
        self._close()
        if await self._drain(min(grace_seconds, _TAKE_SECONDS)):
            return
        for connection in list(self._connections):
            if not connection.is_busy:
                connection.abort()
        if not await self._drain(grace_seconds):
            self._abort()

    @property
    def unsent_bytes(self) -> int:
        """Of answers that clients have not read."""
        return sum(connection.unsent_bytes for connection in self._connections)

    def observe(self, api: str, seconds: float, count: int) -> None:
        """Record the latency of ``count`` requests of one type."""
        self._latency[api].observe(seconds, count)
