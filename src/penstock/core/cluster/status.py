"""The status of the cluster as one node knows it: its nodes, what each of them has, and which partitions have problems, and why.

No other node is asked: everything follows from the agreed state, except for the progress of a move, which only the leader knows.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.cluster.election import LiveNodes, is_led
from penstock.core.cluster.image import ClusterImage
from penstock.core.cluster.reassignment import is_only_at
from penstock.core.cluster.records import is_reassigning
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.topics.records import PartitionRecord
from penstock.core.topics.topics import Topic
from penstock.operations.cluster import (
    ClusterDescription,
    ClusterNode,
    Controller,
    Metadata,
    PartitionMove,
    PartitionTrouble,
)
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.core.broker import Broker

LISTED_MAX: Final = 1_000
"""Partitions named in each list; the counts are of all."""
_PARTITIONS_A_STEP: Final = 5_000


class _Found:
    """The findings so far. Lists are limited to :data:`LISTED_MAX` entries, counts are not."""

    def __init__(self) -> None:
        self.partitions = 0
        self.under_replicated_count = 0
        self.under_min_in_sync_count = 0
        self.offline_count = 0
        self.moving_count = 0
        self.under_replicated: list[PartitionTrouble] = []
        self.under_min_in_sync: list[PartitionTrouble] = []
        self.offline: list[PartitionTrouble] = []
        self.moves: list[PartitionMove] = []
        # By node.
        self.leading: Counter[int] = Counter()
        self.holding: Counter[int] = Counter()
        self.stuck: Counter[int] = Counter()
        self.only_there: Counter[int] = Counter()


def status_steps(broker: "Broker", metadata: Metadata) -> Generator[None, None, ClusterDescription]:
    """The status of the cluster, in steps, so that others are served in between."""
    cluster, image = broker.cluster, broker.cluster.nodes
    live, able, failed = image.live(), set(image.racks()), cluster.replicas.problems()
    status = _Found()
    for topic in list(broker.topics):
        for index, record in enumerate(broker.topics.partitions(topic)):
            status.partitions += 1
            if status.partitions % _PARTITIONS_A_STEP == 0:
                yield
            status.holding.update(record.replicas)
            led = is_led(record, live)
            waited_for = [] if led else [node for node in record.replicas if is_only_at(record, node, live)]
            status.only_there.update(waited_for)
            if able.issubset(record.replicas):
                status.stuck.update(node for node in record.replicas if node not in (*record.removing, *waited_for))
            if is_reassigning(record):
                _moving(status, broker, topic, index, record)
            problem = failed.get(TopicIdPartition(topic.topic_id, index)) if failed else None
            if problem is not None and record.leader == broker.node_id:
                _list_offline(status, topic, index, record, problem)
            elif led:
                status.leading[record.leader] += 1
                _look(status, topic, index, record, live, problem)
            else:
                _list_offline(status, topic, index, record, _why_offline(record, live, image))
    draining = {*image.draining}
    nodes = sorted({*live, *status.holding, *draining})
    return ClusterDescription(
        cluster_id=broker.cluster_id,
        node=broker.node_id,
        is_alone=broker.is_alone,
        metadata=metadata,
        controller=_controller(broker),
        nodes=[_node(node_id, image, status, is_draining=node_id in draining) for node_id in nodes],
        partitions=status.partitions,
        under_replicated_count=status.under_replicated_count,
        under_min_in_sync_count=status.under_min_in_sync_count,
        offline_count=status.offline_count,
        moving_count=status.moving_count,
        under_replicated=status.under_replicated,
        under_min_in_sync=status.under_min_in_sync,
        offline=status.offline,
        moves=status.moves,
        drains=list(cluster.reassignments.drains()),
    )


def _node(node_id: int, image: ClusterImage, found: _Found, *, is_draining: bool) -> ClusterNode:
    node = image.nodes.get(NodeId(node_id))
    return ClusterNode(
        node=node_id,
        is_up=node is not None,
        epoch=None if node is None else node.epoch,
        rack=None if node is None else node.rack,
        version=None if node is None else node.version,
        started_ms=None if node is None else node.started_ms,
        is_stopping=node is not None and node.shutting_down,
        is_draining=is_draining,
        leads=found.leading[node_id],
        replicas=found.holding[node_id],
        stuck=found.stuck[node_id],
        left_ms=image.left_ms.get(NodeId(node_id)),
        listeners={} if node is None else {name: str(address) for name, address in node.listeners.items()},
        peer_tls=node is not None and node.peer_tls,
        only_there=found.only_there[node_id],
    )


def _controller(broker: "Broker") -> Controller | None:
    found = broker.cluster.nodes.controller
    return None if found is None else Controller(found.node_id, found.epoch)


def _leader(node_id: int) -> int | None:
    return None if node_id < 0 else node_id


def _look(
    status: _Found, topic: Topic, index: int, record: PartitionRecord, live: LiveNodes, problem: str | None
) -> None:
    """``problem`` is one that this node has with the partition."""
    wanted = [node for node in record.replicas if node not in record.adding]
    missing = [node for node in wanted if node not in record.in_sync]
    min_in_sync = topic.min_in_sync_of(len(record.replicas))
    too_few = len(record.isr) < min_in_sync
    status.under_min_in_sync_count += too_few
    if too_few and len(status.under_min_in_sync) < LISTED_MAX:
        status.under_min_in_sync.append(_trouble(topic, index, record, why_below_min(record, min_in_sync)))
    if not missing:
        return
    status.under_replicated_count += 1
    if len(status.under_replicated) < LISTED_MAX:
        down = [node for node in missing if node not in live]
        behind = [node for node in missing if node in live]
        parts = ([f"{_nodes(down)} not up"] if down else []) + ([f"{_nodes(behind)} not caught up"] if behind else [])
        why = " and ".join(parts) + ("" if problem is None else f". {problem}")
        status.under_replicated.append(_trouble(topic, index, record, why))


def why_below_min(record: PartitionRecord, min_in_sync: int) -> str:
    """Why acks=all is refused."""
    if min_in_sync > len(record.replicas):
        have = f"{len(record.replicas)} replica{'' if len(record.replicas) == 1 else 's'}"
        return f"min.insync.replicas is {min_in_sync}, which is impossible with {have}"
    missing = [node for node in record.replicas if node not in record.in_sync]
    return f"{len(record.isr)} of the {min_in_sync} replicas required by min.insync.replicas are in sync; {_nodes(missing)} missing"


def _list_offline(status: _Found, topic: Topic, index: int, record: PartitionRecord, why: str) -> None:
    status.offline_count += 1
    if len(status.offline) < LISTED_MAX:
        status.offline.append(_trouble(topic, index, record, why))


def _why_offline(record: PartitionRecord, live: LiveNodes, image: ClusterImage) -> str:
    if not record.replicas:
        return "its metadata has not reached this node yet"
    able = [node for node in dict.fromkeys((*record.in_sync, *record.elr)) if node in live]
    if able:
        if image.controller is None:
            return "there is no controller to elect the next leader: check whether etcd is up"
        return "its next leader is being elected"
    keepers = sorted({*record.in_sync, *record.elr})
    up = [node for node in record.replicas if node in live]
    which = "it" if len(keepers) == 1 else "one of them"
    text = f"{_nodes(keepers)} not up, and no other node has all acknowledged records: start {which}"
    if up:
        text += f" (node {up[0]} is up but lacks some of them; an unclean election would lose these)"
    return text


def _nodes(nodes: Sequence[int]) -> str:
    """``node 1 is`` or ``nodes 1, 2 are``."""
    if len(nodes) == 1:
        return f"node {nodes[0]} is"
    return f"nodes {', '.join(map(str, nodes))} are"


def _trouble(topic: Topic, index: int, record: PartitionRecord, why: str) -> PartitionTrouble:
    return PartitionTrouble(topic.name, index, _leader(record.leader), record.replicas, record.in_sync, record.elr, why)


def _moving(status: _Found, broker: "Broker", topic: Topic, index: int, record: PartitionRecord) -> None:
    status.moving_count += 1
    if len(status.moves) >= LISTED_MAX:
        return
    partition = broker.opened(topic.name, index)
    status.moves.append(
        PartitionMove(
            topic=topic.name,
            partition=index,
            leader=_leader(record.leader),
            replicas=record.replicas,
            adding=record.adding,
            removing=record.removing,
            in_sync=record.in_sync,
            # Only the leader knows the progress of a move.
            start_offset=None if partition is None else partition.log.start_offset,
            end_offset=None if partition is None else partition.log.next_offset,
            copied=None
            if partition is None
            else {str(node): partition.in_sync.end_of(node) or 0 for node in record.adding},
        )
    )
