"""How the cluster stands, as one node knows it: its nodes, what each of them has, what is not as it should be, and why.

Nothing is asked of other nodes: all of it follows from the agreed state, but for how far a move is, which the partition's leader alone knows.
"""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.cluster_image import ClusterImage, Node
from penstock.core.replication.election import LiveNodes, is_led
from penstock.core.replication.reassignment import Drain, Move, is_only_at
from penstock.core.replication.records import is_reassigning
from penstock.core.replication.replicas import Place
from penstock.core.topic_records import PartitionRecord
from penstock.core.topics import Topic

if TYPE_CHECKING:
    from penstock.core.broker import Broker

LISTED_MAX: Final = 1_000
"""Partitions named in each list; the counts are of all."""
_PARTITIONS_A_STEP: Final = 5_000


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node. ``node`` is None for one that is not up and has partitions."""

    node_id: int
    node: Node | None
    is_draining: bool
    leading: int
    replicas: int
    stuck: int
    """Of these, partitions that no other node could take if this one were to be drained."""
    left_ms: int | None = None
    """When it was seen to leave, if it is not up and this node was there to see it."""
    only_there: int = 0
    """Partitions that wait for it: it is not up, and nobody who is has all that was acknowledged. Not counted as stuck."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition that is not as it should be, and why."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """A partition on its way to other nodes. How far they are is known to its leader alone, and None elsewhere."""

    move: Move
    leader: int
    in_sync: tuple[int, ...]
    start_offset: int | None = None
    end_offset: int | None = None
    copied: Mapping[int, int] | None = None
    """By node that is being added: up to where it has the partition."""


@dataclass(slots=True)
class ClusterStatus:
    """All of it. Lists are cut at :data:`LISTED_MAX`, counts are not."""

    nodes: list[NodeStatus]
    partitions: int = 0
    under_replicated_count: int = 0
    under_min_in_sync_count: int = 0
    offline_count: int = 0
    moving_count: int = 0
    under_replicated: list[Trouble] = field(default_factory=list)
    under_min_in_sync: list[Trouble] = field(default_factory=list)
    offline: list[Trouble] = field(default_factory=list)
    moves: list[MoveStatus] = field(default_factory=list)
    drains: Sequence[Drain] = ()


def cluster_status(broker: "Broker") -> ClusterStatus:
    """How the cluster stands; of a broker that is alone, itself."""
    steps = status_steps(broker)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        found: ClusterStatus = done.value
        return found


def status_steps(broker: "Broker") -> Generator[None, None, ClusterStatus]:
    """The same, a portion at a time: whoever has others to serve does so in between."""
    cluster = broker.cluster
    image = None if cluster is None else cluster.nodes
    live: LiveNodes = {broker.node_id: 0} if image is None else image.live()
    leading: Counter[int] = Counter()
    holding: Counter[int] = Counter()
    stuck: Counter[int] = Counter()
    only_there: Counter[int] = Counter()
    able = set() if image is None else set(image.racks())
    failed = {} if cluster is None else cluster.replicas.problems()
    status = ClusterStatus(nodes=[])
    for topic in list(broker.topics):
        for index, record in enumerate(broker.topics.partitions(topic)):
            status.partitions += 1
            if status.partitions % _PARTITIONS_A_STEP == 0:
                yield
            holding.update(record.replicas)
            led = is_led(record, live)
            waited_for = [] if led else [node for node in record.replicas if is_only_at(record, node, live)]
            only_there.update(waited_for)
            if able.issubset(record.replicas):
                stuck.update(node for node in record.replicas if node not in (*record.removing, *waited_for))
            if is_reassigning(record):
                _moving(status, broker, topic, index, record)
            problem = failed.get(Place(topic.topic_id, index)) if failed else None
            if problem is not None and record.leader == broker.node_id:
                _list_offline(status, topic, index, record, problem)
            elif led:
                leading[record.leader] += 1
                _look(status, topic, index, record, live, problem)
            else:
                _offline(status, topic, index, record, live, image)
    if cluster is not None:
        status.drains = cluster.reassignments.drains()
    known: dict[int, Node] = {} if image is None else {node.node_id: node for node in image.nodes.values()}
    draining: set[int] = set() if image is None else {*image.draining}
    left = {} if image is None else {int(node_id): left_ms for node_id, left_ms in image.left_ms.items()}
    status.nodes = [
        NodeStatus(
            node_id,
            known.get(node_id),
            node_id in draining,
            leading[node_id],
            holding[node_id],
            stuck[node_id],
            left.get(node_id),
            only_there[node_id],
        )
        for node_id in sorted({*live, *holding, *draining})
    ]
    return status


def _look(
    status: ClusterStatus, topic: Topic, index: int, record: PartitionRecord, live: LiveNodes, problem: str | None
) -> None:
    """``problem`` is this node's own with it."""
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


def _offline(
    status: ClusterStatus,
    topic: Topic,
    index: int,
    record: PartitionRecord,
    live: LiveNodes,
    image: ClusterImage | None,
) -> None:
    _list_offline(status, topic, index, record, _why_offline(record, live, image))


def _list_offline(status: ClusterStatus, topic: Topic, index: int, record: PartitionRecord, why: str) -> None:
    status.offline_count += 1
    if len(status.offline) < LISTED_MAX:
        status.offline.append(_trouble(topic, index, record, why))


def _why_offline(record: PartitionRecord, live: LiveNodes, image: ClusterImage | None) -> str:
    if not record.replicas:
        return "its metadata has not reached this node yet"
    able = [node for node in dict.fromkeys((*record.in_sync, *record.elr)) if node in live]
    if able:
        if image is not None and image.controller is None:
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


def _trouble(topic: Topic, index: int, record: PartitionRecord, why: str) -> Trouble:
    return Trouble(topic.name, index, record.leader, record.replicas, record.in_sync, record.elr, why)


def _moving(status: ClusterStatus, broker: "Broker", topic: Topic, index: int, record: PartitionRecord) -> None:
    status.moving_count += 1
    if len(status.moves) >= LISTED_MAX:
        return
    move = Move(topic.name, index, record.replicas, record.adding, record.removing)
    partition = broker.opened(topic.name, index)
    if partition is None or partition.in_sync is None:
        status.moves.append(MoveStatus(move, record.leader, record.in_sync))
        return
    copied = {node: partition.in_sync.end_of(node) or 0 for node in move.adding}
    start, end = partition.log.start_offset, partition.log.next_offset
    status.moves.append(MoveStatus(move, record.leader, record.in_sync, start, end, copied))
