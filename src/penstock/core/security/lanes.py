"""The check of the paths that have no operation: Kafka's produce and fetch, and publishing. They ask for rights here, and are audited here."""

from typing import TYPE_CHECKING

from penstock.core.security.access import REASONS, Caller
from penstock.errors import PenstockError
from penstock.operations.operation import Action, Resource

if TYPE_CHECKING:
    from penstock.core.broker import Broker


def authorise_lane(broker: "Broker", caller: Caller, action: Action, topic: str) -> None:
    """The check of the hot lanes, which have no operation: PenstockError unless the caller may do this to the topic."""
    access, audit = broker.access, broker.audit
    if not access.allows_all:
        try:
            access.require(caller, action, Resource.TOPIC, topic)
        except PenstockError as error:
            if audit.is_on:
                audit.lane_refused(caller, action, topic, error)
            raise
    if audit.records_data:
        audit.accessed(caller, action, topic)


def authorise_lane_by_id(broker: "Broker", caller: Caller, action: Action, topic: str) -> None:
    """The same for a caller that named the topic by its id: the refusal must not show the name."""
    audit = broker.audit
    if not broker.access.allows(caller, action, Resource.TOPIC, topic):
        refusal = PenstockError(REASONS[Resource.TOPIC])
        if audit.is_on:
            audit.lane_refused(caller, action, topic, refusal)
        raise refusal
    if audit.records_data:
        audit.accessed(caller, action, topic)
