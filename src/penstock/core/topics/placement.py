"""Which nodes get the replicas of new partitions: of a broker that is alone, itself; in a cluster, see ``replication/placement.py``."""

from collections.abc import Sequence
from typing import Protocol

from penstock.core.topics.records import PartitionRecord, alone
from penstock.errors import PenstockError, Reason
from penstock.types import NodeId


class Placer(Protocol):
    """Makes the first records of partitions."""

    def spread(self, count: int, replication_factor: int) -> list[PartitionRecord]:
        """Of ``count`` partitions with so many replicas each; INVALID_REPLICATION_FACTOR when that cannot be."""
        ...

    def factor(self, replication_factor: int) -> int:
        """So many replicas, or as many as can be had now."""
        ...

    def assigned(self, assignments: Sequence[Sequence[int]]) -> list[PartitionRecord]:
        """Of partitions on these nodes; INVALID_REPLICA_ASSIGNMENT when that cannot be."""
        ...


class AlonePlacer:
    """There is one node."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id

    def spread(self, count: int, replication_factor: int) -> list[PartitionRecord]:
        """All of it here."""
        if replication_factor != 1:
            raise PenstockError(
                Reason.INVALID_REPLICATION_FACTOR,
                f"The replication factor cannot be {replication_factor}: this is a single broker. Use 1, or -1 for the default.",
            )
        return [alone(self._node_id)] * count

    def factor(self, replication_factor: int) -> int:  # noqa: ARG002 - there is one node
        """One."""
        return 1

    def assigned(self, assignments: Sequence[Sequence[int]]) -> list[PartitionRecord]:
        """The same, said by the caller."""
        for nodes in assignments:
            if list(nodes) != [self._node_id]:
                raise PenstockError(
                    Reason.INVALID_REPLICA_ASSIGNMENT,
                    f"A partition cannot be assigned to {list(nodes)}: broker {self._node_id} is a single broker.",
                )
        return [alone(self._node_id)] * len(assignments)
