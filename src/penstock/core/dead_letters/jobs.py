"""Jobs on dead letters, which count, show, redrive and purge them in bounded steps.

A redrive first counts what it will move. Then it moves dead letters at its rate, with a limit on moves in progress. Each move is atomic:
whenever a redrive is interrupted, by cancel or by a crash, every dead letter is either open or back in its topic, and the next redrive
continues with the open ones.
"""

from collections.abc import Callable
from math import ceil
from typing import Final

from msgspec import UNSET

from penstock.core.dead_letters.scan import Scan
from penstock.errors import PenstockError, Reason
from penstock.operations.dead_letters import DeadLetter, Progress

MOVES_MAX: Final = 256
"""Moves in progress per job."""
_BURST_MS: Final = 50
"""A delay of up to this length is made up for, a longer one is not."""
_LOOK_MS: Final = 10
_FAILURES_MAX: Final = 1_000
"""A job ends after this many failures: the rest would most likely fail too."""


class Reading:
    """Reads the selected dead letters, to count or to show them."""

    def __init__(
        self, scan: Scan, take: Callable[[list[DeadLetter]], None], done: Callable[[PenstockError | None], None]
    ) -> None:
        """``done`` is called at the end, with the error if it failed."""
        self.over = False
        self._scan = scan
        self._take = take
        self._done = done

    def next_ms(self, now_ms: int) -> int:
        """Monotonic time of the next step."""
        return now_ms

    def step(self, _: int) -> None:
        """Read a few."""
        self._take(self._scan.step())
        if self._scan.is_over:
            self.over = True
            self._done(None)

    def fail(self, error: PenstockError) -> None:
        """The job cannot continue."""
        self.over = True
        self._done(error)


OnProgress = Callable[[Progress], None]
JobDone = Callable[[Progress | PenstockError], None]


class Finishing:
    """A redrive or a purge: counts the selected dead letters, then finishes them by ``act``."""

    def __init__(
        self,
        make_scan: Callable[[], Scan],
        act: Callable[[list[DeadLetter], "Finishing"], None],
        rate_per_second: float,
        progress: OnProgress,
        done: JobDone,
    ) -> None:
        self.over = False
        self._make_scan = make_scan
        self._counting: Scan | None = make_scan()
        self._scan: Scan | None = None
        self._act = act
        self._rate = rate_per_second
        self._progress = progress
        self._done = done
        self._total = 0
        self._under_way = 0
        self._finished = self._failed = self._skipped = 0
        self._last_failure: str | None = None
        self._allowed = 1.0
        """How many may begin now at this rate."""
        self._stepped_ms = 0
        self._reported: Progress | None = None

    def next_ms(self, now_ms: int) -> int:
        """Monotonic time of the next step, which may only check whether moves have ended."""
        scan = self._scan
        if scan is None:
            return now_ms
        if self._under_way and (scan.is_over or self._under_way >= MOVES_MAX):
            return self._stepped_ms + _LOOK_MS
        if scan.is_over or not self._rate:
            return now_ms
        return self._stepped_ms + max(0, ceil((1 - self._allowed) * 1000 / self._rate))

    def step(self, now_ms: int) -> None:
        """Count a few, or begin to finish a few."""
        if self._counting is not None:
            self._total += len(self._counting.step())
            if not self._counting.is_over:
                return
            self._counting = None
            self._scan = self._make_scan()
            self._stepped_ms = now_ms
        scan = self._scan
        assert scan is not None
        room = min(self._allowance(now_ms), MOVES_MAX - self._under_way)
        self._stepped_ms = now_ms
        if room > 0 and not scan.is_over and not self.over:
            letters = scan.step(room)
            if self._rate:
                self._allowed -= len(letters)
            self._under_way += len(letters)
            if letters:
                self._act(letters, self)
        self._report()

    def _allowance(self, now_ms: int) -> int:
        if not self._rate:
            return MOVES_MAX
        burst = max(1.0, self._rate * _BURST_MS / 1000)
        self._allowed = min(burst, self._allowed + (now_ms - self._stepped_ms) * self._rate / 1000)
        return int(self._allowed)

    def fail(self, error: PenstockError) -> None:
        """The job cannot continue; moves in progress end by themselves."""
        if not self.over:
            self.over = True
            self._done(error)

    def settled(self, letters: int, reason: Reason | None, text: str | None = None) -> None:
        """``act`` has finished this number of dead letters, or failed."""
        self._under_way -= letters
        if reason is None:
            self._finished += letters
        elif reason is Reason.NOT_IN_FLIGHT:
            self._skipped += letters
        else:
            self._failed += letters
            self._last_failure = text or reason.value

    def _report(self) -> None:
        if self.over:
            return
        last_failure = UNSET if self._last_failure is None else self._last_failure
        status = Progress(self._total, self._finished, self._failed, self._skipped, last_failure=last_failure)
        if status != self._reported:
            self._reported = status
            self._progress(status)
        assert self._scan is not None
        if (self._scan.is_over or self._failed >= _FAILURES_MAX) and self._under_way == 0 and not self.over:
            self.over = True
            self._done(status)
        elif self._failed >= _FAILURES_MAX:
            self._scan.end()


DeadLetterJob = Reading | Finishing
"""Call ``step`` at ``next_ms`` until it is ``over``. Set ``over`` to cancel it: moves in progress end by themselves, and the rest stays open."""
