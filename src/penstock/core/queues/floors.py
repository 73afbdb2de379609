"""Stores the floors of queues as the committed offsets of their groups, so that all tools and APIs show the same.

At most one commit per partition is in flight; when it is done, the present floor is committed next. So a thousand acks in a row cost
only as many commits as the disk can do.

While too few replicas are in sync, a floor waits, and the acks that wait for it. Memory is correct then, because nothing was tried.
For a commit that failed, see ``Upkeep.lose``.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.coordinators.topic import StoredDone
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.state_log import LED_ELSEWHERE
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import OffsetToCommit
from penstock.types import PartitionKey

if TYPE_CHECKING:
    from penstock.core.queues.context import Context

_REPLICAS_RETRY_MS: Final = 100
"""After which it is checked again whether enough replicas are in sync to store a floor."""


class Floors:
    """The floors of all queues."""

    def __init__(self, context: "Context") -> None:
        self._context = context
        self._groups = context.broker.groups
        self._moved: dict[QueuePartition, None] = {}
        self._stale: set[QueuePartition] = set()
        self._retry = Timer(context.schedule)

    def moved(self, partition: QueuePartition) -> None:
        """The floor differs from the stored one."""
        self._moved[partition] = None
        self._context.schedule()

    def refresh(self, partition: QueuePartition) -> None:
        """Commit the floor again, so that the commit does not expire."""
        self._stale.add(partition)
        self.moved(partition)

    def when_stored(self, partition: QueuePartition, done: StoredDone) -> None:
        """Call ``done`` once the present floor is committed."""
        partition.floor_waiting.append((partition.floor, done))
        self.moved(partition)

    def forget(self, partitions: Iterable[QueuePartition]) -> None:
        """Their queue is closed."""
        for partition in partitions:
            self._moved.pop(partition, None)
            self._stale.discard(partition)

    def flush(self) -> None:
        """Commit the floors that moved in this turn."""
        moved, self._moved = self._moved, {}
        for partition in moved:
            self._commit(partition)

    def _commit(self, partition: QueuePartition) -> None:
        if partition.committing is not None or partition.gone:
            return
        if partition.floor == partition.committed and partition not in self._stale:
            release(partition, partition.floor)
            return
        if partition.state_partition in self._context.lost:
            # The floor in memory may be above the stored one. It is known once the state is loaded again.
            return
        if not self._groups.can_store(partition.queue.group):
            self._moved[partition] = None
            self._context.deadlines.set(self._retry, self._context.clock.monotonic_ms() + _REPLICAS_RETRY_MS)
            return
        self._stale.discard(partition)
        floor = partition.committing = partition.floor
        item = OffsetToCommit(PartitionKey(partition.topic, partition.index), floor)
        try:
            self._groups.commit_offset(partition.queue.group, item, partial(self._stored, partition, floor))
        except PenstockError as error:
            self._stored(partition, floor, error.reason)

    def _stored(self, partition: QueuePartition, floor: int, reason: Reason | None) -> None:
        partition.committing = None
        if reason is not None:
            waiting, partition.floor_waiting = partition.floor_waiting, []
            if reason in LED_ELSEWHERE:
                reason = Reason.NOT_COORDINATOR
            else:
                reason = Reason.STORAGE_ERROR
                if not partition.gone:
                    self._context.upkeep.lose(partition.state_partition)
            for _, done in waiting:
                done(reason)
            return
        rewound, partition.rewound = partition.rewound, False
        partition.committed = floor
        if not rewound:
            self._context.upkeep.floor_stored(partition)
        release(partition, floor)
        if partition.floor != floor:
            self.moved(partition)


def release(partition: QueuePartition, floor: int) -> None:
    """Answer the callers that wait for this floor or a lower one."""
    waiting = partition.floor_waiting
    if not waiting:
        return
    partition.floor_waiting = [entry for entry in waiting if entry[0] > floor]
    for needed, done in waiting:
        if needed <= floor:
            done(None)
