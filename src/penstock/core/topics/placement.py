"""How the nodes for the replicas of new partitions are chosen; for a cluster, see ``core/cluster/placement.py``."""

from collections.abc import Sequence
from typing import Protocol

from penstock.core.topics.records import PartitionRecord, alone
from penstock.errors import PenstockError, Reason
from penstock.types import NodeId


class Placer(Protocol):
    """Creates the records of new partitions."""

    def spread(self, count: int, replication_factor: int) -> list[PartitionRecord]:
        """For ``count`` partitions with this many replicas each, or INVALID_REPLICATION_FACTOR."""
        ...

    def factor(self, replication_factor: int) -> int:
        """The number of replicas, or fewer if there are not enough nodes now."""
        ...

    def assigned(self, assignments: Sequence[Sequence[int]]) -> list[PartitionRecord]:
        """For partitions on these nodes, or INVALID_REPLICA_ASSIGNMENT."""
        ...


class AlonePlacer:
    """For a single node."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id

    def spread(self, count: int, replication_factor: int) -> list[PartitionRecord]:
        """All partitions on this node."""
        if replication_factor != 1:
            raise PenstockError(
                Reason.INVALID_REPLICATION_FACTOR,
                f"The replication factor cannot be {replication_factor}: this is a single broker. Use 1, or -1 for the default.",
            )
        return [alone(self._node_id)] * count

    def factor(self, replication_factor: int) -> int:  # noqa: ARG002 - there is one node
        """Always one."""
        return 1

    def assigned(self, assignments: Sequence[Sequence[int]]) -> list[PartitionRecord]:
        """The same, if the caller names this node."""
        for nodes in assignments:
            if list(nodes) != [self._node_id]:
                raise PenstockError(
                    Reason.INVALID_REPLICA_ASSIGNMENT,
                    f"A partition cannot be assigned to {list(nodes)}: broker {self._node_id} is a single broker.",
                )
        return [alone(self._node_id)] * len(assignments)
