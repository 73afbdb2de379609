"""Timers that are cheap to reset: a heartbeat only writes a number.

Each timer has at most one live entry in the heap. Moving a deadline to a later time does not change the heap: the entry comes up early,
and is then put back with the new deadline. So a heartbeat costs the same with one member or a million, and ``next_ms`` may be earlier
than the next deadline, but never later.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

_SPARE_ENTRIES = 64
"""The heap is not rebuilt for fewer dead entries than this."""


class Timer:
    """Calls ``fire`` at a deadline, unless it is moved or cancelled before."""

    __slots__ = ("deadline_ms", "entry_ms", "fire")

    def __init__(self, fire: Callable[[], None] = lambda: None) -> None:
        self.fire = fire
        self.deadline_ms: int | None = None
        self.entry_ms: int | None = None


class Deadlines:
    """The timers of one coordinator, in monotonic milliseconds."""

    __slots__ = ("_armed", "_heap", "_sequence", "on_sooner")

    def __init__(self) -> None:
        self.on_sooner: Callable[[int], None] = lambda _at_ms: None
        """Called with the new :meth:`next_ms` when a deadline is set that is before all others."""
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._armed = 0

    def set(self, timer: Timer, deadline_ms: int) -> None:
        """Fire ``timer`` at ``deadline_ms`` instead of any earlier deadline."""
        if timer.deadline_ms is None:
            self._armed += 1
        timer.deadline_ms = deadline_ms
        if timer.entry_ms is None or deadline_ms < timer.entry_ms:
            self._push(timer, deadline_ms)

    def cancel(self, timer: Timer) -> None:
        """Do not fire ``timer``. Does nothing if it is not set."""
        if timer.deadline_ms is None:
            return
        timer.deadline_ms = None
        self._armed -= 1
        if len(self._heap) > 2 * self._armed + _SPARE_ENTRIES:
            self._drop_dead_entries()

    def next_ms(self) -> int | None:
        """When to call :meth:`expire` next."""
        heap = self._heap
        while heap:
            deadline_ms, _, timer = heap[0]
            if timer.entry_ms == deadline_ms and timer.deadline_ms is not None:
                return deadline_ms
            heappop(heap)
            if timer.entry_ms == deadline_ms:
                timer.entry_ms = None
        return None

    def expire(self, now_ms: int) -> None:
        """Fire all timers that are due."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            entry_ms, _, timer = heappop(heap)
            if timer.entry_ms != entry_ms:
                continue  # a later call brought the deadline forward: another entry is the live one
            timer.entry_ms = None
            if timer.deadline_ms is None:
                continue
            if timer.deadline_ms > now_ms:
                self._push(timer, timer.deadline_ms)
                continue
            timer.deadline_ms = None
            self._armed -= 1
            timer.fire()

    def _push(self, timer: Timer, deadline_ms: int) -> None:
        timer.entry_ms = deadline_ms
        self._sequence += 1
        heappush(self._heap, (deadline_ms, self._sequence, timer))
        if self._heap[0][1] == self._sequence:
            self.on_sooner(deadline_ms)

    def _drop_dead_entries(self) -> None:
        kept: list[tuple[int, int, Timer]] = []
        for entry in self._heap:
            timer = entry[2]
            if timer.entry_ms != entry[0]:
                continue
            if timer.deadline_ms is None:
                timer.entry_ms = None
            else:
                kept.append(entry)
        heapify(kept)
        self._heap[:] = kept  # in place, because expire() iterates over it when a fired timer cancels others
