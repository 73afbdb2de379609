"""The size of a micro-batch: a maximum that is divided among partitions, and a minimum to wait for."""

from __future__ import annotations

from penstock.spark.source.bounds import Offsets


def share(limit: int, start: Offsets, end: Offsets) -> Offsets:
    """New ends with about ``limit`` offsets in total, in proportion to the number that each partition has.

    Each partition gets at least one offset if it has any, so the sum may exceed the limit. A partition without a start, or without new
    records, keeps its end.
    """
    waiting = {place: end[place] - start[place] for place in end if end[place] > start.get(place, end[place])}
    total = sum(waiting.values())
    shared = dict(end)
    for place, count in waiting.items():
        # Integers, because offsets can exceed the precision of floats.
        part = limit * count
        taken = max(1, part // total)
        shared[place] = min(end[place], start[place] + taken)
    return shared


class BatchDelay:
    """Delays a batch until enough records are there or enough time has passed since the last (``minOffsetsPerTrigger``)."""

    def __init__(self, offsets_min: int, delay_ms: int) -> None:
        self._offsets_min = offsets_min
        self._delay_ms = delay_ms
        self._last_ms: int | None = None

    def must_wait(self, start: Offsets, end: Offsets, now_ms: int) -> bool:
        """Whether to wait. The first batch of a query is not delayed."""
        due = self._last_ms is None or now_ms - self._last_ms >= self._delay_ms
        waiting = sum(offset - start.get(place, 0) for place, offset in end.items())
        if not due and waiting < self._offsets_min:
            return True
        self._last_ms = now_ms
        return False
