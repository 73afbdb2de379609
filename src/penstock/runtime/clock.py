"""The machine's clock and randomness, behind the ports."""

import asyncio
import time
from collections.abc import Awaitable
from uuid import UUID, uuid4


class SystemClock:
    """Wall and monotonic time of this machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""
        return time.monotonic_ns() // 1_000_000


class SystemEntropy:
    """Randomness of this machine."""

    def uuid(self) -> UUID:
        """A random UUID."""
        return uuid4()


async def within_ms(timeout_ms: int, waited: Awaitable[None]) -> bool:
    """Wait at most so long; whether it came in time."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await waited
    except TimeoutError:
        return False
    return True
