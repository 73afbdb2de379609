"""What a handler knows about the request it translates, beside the request itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.address import Address
from penstock.core.broker import Broker

if TYPE_CHECKING:
    from penstock.gateways.kafka.gateway import KafkaGateway


@dataclass(slots=True)
class RequestContext:
    """One request's circumstances. ``now_ms`` is wall time, ``monotonic_ms`` is for waiting."""

    broker: Broker
    gateway: "KafkaGateway"
    version: int
    client_id: str | None
    client_host: str
    principal: str
    now_ms: int
    monotonic_ms: int
    local: Address
    """Where this client connected to."""

    @property
    def advertised(self) -> Address:
        """What clients are told to connect to: what is configured, else what worked for this one."""
        return self.broker.advertised or self.local
