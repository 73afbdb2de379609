"""What a handler knows about the request it translates, beside the request itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.address import Address
from penstock.core.access import Action, Caller
from penstock.core.broker import Broker
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.errors import counted_code

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
    caller: Caller
    now_ms: int
    monotonic_ms: int
    local: Address
    """Where this client connected to."""

    @property
    def advertised(self) -> Address:
        """What clients are told to connect to: what is configured, else what worked for this one."""
        return self.broker.advertised or self.local

    # Whether the caller may. Asked before anything is looked for, so that a refusal says nothing of what there is.

    def require_topic(self, action: Action, topic: str) -> None:
        """``TOPIC_AUTHORIZATION_FAILED`` unless the caller may do this to the topic."""
        self.broker.access.require_topic(self.caller, action, topic)

    def require_group(self, action: Action, group: str) -> None:
        """``GROUP_AUTHORIZATION_FAILED`` unless the caller may do this to the group."""
        self.broker.access.require_group(self.caller, action, group)

    def require_cluster(self, action: Action) -> None:
        """``CLUSTER_AUTHORIZATION_FAILED`` unless the caller may do this to the cluster."""
        self.broker.access.require_cluster(self.caller, action)

    def allows_topic(self, action: Action, topic: str) -> bool:
        """The same as a question, for lists that show only what the caller may see."""
        access = self.broker.access
        if access.allows_all:
            return True
        try:
            access.require_topic(self.caller, action, topic)
        except PenstockError:
            return False
        return True

    def allows_group(self, action: Action, group: str) -> bool:
        """The same for a group."""
        access = self.broker.access
        if access.allows_all:
            return True
        try:
            access.require_group(self.caller, action, group)
        except PenstockError:
            return False
        return True

    def allows_cluster(self, action: Action) -> bool:
        """The same for the cluster."""
        try:
            self.broker.access.require_cluster(self.caller, action)
        except PenstockError:
            return False
        return True

    def code(self, refusal: PenstockError | Reason | None) -> int:
        """Kafka's code for a refusal, which is counted; 0 where there is none."""
        if refusal is None:
            return 0
        return counted_code(self.broker.meters, refusal.reason if isinstance(refusal, PenstockError) else refusal)
