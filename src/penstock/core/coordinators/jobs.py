"""Work that is longer than a turn of the event loop: coroutines that say when they can wait, run a piece at a time.

A job awaits an :class:`Outcome`, any other :class:`Waiting`, or :data:`NEXT_TURN` when it only lets others have their turn. It cannot await
what belongs to the event loop. All jobs of a turn together do about :data:`TURN_BYTES` of work, which they report by :meth:`Jobs.spend`; the
next turn comes after all connections had theirs.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.ports import Flusher

TURN_BYTES: Final = 1 * MIB
"""Read, checked, copied and written: some milliseconds."""
CALL_BYTES: Final = 4096
"""What a step costs that moves hardly any bytes, in bytes."""
BATCH_BYTES: Final = 16 * 1024
"""What a batch costs however small it is."""

Resume = Callable[[], None]
Job = Coroutine["Waiting", None, None]


class Waiting:
    """Something that a job can await. ``wait`` calls what it is given once the job can continue: later, or at once."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[Resume], None]) -> None:
        self.wait: Final = wait

    def __await__(self) -> Generator["Waiting", None, None]:
        yield self


NEXT_TURN: Final = Waiting(lambda resume: resume())


class Outcome:
    """The end of something: it is called once, with the reason if that failed, and a job may wait for it."""

    __slots__ = ("_resume", "is_known", "reason")

    def __init__(self) -> None:
        self.is_known = False
        self.reason: Reason | None = None
        self._resume: Resume | None = None

    def __call__(self, reason: Reason | None) -> None:
        """It succeeded, or failed for this reason."""
        self.is_known, self.reason = True, reason
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def __await__(self) -> Generator[Waiting, None, None]:
        """Wait for the end; PenstockError if it failed."""
        yield from self.known().__await__()
        self.check()

    def known(self) -> Waiting:
        """Wait for the end, without an error."""
        return Waiting(self._wait)

    def _wait(self, resume: Resume) -> None:
        if self.is_known:
            resume()
        else:
            self._resume = resume

    def check(self) -> None:
        """PenstockError if it failed."""
        if self.reason is not None:
            raise PenstockError(self.reason)


class AllOf:
    """One answer to a caller who waits for several things: the first failure, if there is one, once all are known."""

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
        self._ready: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._left_bytes = 0
        self.closed = False

    def start(self, work: Callable[[], Job]) -> None:
        """Begin a job at the end of this turn; never when they are closed."""
        self._continue(lambda: self._run(work()))

    def _continue(self, step: Callable[[], None]) -> None:
        if not self.closed:
            self._ready.append(step)
            self._schedule()

    def spend(self, size_bytes: int) -> bool:
        """Report work that was done; True when it is enough for this turn, and the job should await the next one."""
        self._left_bytes -= size_bytes
        return self._left_bytes <= 0

    def finish(self) -> None:
        """Run all jobs to their ends now. None of them may wait for anything but the next turn."""
        while self._ready:
            self._ready.popleft()()

    def close(self) -> None:
        """No job continues."""
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
                self._ready.popleft()()
        finally:
            self._schedule()

    def _run(self, job: Job) -> None:
        try:
            waiting = job.send(None)
        except StopIteration:
            return
        waiting.wait(partial(self._continue, partial(self._run, job)))
