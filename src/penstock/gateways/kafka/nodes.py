"""The nodes and leaders that Kafka's clients are shown: of a broker that is alone, itself, where the client connected to."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.types import NodeId

NO_CONTROLLER = -1
_ELSEWHERE = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.FENCED_LEADER_EPOCH})
"""Refusals that can say who leads now."""


class ListedNode(NamedTuple):
    """One node, and where clients reach it."""

    node_id: int
    address: Address
    rack: str | None = None


class CurrentLeader(NamedTuple):
    """The leader of a partition, named in a refusal so that the client need not fetch metadata first (KIP-951)."""

    node: ListedNode
    leader_epoch: int


def nodes_of(context: RequestContext) -> list[ListedNode]:
    """All nodes that are up and serve Kafka clients, always with this one, which is up because it answers.

    This node may be unregistered for a moment: its lease has expired, and it registers again. The list must not be empty then, because librdkafka
    closes its connections to all nodes that an answer does not list, and if none is left it may never connect again.
    """
    broker, cluster = context.broker, context.broker.cluster
    listed = {broker.node_id: ListedNode(broker.node_id, context.advertised)}
    if cluster is not None:
        unregistered = cluster.nodes.left.get(broker.node_id)
        nodes = [*cluster.nodes.nodes.values(), *([unregistered] if unregistered is not None else [])]
        listed |= {
            node.node_id: ListedNode(node.node_id, node.listeners["kafka"], node.rack)
            for node in nodes
            if "kafka" in node.listeners
        }
    return [listed[node_id] for node_id in sorted(listed)]


def controller_of(context: RequestContext) -> int:
    """Whom clients shall send to what is a controller's in their eyes: this node, which is up, since it has just been asked.

    Every node does what they ask of a controller. The one that is it may be dead for some seconds before anybody knows, and clients that were told of it
    would wait for it all that time. A node that is not registered, or about to stop, names another.
    """
    broker, cluster = context.broker, context.broker.cluster
    if cluster is None:
        return broker.node_id
    staying = [
        node.node_id for node in cluster.nodes.nodes.values() if "kafka" in node.listeners and not node.shutting_down
    ]
    if broker.node_id in staying:
        return broker.node_id
    return min(staying, default=NO_CONTROLLER)


def offline_of(context: RequestContext, replicas: Sequence[int]) -> list[int]:
    """Replicas whose nodes are not up."""
    cluster = context.broker.cluster
    return [] if cluster is None else [node for node in replicas if node not in cluster.nodes.nodes]


def leader_of(context: RequestContext, record: PartitionRecord) -> int:
    """The leader that clients are shown: none when its node is not up, or they cannot reach it."""
    cluster = context.broker.cluster
    if cluster is None or record.leader == NO_LEADER:
        return record.leader
    node = cluster.nodes.nodes.get(NodeId(record.leader))
    return record.leader if node is not None and "kafka" in node.listeners else NO_LEADER


def current_leader(broker: Broker, reason: Reason, topic: str | bytes, index: int) -> CurrentLeader | None:
    """The leader of a partition that was refused here; None when that is not the reason, or no leader is known."""
    cluster = broker.cluster
    if cluster is None or reason not in _ELSEWHERE:
        return None
    found = broker.topics.get(topic) if isinstance(topic, str) else broker.topics.get_by_id(UUID(bytes=topic))
    if found is None or not 0 <= index < found.partition_count:
        return None
    record = broker.topics.partition(found, index)
    node = cluster.nodes.nodes.get(NodeId(record.leader))
    if node is None or "kafka" not in node.listeners:
        return None
    return CurrentLeader(ListedNode(node.node_id, node.listeners["kafka"], node.rack), record.leader_epoch)


def reason_for_readers(error: PenstockError | OSError) -> Reason:
    """Why a read was refused. Clients that read know no "leader not available": to them it is led elsewhere, and they look again."""
    if not isinstance(error, PenstockError):
        return Reason.STORAGE_ERROR
    return Reason.NOT_LEADER_OR_FOLLOWER if error.reason is Reason.LEADER_NOT_AVAILABLE else error.reason


def coordinator_of(context: RequestContext, group: str) -> ListedNode:
    """The coordinator of a group; COORDINATOR_NOT_AVAILABLE when there is none."""
    cluster = context.broker.cluster
    if cluster is None:
        return ListedNode(context.broker.node_id, context.advertised)
    node_id = cluster.coordinators.node_of(group)
    try:
        return ListedNode(node_id, cluster.nodes.address(node_id, "kafka"))
    except PenstockError as error:
        raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, error.text) from None
