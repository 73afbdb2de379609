"""The nodes and leaders in answers to Kafka's clients, with the addresses of the listener that the client connected to.

A node that has no listener of that name cannot be reached by the client, and is not listed. The address of this node is the configured or
registered one, else the one that the client used.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.core.cluster.image import RegisteredNode
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.portions import Turns
from penstock.operations.topics import ListTopicNames
from penstock.transport.listener import Listener
from penstock.types import NodeId

NO_CONTROLLER = -1
_NAMES_MAX = 1000
"""Topics that are listed in one piece."""
_ELSEWHERE = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.FENCED_LEADER_EPOCH})
"""Refusals that can name the current leader."""


class ListedNode(NamedTuple):
    """A node and its address for clients."""

    node_id: int
    address: Address
    rack: str | None = None


class CurrentLeader(NamedTuple):
    """The leader of a partition, which a refusal names so that the client need not fetch metadata first (KIP-951)."""

    node: ListedNode
    leader_epoch: int


def nodes_of(context: RequestContext) -> list[ListedNode]:
    """All nodes that are up and serve Kafka clients. This node is always included.

    This node may be unregistered for a moment: its lease has expired, and it registers again. The list must not be empty then, because librdkafka
    closes its connections to all nodes that an answer does not list, and if none is left it may never connect again.
    """
    broker, nodes = context.broker, context.broker.cluster.nodes
    listed = {broker.node_id: ListedNode(broker.node_id, context.advertised)}
    unregistered = nodes.left.get(broker.node_id)
    for node in (*nodes.nodes.values(), *(() if unregistered is None else (unregistered,))):
        if (address := node.listeners.get(context.listener.name)) is not None:
            listed[node.node_id] = ListedNode(node.node_id, address, node.rack)
    return [listed[node_id] for node_id in sorted(listed)]


def _is_reached(context: RequestContext, node: RegisteredNode) -> bool:
    """Whether the client can reach the node; it has reached this one."""
    return node.node_id == context.broker.node_id or context.listener.name in node.listeners


def controller_of(context: RequestContext) -> int:
    """The node to which clients should send requests for the controller: this node, because it is certainly up.

    Every node carries out these requests. The real controller may be down for some seconds before this is noticed, and clients would wait for it all
    that time. A node that is not registered, or is about to stop, names another.
    """
    broker, nodes = context.broker, context.broker.cluster.nodes.nodes
    staying = [node.node_id for node in nodes.values() if _is_reached(context, node) and not node.shutting_down]
    if broker.node_id in staying:
        return broker.node_id
    return min(staying, default=NO_CONTROLLER)


def offline_of(context: RequestContext, replicas: Sequence[int]) -> list[int]:
    """Replicas whose nodes are not up."""
    nodes = context.broker.cluster.nodes.nodes
    return [node for node in replicas if node not in nodes]


def leader_of(context: RequestContext, record: PartitionRecord) -> int:
    """The leader in answers to clients: none if its node is down, or clients cannot reach it."""
    node = context.broker.cluster.nodes.nodes.get(NodeId(record.leader))
    return record.leader if node is not None and _is_reached(context, node) else NO_LEADER


def current_leader(
    broker: Broker, listener: Listener, reason: Reason, topic: str | bytes, index: int
) -> CurrentLeader | None:
    """The leader of a partition, if this node refused a request because another node leads it; None if the leader is not known."""
    if reason not in _ELSEWHERE:
        return None
    found = broker.topics.get(topic) if isinstance(topic, str) else broker.topics.get_by_id(UUID(bytes=topic))
    if found is None or not 0 <= index < found.partition_count:
        return None
    record = broker.topics.partition(found, index)
    node = broker.cluster.nodes.nodes.get(NodeId(record.leader))
    address = None if node is None else node.listeners.get(listener.name)
    if node is None or address is None:
        return None
    return CurrentLeader(ListedNode(node.node_id, address, node.rack), record.leader_epoch)


def reason_for_readers(refusal: PenstockError | OSError | Reason) -> Reason:
    """Why a read was refused. Clients that read do not know LEADER_NOT_AVAILABLE: with NOT_LEADER_OR_FOLLOWER they look for the leader again."""
    if isinstance(refusal, OSError):
        return Reason.STORAGE_ERROR
    reason = refusal.reason if isinstance(refusal, PenstockError) else refusal
    return Reason.NOT_LEADER_OR_FOLLOWER if reason is Reason.LEADER_NOT_AVAILABLE else reason


async def topics_from(name: str, context: RequestContext) -> AsyncIterator[Topic]:
    """The topics that the caller may describe, from a name on, with a pause where it takes long."""
    topics, turns, start = context.broker.topics, Turns(), name
    while names := context.answer(ListTopicNames(start, _NAMES_MAX)):
        for each in names:
            topic = topics.get(each)
            # It may be gone by the time that it is its turn.
            if topic is not None:
                yield topic
            await turns.pause_if_long()
        start = f"{names[-1]}\0"


def coordinator_of(context: RequestContext, node_id: int) -> ListedNode:
    """The node that coordinates a group; COORDINATOR_NOT_AVAILABLE if clients cannot reach it."""
    broker = context.broker
    node = broker.cluster.nodes.nodes.get(NodeId(node_id))
    if node is not None and (address := node.listeners.get(context.listener.name)) is not None:
        return ListedNode(node.node_id, address, node.rack)
    if node_id == broker.node_id:
        return ListedNode(node_id, context.advertised)
    raise PenstockError(
        Reason.COORDINATOR_NOT_AVAILABLE, f"Node {node_id} coordinates the group, but does not serve Kafka clients"
    )
