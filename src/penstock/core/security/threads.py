"""Work that takes milliseconds, such as hashing a password, a bounded amount of it at the same time, outside the event loop."""

from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import PenstockError, Reason
from penstock.limits import LOGIN_THREADS, LOGINS_WAITING_MAX
from penstock.ports import OffLoop

T = TypeVar("T")


class Threads:
    """A few threads with a bounded queue. A caller that is cancelled does not free its thread before the work is done."""

    def __init__(self, off_loop: OffLoop, count: int = LOGIN_THREADS, waiting_max: int = LOGINS_WAITING_MAX) -> None:
        self._off_loop = off_loop
        self._free = count
        self._waiting_max = waiting_max
        self._waiting: Final[deque[Future[None]]] = deque()

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``. POLICY_VIOLATION if too many wait already."""
        if self._free:
            self._free -= 1
        elif len(self._waiting) >= self._waiting_max:
            raise PenstockError(Reason.POLICY_VIOLATION, "Too many clients log in at the moment. Try again later")
        else:
            await self._turn()
        found: list[T | BaseException] = []
        done: Future[None] = Future()

        def run() -> None:
            try:
                found.append(work())
            except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
                found.append(error)

        def ended() -> None:
            self._release()
            if not done.done():
                done.set_result(None)

        self._off_loop(run, ended)
        await done
        result = found[0]
        if isinstance(result, BaseException):
            raise result
        return result

    async def _turn(self) -> None:
        mine: Future[None] = Future()
        self._waiting.append(mine)
        try:
            await mine
        except BaseException:
            if mine.done() and not mine.cancelled():
                self._release()
            elif mine in self._waiting:
                self._waiting.remove(mine)
            raise

    def _release(self) -> None:
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
