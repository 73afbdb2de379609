"""The machine's clock and randomness."""

import asyncio
import os
import time
from collections.abc import Awaitable
from uuid import UUID, uuid4


class SystemClock:
    """The :class:`penstock.ports.Clock` of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class SystemEntropy:
    """The :class:`penstock.ports.Entropy` of this machine."""

    def uuid(self) -> UUID:
        return uuid4()

    def secret(self, count: int) -> bytes:
        return os.urandom(count)


async def pause_ms(milliseconds: int) -> None:
    """The real :data:`penstock.ports.Pause`."""
    await asyncio.sleep(milliseconds / 1000)


async def within_ms(timeout_ms: int, waited: Awaitable[None]) -> bool:
    """The real :data:`penstock.ports.Within`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await waited
    except TimeoutError:
        return False
    return True
