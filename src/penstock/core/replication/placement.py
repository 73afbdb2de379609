"""Where the replicas of new partitions go: evenly over the nodes, each partition's over as many racks as it can have.

Leaders (the first replicas) are spread first, since they do most of the work; followers then go to the nodes with the fewest
replicas, in racks that the partition is not in yet. Racks are used only if every node has one: else some nodes would be passed over
for being silent.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.core.cluster_image import ClusterImage
from penstock.core.topic_image import TopicImage
from penstock.core.topic_records import LEADER_EPOCH_FIRST, PartitionRecord
from penstock.errors import PenstockError, Reason


def place(
    count: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    *,
    leading: Mapping[int, int] | None = None,
    holding: Mapping[int, int] | None = None,
) -> list[tuple[int, ...]]:
    """The replicas of ``count`` new partitions, the preferred leader first. ``racks`` are the nodes that may have some.

    ``leading`` and ``holding`` are how many partitions each node leads and has already. INVALID_REPLICATION_FACTOR when there are too few nodes.
    """
    if not 1 <= replication_factor <= len(racks):
        raise PenstockError(
            Reason.INVALID_REPLICATION_FACTOR,
            f"The replication factor cannot be {replication_factor}: {len(racks)} nodes are up. Start more, or ask for 1 to {len(racks)}.",
        )
    leads, holds = Counter(leading or {}), Counter(holding or {})
    rack_of = racks if all(rack is not None for rack in racks.values()) else dict.fromkeys(racks)
    placed: list[tuple[int, ...]] = []
    for _ in range(count):
        first = min(racks, key=lambda node: (leads[node], holds[node], node))
        chosen = [first]
        while len(chosen) < replication_factor:
            taken = Counter(rack_of[node] for node in chosen)
            rest = [node for node in racks if node not in chosen]
            # Behind the leader in a ring, so that two nodes do not always back each other up alone.
            chosen.append(
                min(rest, key=lambda node: (taken[rack_of[node]], holds[node], _distance(first, node, racks), node))
            )
        leads[first] += 1
        holds.update(chosen)
        placed.append(tuple(chosen))
    return placed


def _distance(first: int, node: int, racks: Mapping[int, str | None]) -> int:
    ring = sorted(racks)
    return (ring.index(node) - ring.index(first)) % len(ring)


def check_assignment(replicas: Sequence[int], known: Mapping[int, str | None]) -> None:
    """INVALID_REPLICA_ASSIGNMENT unless these nodes can have one partition."""
    if not replicas:
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT, "A partition needs at least one replica. Name some nodes."
        )
    if len(set(replicas)) != len(replicas):
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT,
            f"A node has one replica of a partition at the most, not as in {list(replicas)}.",
        )
    unknown = [node for node in replicas if node not in known]
    if unknown:
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT,
            f"Node {unknown[0]} is not up. Name nodes of the cluster: {', '.join(map(str, sorted(known)))}.",
        )


class ClusterPlacer:
    """The :class:`~penstock.core.topic_placement.Placer` of a cluster: new partitions go to the nodes that are up."""

    def __init__(self, nodes: ClusterImage, topics: TopicImage) -> None:
        self._nodes = nodes
        self._topics = topics

    def spread(self, count: int, replication_factor: int) -> list[PartitionRecord]:
        """Evenly, as far as the partitions that there are allow."""
        leading: Counter[int] = Counter()
        holding: Counter[int] = Counter()
        for topic in self._topics:
            for record in self._topics.partitions(topic):
                holding.update(record.replicas)
                leading.update(record.replicas[:1])
        racks = self._nodes.racks()
        placed = place(count, replication_factor, racks, leading=leading, holding=holding)
        return [self._record(replicas) for replicas in placed]

    def assigned(self, assignments: Sequence[Sequence[int]]) -> list[PartitionRecord]:
        """Where the caller says."""
        known: dict[int, str | None] = {node.node_id: node.rack for node in self._nodes.nodes.values()}
        for replicas in assignments:
            check_assignment(replicas, known)
        if len({len(replicas) for replicas in assignments}) > 1:
            raise PenstockError(
                Reason.INVALID_REPLICA_ASSIGNMENT,
                "All partitions of a topic have as many replicas. Name as many nodes for each.",
            )
        return [self._record(tuple(replicas)) for replicas in assignments]

    def _record(self, replicas: tuple[int, ...]) -> PartitionRecord:
        epochs = self._nodes.live()
        leader = replicas[0]
        return PartitionRecord(
            leader=leader,
            leader_epoch=LEADER_EPOCH_FIRST,
            replicas=replicas,
            isr=tuple((node, epochs[node]) for node in replicas),
            leader_node_epoch=epochs[leader],
        )
