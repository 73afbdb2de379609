"""The states of a queue's records, fetched over HTTP as ranges and single states, and looked up by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.client import QueueAdmin
    from penstock.operations.queues import TouchedRecord

_NO_END: Final = 1 << 62
MOVING: Final = "moving"
"""A dead letter that is being moved back to its topic."""


class Window:
    """The states of the records of one partition in a range of offsets, at one moment."""

    def __init__(
        self,
        first: int,
        stop: int,
        floor: int,
        touched: list[TouchedRecord],
        finished: list[tuple[int, int]],
    ) -> None:
        self._first = first
        self._stop = stop
        self._floor = floor
        self.touched: Final = touched
        """Unfinished records that have a state, by offset."""
        self._touched_at = np.array([each.offset for each in touched], dtype=np.int64)
        self._starts = np.array([start for start, _ in finished], dtype=np.int64)
        self._stops = np.array([stop for _, stop in finished], dtype=np.int64)

    def covers(self, first: int, last: int) -> bool:
        """Whether these offsets and all between them are in the range."""
        return self._first <= first and last < self._stop

    def finished(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these offsets are finished."""
        below = offsets < self._floor
        if not len(self._starts):
            return below
        run = np.searchsorted(self._starts, offsets, side="right") - 1
        return below | ((run >= 0) & (offsets < self._stops[run]))

    def places(self, offsets: NDArray[np.int64]) -> pa.Array:
        """The index of each offset in ``touched``; null if it is not there."""
        if not len(self._touched_at):
            return pa.nulls(len(offsets), pa.int64())
        place = np.searchsorted(self._touched_at, offsets)
        found = self._touched_at[np.minimum(place, len(self._touched_at) - 1)] == offsets
        return pa.array(place, mask=~found)


class QueueStates:
    """Fetches the states of one queue as its records are read, and keeps the last answer, because records are read by offset."""

    def __init__(self, admin: QueueAdmin, topic: str, group: str) -> None:
        self._admin = admin
        self._topic = topic
        self._group = group
        self._windows: dict[int, Window] = {}

    def window(self, partition: int, first: int, last: int) -> Window:
        """The states of the records from ``first`` to ``last``."""
        kept = self._windows.get(partition)
        if kept is None or not kept.covers(first, last):
            kept = self._windows[partition] = self._ask(partition, first, last)
        return kept

    def _ask(self, partition: int, first: int, last: int) -> Window:
        touched: list[TouchedRecord] = []
        finished: list[tuple[int, int]] = []
        at = first
        while True:
            page = self._admin.states(self._topic, self._group, partition, at)
            touched += page.records
            finished += page.finished
            stop = _NO_END if page.next_offset is None else page.next_offset
            if stop > last:
                return Window(first, stop, page.floor, touched, finished)
            at = stop
