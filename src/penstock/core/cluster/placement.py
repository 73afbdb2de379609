"""Places the replicas of new partitions: evenly over the nodes, those of each partition over as many racks as possible.

Leaders (the first replicas) are spread first, since they do most of the work. Followers then go to the nodes with the fewest replicas,
in racks where the partition has none yet. Racks are used only if every node has one.

If a node is down for a while, as in a restart, topics are still created with all replicas: as long as more than half of a partition's
nodes are up, nodes that are down get replicas too, and catch up when they are back. A node belongs to the cluster as long as it has
replicas; one that never comes back must be drained.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.core.cluster.image import ClusterImage
from penstock.core.topics.records import LEADER_EPOCH_FIRST, PartitionRecord
from penstock.core.topics.topics import Topics
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

    ``leading`` and ``holding`` are the numbers of partitions that each node leads and has already. INVALID_REPLICATION_FACTOR if there are too few nodes.
    """
    if not 1 <= replication_factor <= len(racks):
        raise _too_few(replication_factor, racks, ())
    leads, holds = Counter(leading or {}), Counter(holding or {})
    rack_of = racks if all(rack is not None for rack in racks.values()) else dict.fromkeys(racks)
    placed: list[tuple[int, ...]] = []
    for _ in range(count):
        first = min(racks, key=lambda node: (leads[node], holds[node], node))
        chosen = [first]
        while len(chosen) < replication_factor:
            taken = Counter(rack_of[node] for node in chosen)
            rest = [node for node in racks if node not in chosen]
            # In a ring starting at the leader, so that the followers of one node are spread over many others.
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
    """INVALID_REPLICA_ASSIGNMENT unless these nodes can be the replicas of a partition."""
    if not replicas:
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT, "A partition needs at least one replica. Name some nodes."
        )
    if len(set(replicas)) != len(replicas):
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT,
            f"A node can have only one replica of a partition, but the list is {list(replicas)}",
        )
    unknown = [node for node in replicas if node not in known]
    if unknown:
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT,
            f"Node {unknown[0]} is not up. Name nodes of the cluster: {', '.join(map(str, sorted(known)))}.",
        )


class ClusterPlacer:
    """The :class:`~penstock.core.topics.placement.Placer` of a cluster: on live nodes, and on others if there are too few."""

    def __init__(self, nodes: ClusterImage, topics: Topics) -> None:
        self._nodes = nodes
        self._topics = topics

    def spread(self, count: int, replication_factor: int) -> list[PartitionRecord]:
        """Spread new partitions evenly."""
        leading, holding = self._loads()
        racks = self._nodes.racks()
        away = self._away(racks, holding)
        up = min(len(racks), replication_factor)
        if not replication_factor // 2 < up <= replication_factor <= up + len(away):
            raise _too_few(replication_factor, racks, away)
        placed = place(count, up, racks, leading=leading, holding=holding)
        return [self._record((*replicas, *away[: replication_factor - up])) for replicas in placed]

    def factor(self, replication_factor: int) -> int:
        """The highest possible replication factor up to this one."""
        racks = self._nodes.racks()
        away = self._away(racks, self._loads()[1])
        return max(1, min(replication_factor, len(racks) + min(len(away), len(racks) - 1)))

    def assigned(self, assignments: Sequence[Sequence[int]]) -> list[PartitionRecord]:
        """Place new partitions as the caller specifies."""
        known: dict[int, str | None] = {node.node_id: node.rack for node in self._nodes.nodes.values()}
        for replicas in assignments:
            check_assignment(replicas, known)
        if len({len(replicas) for replicas in assignments}) > 1:
            raise PenstockError(
                Reason.INVALID_REPLICA_ASSIGNMENT,
                "All partitions of a topic have the same number of replicas. Name the same number of nodes for each.",
            )
        return [self._record(tuple(replicas)) for replicas in assignments]

    def _loads(self) -> tuple[Counter[int], Counter[int]]:
        """The number of partitions of which each node is the preferred leader, and the number of its replicas."""
        leading: Counter[int] = Counter()
        holding: Counter[int] = Counter()
        for topic in self._topics:
            for record in self._topics.partitions(topic):
                holding.update(record.replicas)
                leading.update(record.replicas[:1])
        return leading, holding

    def _away(self, racks: Mapping[int, str | None], holding: Counter[int]) -> list[int]:
        """The nodes that are down but not drained, those with the fewest partitions first."""
        away = [node for node in holding if node not in racks and node not in self._nodes.draining]
        return sorted(away, key=lambda node: (holding[node], node))

    def _record(self, replicas: tuple[int, ...]) -> PartitionRecord:
        epochs = self._nodes.live()
        leader = replicas[0]
        # A stopping node is not in sync: it catches up when it is back.
        staying = {node for node, epoch in epochs.items() if self._nodes.is_live(node, epoch)} | {leader}
        return PartitionRecord(
            leader=leader,
            leader_epoch=LEADER_EPOCH_FIRST,
            replicas=replicas,
            isr=tuple((node, epochs[node]) for node in replicas if node in staying),
            leader_node_epoch=epochs[leader],
        )


def _too_few(replication_factor: int, racks: Mapping[int, str | None], away: Sequence[int]) -> PenstockError:
    expected = f", and {len(away)} more should be up" if away else ""
    count = len(racks)
    up = "1 node is up" if count == 1 else f"{count} nodes are up"
    instead = "1" if count < 2 else f"1 to {count}"
    return PenstockError(
        Reason.INVALID_REPLICATION_FACTOR,
        f"The replication factor cannot be {replication_factor}: {up}{expected}. Start more nodes, or use {instead}.",
    )
