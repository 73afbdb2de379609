"""The two ways of measuring: a rate over the last seconds, and a bucket of tokens. Both never refuse; they say how long to wait.

As Kafka: a rate is measured over eleven windows of a second, of which the last is incomplete. With ``total`` in ``elapsed`` seconds and a
limit of T per second, the delay (O - T) / T x elapsed, where O is ``total / elapsed``, is ``total / T - elapsed``.
"""

from collections import deque
from math import ceil
from typing import Final

WINDOWS: Final = 11
WINDOW_MS: Final = 1000
KEPT_MS: Final = WINDOWS * WINDOW_MS
"""What is older does not count."""
BURST_SECONDS: Final = (WINDOWS - 1) * WINDOW_MS // 1000
"""After a pause, so many seconds of the quota can be used at once."""


class Rate:
    """Amounts per second of one entity."""

    __slots__ = ("_amounts", "_starts", "limit", "total", "until_ms")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.total: float = 0
        """The sum of the windows that count."""
        self.until_ms = 0
        """When the last delay ends. The windows alone forget a large amount before its delay is over."""
        self._starts: deque[int] = deque()
        self._amounts: deque[float] = deque()

    def record(self, amount: float, now_ms: int) -> int:
        """Add an amount; returns the delay in ms that it causes."""
        starts = self._starts
        if not starts or now_ms - starts[-1] >= WINDOW_MS:
            starts.append(now_ms)
            self._amounts.append(0)
        self._amounts[-1] += amount
        self.total += amount
        delay_ms = self._over_ms(now_ms)
        if delay_ms:
            self.until_ms = max(self.until_ms, now_ms + delay_ms)
        return delay_ms

    def record_within(self, amount: float, now_ms: int) -> int:
        """The same, but the amount is not added if it would be over the quota, or a delay is not over.

        It is added if nothing else counts: an amount that is too large for the quota by itself would wait forever otherwise.
        """
        if now_ms < self.until_ms:
            return self.until_ms - now_ms
        is_first = not self._over_ms(now_ms) and not self.total
        delay_ms = self.record(amount, now_ms)
        if not delay_ms or is_first:
            return 0
        self._amounts[-1] -= amount
        self.total -= amount
        self.until_ms = now_ms
        return delay_ms

    def delay_ms(self, now_ms: int) -> int:
        """How long the client still has to wait."""
        return max(self.until_ms - now_ms, 0)

    def set_limit(self, limit: float, now_ms: int) -> None:
        """Another limit applies from now on, also to what was used before."""
        if limit != self.limit:
            self.limit = limit
            self.until_ms = now_ms + self._over_ms(now_ms)

    def _over_ms(self, now_ms: int) -> int:
        starts, amounts = self._starts, self._amounts
        while starts and now_ms - starts[0] >= KEPT_MS:
            starts.popleft()
            self.total -= amounts.popleft()
        if not starts:
            # Sums of fractions need not end at zero.
            self.total = 0
            return 0
        elapsed_ms = now_ms - starts[0]
        # A client that has just begun is measured as if it had been silent before.
        elapsed_ms += max(WINDOWS - 1 - elapsed_ms // WINDOW_MS, 0) * WINDOW_MS
        return max(round(self.total * 1000 / self.limit) - elapsed_ms, 0)

    def burst(self) -> int:
        """The most that can be used at once."""
        return max(int(self.limit * BURST_SECONDS), 1)

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing counts any more."""
        return now_ms >= self.until_ms and (not self._starts or now_ms - self._starts[-1] >= KEPT_MS)


class TokenBucket:
    """Changes of an entity: each takes a token, and tokens come back at the rate of ``limit`` per second. Tokens can be owed."""

    __slots__ = ("_at_ms", "_spent", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._spent = 0.0
        """Tokens that are missing from a full bucket."""
        self._at_ms = 0

    def record(self, amount: float, now_ms: int) -> int:
        """Take tokens, also if they have to be owed; returns the delay in ms until none are owed."""
        self._refill(now_ms)
        self._spent = max(self._spent + amount, 0.0)
        return self.delay_ms(now_ms)

    def delay_ms(self, now_ms: int) -> int:
        """How long until no token is owed."""
        self._refill(now_ms)
        owed = self._spent - self.limit * WINDOWS
        return ceil(owed * 1000 / self.limit) if owed > 0 else 0

    def set_limit(self, limit: float, now_ms: int) -> None:
        """Another limit applies from now on."""
        self._refill(now_ms)
        self.limit = limit

    def _refill(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            self._spent = max(self._spent - (now_ms - self._at_ms) * self.limit / 1000, 0.0)
            self._at_ms = now_ms

    def is_idle(self, now_ms: int) -> bool:
        """Whether the bucket is full."""
        self._refill(now_ms)
        return not self._spent
