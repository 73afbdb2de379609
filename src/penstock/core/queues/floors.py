"""Storing the floors of queues: each is its group's committed offset, so every tool and every API sees the same.

At most one commit is under way for a partition; when it is done, the floor as it is by then is next. So a thousand acks in a
row cost as many commits as the disk can do, and the last one counts.

While too few replicas are in sync, a floor waits, and the acks that wait for it: what is stored elsewhere waits for the same. Memory is sound then,
because nothing was tried. A commit that was tried and failed is another matter: see ``on_lost``.
"""

from collections.abc import Callable, Iterable
from functools import partial

from penstock.core.groups.coordinator import GroupCoordinator
from penstock.core.groups.requests import OffsetToCommit, PartitionKey
from penstock.core.queues.delivery import Done
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.state_log import LED_ELSEWHERE
from penstock.errors import PenstockError, Reason


class Floors:
    """The commits of all queues. ``schedule`` has :meth:`flush` called at the end of this turn, ``schedule_retry`` some time later."""

    def __init__(
        self,
        groups: GroupCoordinator,
        *,
        schedule: Callable[[], None],
        schedule_retry: Callable[[], None],
        on_stored: Callable[[QueuePartition], None],
        on_lost: Callable[[int], None],
        is_lost: Callable[[int], bool],
    ) -> None:
        """``on_lost`` gets the partition of the state topic that must be loaded again; ``is_lost`` says whether one is about to be."""
        self._groups = groups
        self._schedule = schedule
        self._schedule_retry = schedule_retry
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._is_lost = is_lost
        self._moved: dict[QueuePartition, None] = {}
        self._stale: set[QueuePartition] = set()

    def moved(self, partition: QueuePartition) -> None:
        """The floor is not what is stored."""
        self._moved[partition] = None
        self._schedule()

    def refresh(self, partition: QueuePartition) -> None:
        """The floor stays, but its commit grows old and must not expire."""
        self._stale.add(partition)
        self.moved(partition)

    def when_stored(self, partition: QueuePartition, done: Done) -> None:
        """Tell ``done`` once the floor as it is now is committed."""
        partition.floor_waiting.append((partition.floor, done))
        self.moved(partition)

    def forget(self, partitions: Iterable[QueuePartition]) -> None:
        """Their queue is no more."""
        for partition in partitions:
            self._moved.pop(partition, None)
            self._stale.discard(partition)

    def flush(self) -> None:
        """Begin to store what moved in this turn."""
        moved, self._moved = self._moved, {}
        for partition in moved:
            self._commit(partition)

    def _commit(self, partition: QueuePartition) -> None:
        if partition.committing is not None or partition.gone:
            return
        if partition.floor == partition.committed and partition not in self._stale:
            release(partition, partition.floor)
            return
        if self._is_lost(partition.state_partition):
            # The floor in memory may lie above what is stored. Loading the state again says where it is.
            return
        if not self._groups.can_store(partition.queue.group):
            self._moved[partition] = None
            self._schedule_retry()
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
                    self._on_lost(partition.state_partition)
            for _, done in waiting:
                done(reason)
            return
        rewound, partition.rewound = partition.rewound, False
        partition.committed = floor
        if not rewound:
            self._on_stored(partition)
        release(partition, floor)
        if partition.floor != floor:
            self.moved(partition)


def release(partition: QueuePartition, floor: int) -> None:
    """Tell those who wait for this floor, or for a lesser one, that it is stored."""
    waiting = partition.floor_waiting
    if not waiting:
        return
    partition.floor_waiting = [entry for entry in waiting if entry[0] > floor]
    for needed, done in waiting:
        if needed <= floor:
            done(None)
