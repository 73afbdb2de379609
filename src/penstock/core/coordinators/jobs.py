"""Work that takes longer than a turn of the event loop: coroutines that are run a piece at a time.

A job awaits an :class:`Outcome`, any other :class:`Waiting`, or :data:`NEXT_TURN` to let others run. It cannot await asyncio's own
awaitables. All jobs together do about :data:`TURN_BYTES` of work in a turn, which they report to :meth:`Jobs.spend`. All connections are
served before the next turn.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.ports import Flusher

TURN_BYTES: Final = 1 * MIB
"""Bytes read, checked, copied and written in a turn: some milliseconds."""
CALL_BYTES: Final = 4096
"""The cost of a step that moves hardly any bytes."""
BATCH_BYTES: Final = 16 * 1024
"""The fixed cost of a batch."""

Resume = Callable[[], None]
Job = Coroutine["Waiting", None, None]


class Waiting:
    """Something that a job can await. ``wait`` calls its argument once the job can continue: later, or at once."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[Resume], None]) -> None:
        self.wait: Final = wait

    def __await__(self) -> Generator["Waiting", None, None]:
        yield self


NEXT_TURN: Final = Waiting(lambda resume: resume())


class Outcome:
    """The outcome of a call that answers later: called once, with the reason if it failed. A job can await it."""

    __slots__ = ("_resume", "is_known", "reason")

    def __init__(self) -> None:
        self.is_known = False
        self.reason: Reason | None = None
        self._resume: Resume | None = None

    def __call__(self, reason: Reason | None) -> None:
        """The call succeeded, or failed for this reason."""
        self.is_known, self.reason = True, reason
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def __await__(self) -> Generator[Waiting, None, None]:
        """Wait for the outcome; PenstockError if it is a failure."""
        yield from self.known().__await__()
        self.check()

    def known(self) -> Waiting:
        """Wait for the outcome, without raising it."""
        return Waiting(self._wait)

    def _wait(self, resume: Resume) -> None:
        if self.is_known:
            resume()
        else:
            self._resume = resume

    def check(self) -> None:
        """PenstockError if the call failed."""
        if self.reason is not None:
            raise PenstockError(self.reason)


class JointOutcome(Outcome):
    """The outcome of several calls: success if all of them succeed, else the first error, once all are known."""

    __slots__ = ("_left", "_problem")

    def __init__(self) -> None:
        super().__init__()
        self._left = 1
        self._problem: PenstockError | None = None

    def expect(self) -> None:
        """One more call."""
        self._left += 1

    def add(self, result: object) -> None:
        """One call has ended. It failed if the result is a PenstockError."""
        if self._problem is None and isinstance(result, PenstockError):
            self._problem = result
        self._left -= 1
        if not self._left:
            self(None if self._problem is None else self._problem.reason)

    def check(self) -> None:
        """Raise the first error."""
        if self._problem is not None:
            raise self._problem

    def close(self) -> "JointOutcome":
        """No more calls will be added."""
        self.add(None)
        return self


class AllOf:
    """Calls ``done`` once several outcomes are known, with the first failure if there is one."""

    __slots__ = ("_done", "_left", "_reason")

    def __init__(self, done: Callable[[Reason | None], None]) -> None:
        self._done = done
        self._left = 1
        self._reason: Reason | None = None

    def expect(self) -> Callable[[Reason | None], None]:
        """Wait for one more outcome; returns the function to call with it."""
        self._left += 1
        return self._add

    def close(self) -> None:
        """No more outcomes will be added."""
        self._add(None)

    def _add(self, reason: Reason | None) -> None:
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
        """Begin a job at the end of this turn, unless the jobs are closed."""
        self._continue(lambda: self._run(work()))

    def _continue(self, step: Callable[[], None]) -> None:
        if not self.closed:
            self._ready.append(step)
            self._schedule()

    def spend(self, size_bytes: int) -> bool:
        """Report work that was done; True if it is enough for this turn, and the job should await the next one."""
        self._left_bytes -= size_bytes
        return self._left_bytes <= 0

    def finish(self) -> None:
        """Run all jobs to the end now. They may only wait for the next turn."""
        while self._ready:
            self._ready.popleft()()

    def close(self) -> None:
        """Stop all jobs where they are."""
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
