"""Work on dead letters that takes time: counting, showing, redriving, purging. Each step is a bounded piece.

A redrive first counts what it will move, so nothing moves that could not be counted. Then it keeps to its rate by the clock,
with a bounded number of moves under way. Each move is atomic in the queue core: stopped at any moment, by cancel or by a
crash, every dead letter is either open or back in its topic, and running it again goes on with those that are open.
"""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final

from msgspec import UNSET

from penstock.core.dead_letters.queue_letters import QueueLetters
from penstock.core.dead_letters.scan import Scan
from penstock.errors import PenstockError, Reason
from penstock.operations.dead_letters import DeadLetter, Progress

MOVES_MAX: Final = 256
"""Under way at a time, of one job."""
_BURST_MS: Final = 50
"""A rate is kept over stretches of this length: nothing is caught up that could not be moved for longer than that."""
_LOOK_MS: Final = 10
_FAILURES_MAX: Final = 1_000
"""A job ends after so many that could not be moved: the rest would not fare better."""


class Reading:
    """Goes over the dead letters that are meant, to count or to show them."""

    def __init__(
        self, scan: Scan, take: Callable[[list[DeadLetter]], None], done: Callable[[PenstockError | None], None]
    ) -> None:
        """``done`` is called at the end, with the error if there was one."""
        self.over = False
        self._scan = scan
        self._take = take
        self._done = done

    def next_ms(self, now_ms: int) -> int:
        """At once."""
        return now_ms

    def step(self, _: int) -> None:
        """Take a few."""
        self._take(self._scan.step())
        if self._scan.is_over:
            self._end(None)

    def fail(self, error: PenstockError) -> None:
        """It cannot continue."""
        self._end(error)

    def _end(self, error: PenstockError | None) -> None:
        self.over = True
        self._done(error)


Told = Callable[[Progress], None]
JobDone = Callable[[Progress | PenstockError], None]


class Finishing:
    """A redrive or a purge: counts, then finishes each dead letter that is meant by ``act``."""

    def __init__(
        self,
        make_scan: Callable[[], Scan],
        act: Callable[[list[DeadLetter], "Finishing"], None],
        *,
        rate_per_second: float,
        progress: Told,
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
        """How many may be begun now, by the rate."""
        self._stepped_ms = 0
        self._told: Progress | None = None

    # -- driven by the door

    def next_ms(self, now_ms: int) -> int:
        """When it has something to do, or when to look whether what is under way has ended."""
        scan = self._scan
        if scan is None:
            return now_ms
        if self._under_way and (scan.is_over or self._under_way >= MOVES_MAX):
            return self._stepped_ms + _LOOK_MS
        if scan.is_over or not self._rate:
            return now_ms
        return self._stepped_ms + max(0, ceil((1 - self._allowed) * 1000 / self._rate))

    def step(self, now_ms: int) -> None:
        """Count a few, or begin with a few."""
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
        self._tell()

    def _allowance(self, now_ms: int) -> int:
        if not self._rate:
            return MOVES_MAX
        burst = max(1.0, self._rate * _BURST_MS / 1000)
        self._allowed = min(burst, self._allowed + (now_ms - self._stepped_ms) * self._rate / 1000)
        return int(self._allowed)

    def fail(self, error: PenstockError) -> None:
        """It cannot continue; what is under way ends by itself."""
        if not self.over:
            self.over = True
            self._done(error)

    # -- told by whoever finishes the letters

    def settled(self, letters: int, reason: Reason | None, text: str | None = None) -> None:
        """So many letters are finished, or are not."""
        self._under_way -= letters
        if reason is None:
            self._finished += letters
        elif reason is Reason.NOT_IN_FLIGHT:
            self._skipped += letters
        else:
            self._failed += letters
            self._last_failure = text or reason.value

    def _tell(self) -> None:
        if self.over:
            return
        last_failure = UNSET if self._last_failure is None else self._last_failure
        status = Progress(self._total, self._finished, self._failed, self._skipped, last_failure=last_failure)
        if status != self._told:
            self._told = status
            self._progress(status)
        assert self._scan is not None
        if (self._scan.is_over or self._failed >= _FAILURES_MAX) and self._under_way == 0 and not self.over:
            self.over = True
            self._done(status)
        elif self._failed >= _FAILURES_MAX:
            self._scan.end()


def move_back_each(
    port: QueueLetters, require: Callable[[DeadLetter], None], letters: list[DeadLetter], job: Finishing
) -> None:
    """The act of a redrive. ``require`` raises PenstockError for one that the caller may not move."""
    for letter in letters:
        try:
            require(letter)
            port.move_back(letter, partial(job.settled, 1))
        except PenstockError as error:
            job.settled(1, error.reason, error.text)


def finish_together(port: QueueLetters, letters: list[DeadLetter], job: Finishing) -> None:
    """The act of a purge: the letters of one step are of one partition."""
    try:
        port.finish(letters, partial(job.settled, len(letters)))
    except PenstockError as error:
        job.settled(len(letters), error.reason, error.text)


DeadLetterJob = Reading | Finishing
"""What the door drives: :meth:`step` at :meth:`next_ms`, until ``over``. It is set from outside when nobody waits any more: what is under
way then ends by itself, and all else stays open."""
