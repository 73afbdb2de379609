"""How fast replicas that are not in sync may be copied: so many bytes a second for all that one node sends, or receives, at most a second's worth at once.

Only copies that no producer waits for are counted.
"""


class ByteBudget:
    """Fills with time, and is taken from. It may be overdrawn by the end of a batch, and is behind by that much then. Times are monotonic."""

    __slots__ = ("_left", "_now_ms", "bytes_per_second")

    def __init__(self, bytes_per_second: int) -> None:
        assert bytes_per_second > 0, "nothing would ever be copied"
        self.bytes_per_second = bytes_per_second
        """May change at any time."""
        self._left = float(bytes_per_second)
        self._now_ms: int | None = None

    def left(self, now_ms: int) -> int:
        """How many bytes may be copied now; 0 when there are none."""
        earned = 0.0
        if self._now_ms is not None and now_ms > self._now_ms:
            earned = (now_ms - self._now_ms) * self.bytes_per_second / 1000
        self._left = min(self._left + earned, float(self.bytes_per_second))
        self._now_ms = now_ms if self._now_ms is None else max(now_ms, self._now_ms)
        return max(0, int(self._left))

    def take(self, count: int) -> None:
        """So many bytes were copied."""
        self._left -= count

    def empty_ms(self) -> int:
        """How long until there is something again, after :meth:`left` found nothing."""
        return max(1, int((1 - self._left) * 1000 / self.bytes_per_second) + 1)
