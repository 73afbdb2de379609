"""How much one micro-batch takes: an upper bound shared out in proportion, and a lower one that waits for more.

Pure arithmetic over offsets; the time is handed in.
"""

from __future__ import annotations

from penstock.spark.source.bounds import Offsets


def share(limit: int, start: Offsets, end: Offsets) -> Offsets:
    """New ends that take about ``limit`` offsets in all, each partition in proportion to what it has waiting.

    A partition with little waiting still gets one offset, so that none starves; the sum may then pass the limit by as many. A partition
    without a start, or with none waiting, keeps its end.
    """
    waiting = {place: end[place] - start[place] for place in end if end[place] > start.get(place, end[place])}
    total = sum(waiting.values())
    shared = dict(end)
    for place, count in waiting.items():
        # In whole numbers: offsets can be beyond what a float holds exactly.
        part = limit * count
        taken = max(1, part // total)
        shared[place] = min(end[place], start[place] + taken)
    return shared


class Patience:
    """Holds batches back until enough is waiting, or too long has passed since the last (``minOffsetsPerTrigger``)."""

    def __init__(self, offsets_min: int, delay_ms: int) -> None:
        self._offsets_min = offsets_min
        self._delay_ms = delay_ms
        self._last_ms: int | None = None

    def holds_back(self, start: Offsets, end: Offsets, now_ms: int) -> bool:
        """Whether to wait. The first batch of a query never does."""
        due = self._last_ms is None or now_ms - self._last_ms >= self._delay_ms
        waiting = sum(offset - start.get(place, 0) for place, offset in end.items())
        if not due and waiting < self._offsets_min:
            return True
        self._last_ms = now_ms
        return False
