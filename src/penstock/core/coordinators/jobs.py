"""Work that is longer than a turn of the event loop: generators that say when they can wait, run a piece at a time.

A job yields what it waits for, or ``None`` when it only lets others have their turn. All jobs of a turn together do about
:data:`TURN_BYTES` of work, which they tell by :meth:`Jobs.spend`; the next turn comes after all connections had theirs.
"""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.ports import Flusher

TURN_BYTES: Final = 1 * MIB
"""Read, checked, copied and written: some milliseconds."""
CALL_BYTES: Final = 4096
"""What a step costs that moves no bytes to speak of, in bytes."""

BATCH_BYTES: Final = 16 * 1024
"""What a batch costs however small it is."""

T = TypeVar("T")
Resume = Callable[[], None]
Wait = Callable[[Resume], None]
"""Calls what it is given once the job can go on: later, or at once."""
Steps = Generator[Wait | None, None, T]


class Outcome:
    """Something that is told once how it ended, and a job that waits for it."""

    __slots__ = ("_resume", "is_known", "reason")

    def __init__(self) -> None:
        self.is_known = False
        self.reason: Reason | None = None
        self._resume: Resume | None = None

    def __call__(self, reason: Reason | None) -> None:
        """It ended: well, or for this reason."""
        self.is_known, self.reason = True, reason
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def wait(self, resume: Resume) -> None:
        """A :data:`Wait`."""
        if self.is_known:
            resume()
        else:
            self._resume = resume

    def check(self) -> None:
        """Raise what it failed with."""
        if self.reason is not None:
            raise PenstockError(self.reason)


class Answer:
    """One answer to a caller who waits for several things: once all are known, the first failure if there was one."""

    __slots__ = ("_done", "_left", "_reason")

    def __init__(self, done: Callable[[Reason | None], None]) -> None:
        self._done = done
        self._left = 1
        self._reason: Reason | None = None

    def expect(self) -> Callable[[Reason | None], None]:
        """One more thing to wait for; returns what to call when it is known."""
        self._left += 1
        return self._tell

    def close(self) -> None:
        """Nothing more will be expected."""
        self._tell(None)

    def _tell(self, reason: Reason | None) -> None:
        self._left -= 1
        self._reason = self._reason or reason
        if not self._left:
            self._done(self._reason)


class Jobs:
    """The jobs of a node. All calls are made on the event loop."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._ready: deque[Steps[None]] = deque()
        self._scheduled = False
        self._left_bytes = 0
        self.closed = False

    def start(self, job: Steps[None]) -> None:
        """Run it, or go on with it, at the end of this turn; never when they are closed."""
        if self.closed:
            return
        self._ready.append(job)
        self._schedule()

    def spend(self, size_bytes: int) -> bool:
        """So much was done; True when it is enough for this turn, and the job should yield."""
        self._left_bytes -= size_bytes
        return self._left_bytes <= 0

    def close(self) -> None:
        """No job goes on."""
        self.closed = True
        self._ready.clear()

    def _schedule(self) -> None:
        if not self._scheduled and self._ready:
            self._scheduled = True
            self._flusher.gather(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._left_bytes = TURN_BYTES
        try:
            while self._ready and self._left_bytes > 0 and not self.closed:
                self._left_bytes -= CALL_BYTES
                self._run(self._ready.popleft())
        finally:
            self._schedule()

    def _run(self, job: Steps[None]) -> None:
        try:
            wait = next(job)
        except StopIteration:
            return
        if wait is None:
            self._ready.append(job)
        else:
            wait(partial(self.start, job))
