"""Passwords are looked at in turn: attempts that run at the same time are no way around the limits on failures.

The attempts of one client under way count as failures until they end, so no more of them run than may fail. Above the limit they are looked
at one at a time, each after its delay. A right password costs nothing: the next attempt begins at once. The number of attempts that wait is
bounded for each client.
"""

from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from penstock.core.security.failures import Client, FailedLogins
from penstock.errors import PenstockError, Reason
from penstock.limits import LOGIN_FAILURES_FREE, LOGINS_PER_CLIENT_MAX
from penstock.ports import Clock, Pause


class _Line:
    """The attempts of one client, in the order in which they came."""

    __slots__ = ("count", "looked_at", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.looked_at = 0
        self.waiting: Final[deque[Future[None]]] = deque()


class Turns:
    """The lines of all clients."""

    def __init__(self, failures: FailedLogins, clock: Clock, pause: Callable[[], Pause]) -> None:
        """``pause``: what delays at the moment."""
        self._failures: Final = failures
        self._clock: Final = clock
        self._pause: Final = pause
        self._lines: Final[dict[Client, _Line]] = {}

    @asynccontextmanager
    async def turn(self, address: str, user: str) -> AsyncGenerator[None, None]:
        """Wait for the turn of an attempt, which ends with the block; a failure is counted within it. POLICY_VIOLATION if too many wait."""
        client = self._failures.client(address, user)
        line = self._lines.setdefault(client, _Line())
        if line.count >= LOGINS_PER_CLIENT_MAX:
            raise PenstockError(Reason.POLICY_VIOLATION, "Too many clients log in at the moment. Try again later")
        line.count += 1
        try:
            await self._wait_for_user(client, user)
            await self._take(client, line)
            try:
                await self._wait(self._failures.client_delay_ms(client, self._now_ms()))
                yield
            finally:
                line.looked_at -= 1
                self._wake(client, line)
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[client]

    async def _wait_for_user(self, client: Client, user: str) -> None:
        """Others failed with the name of this user, which must not delay the other attempts of the client."""
        now_ms = self._now_ms()
        user_ms = self._failures.user_delay_ms(client, user, now_ms)
        await self._wait(user_ms - self._failures.client_delay_ms(client, now_ms))

    async def _wait(self, delay_ms: int) -> None:
        if delay_ms > 0:
            await self._pause()(delay_ms)

    async def _take(self, client: Client, line: _Line) -> None:
        if not line.waiting and self._may_begin(client, line):
            line.looked_at += 1
            return
        mine: Future[None] = Future()
        line.waiting.append(mine)
        try:
            await mine
        except BaseException:
            if mine.done() and not mine.cancelled():
                line.looked_at -= 1
            elif mine in line.waiting:
                line.waiting.remove(mine)
            self._wake(client, line)
            raise

    def _may_begin(self, client: Client, line: _Line) -> bool:
        if not line.looked_at:
            return True
        return self._failures.count(client, self._now_ms()) + line.looked_at < LOGIN_FAILURES_FREE

    def _wake(self, client: Client, line: _Line) -> None:
        while line.waiting and self._may_begin(client, line):
            following = line.waiting.popleft()
            if not following.done():
                line.looked_at += 1
                following.set_result(None)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()
