"""Which node of a cluster owns an operation, by the metadata that all nodes share."""

from typing import TYPE_CHECKING, Any

from penstock.core.queues.moves import REDRIVE_GROUP, dead_letter_topic
from penstock.core.topics.records import NO_LEADER
from penstock.errors import PenstockError, Reason
from penstock.operations.operation import AnyOperation, OwnerKind, Resource
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.core.broker import Broker


def owner_of(broker: "Broker", asked: AnyOperation[Any]) -> NodeId:
    """The node that carries out the operation. PenstockError while there is none.

    What names something that does not exist belongs to this node, which refuses it.
    """
    kind, fields = asked.belongs_to
    coordinators = broker.cluster.coordinators
    if kind is OwnerKind.GROUP:
        # Without a field it is the group that redrives dead letters.
        group = getattr(asked, fields[0]) if fields else REDRIVE_GROUP
        return coordinators.node_of(group) if group else broker.node_id
    if kind is OwnerKind.LEADER:
        return _leader(broker, *(getattr(asked, field) for field in fields))
    if kind is OwnerKind.KEYS:
        found = broker.topics.get(getattr(asked, fields[0]))
        return broker.node_id if found is None else coordinators.keys_node(found)
    if kind is OwnerKind.SINKS:
        return coordinators.sinks_node()
    return broker.node_id


def _leader(broker: "Broker", topic: str, index: int) -> NodeId:
    found = broker.topics.get(topic)
    if found is None or not 0 <= index < found.partition_count:
        return broker.node_id
    leader = broker.topics.partition(found, index).leader
    if leader == NO_LEADER:
        raise PenstockError(
            Reason.LEADER_NOT_AVAILABLE,
            f"{topic}/{index} has no leader at the moment: it needs an in-sync replica that is up. Try again in a moment.",
        )
    return NodeId(leader)


def topic_of(asked: AnyOperation[Any]) -> str | None:
    """The topic that has to exist for an operation, if it names one."""
    name: str | None = getattr(asked, "topic", None)
    if name is not None and any(right.resource is Resource.DEAD_LETTERS for right in asked.rights):
        return dead_letter_topic(name)
    return name
