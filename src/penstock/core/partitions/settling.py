"""Lets clients read their writes: waits until records that were acknowledged before their commit (acks=0, acks=1) can be read.

Readers see only committed records. A client that produced with acks=1 and then asks for the end of the partition expects its record to
be included. So the answer waits for the sync that is under way.
"""

from asyncio import Future
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from penstock.core.partitions.partition import Partition
from penstock.limits import SETTLE_MS_MAX
from penstock.ports import Clock


class _Wait:
    """One caller, and the partitions for which it still waits."""

    def __init__(self, until_ms: int, done: Callable[[], None]) -> None:
        self.until_ms = until_ms
        self.done: Final = done
        self.offsets: dict[Partition, int] = {}
        self.wakes: dict[Partition, Callable[[], None]] = {}


class Settling:
    """All waits of a node: for a leader's own sync until it ends, and for replication for at most ``SETTLE_MS_MAX``."""

    def __init__(self, clock: Clock, wake_at: Callable[[int], None]) -> None:
        self._clock = clock
        self._wake_at = wake_at
        self._waits: dict[_Wait, None] = {}

    def wait(self, partitions: Iterable[Partition], done: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``done`` once all records that these partitions have acknowledged are committed, or waiting no longer helps.

        If it is called before this returns, there is nothing to cancel.
        """
        wait = _Wait(self._clock.monotonic_ms() + SETTLE_MS_MAX, done)
        for partition in partitions:
            offset = partition.acknowledged_offset
            if partition.is_settling(offset):
                wait.offsets[partition] = offset
        if not wait.offsets:
            done()
            return None
        for partition in wait.offsets:
            wake = wait.wakes[partition] = partial(self._moved, wait, partition)
            partition.watch(wake)
        self._waits[wait] = None
        self._wake_at(wait.until_ms)
        return partial(self._cancel, wait)

    async def settled(self, *partitions: Partition) -> None:
        """The same for a coroutine."""
        future: Future[None] = Future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        cancel = self.wait(partitions, done)
        try:
            await future
        finally:
            if cancel is not None:
                cancel()

    def _moved(self, wait: _Wait, partition: Partition) -> None:
        offset = wait.offsets.get(partition)
        if offset is not None and not partition.is_settling(offset):
            self._drop(wait, partition)

    def _drop(self, wait: _Wait, partition: Partition) -> None:
        del wait.offsets[partition]
        partition.unwatch(wait.wakes.pop(partition))
        if not wait.offsets and wait in self._waits:
            del self._waits[wait]
            wait.done()

    def _cancel(self, wait: _Wait) -> None:
        if self._waits.pop(wait, 0) is None:
            for partition in list(wait.offsets):
                self._drop(wait, partition)

    def next_deadline_ms(self) -> int | None:
        """When the first caller has waited long enough."""
        return min((wait.until_ms for wait in self._waits), default=None)

    def tick(self, now_ms: int) -> None:
        """Answer callers that have waited long enough for replication."""
        for wait in [wait for wait in self._waits if wait.until_ms <= now_ms]:
            wait.until_ms = now_ms + SETTLE_MS_MAX
            for partition, offset in list(wait.offsets.items()):
                if partition.is_held_here(offset):
                    self._drop(wait, partition)
