"""The machine's clock and randomness, behind the ports."""

import time
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
