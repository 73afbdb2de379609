"""The bound on what repeats: of the same event only the first few in a minute are written, and then a summary with their number."""

from collections.abc import Hashable
from typing import Final, NamedTuple

from penstock.core.audit.record import AuditRecord
from penstock.limits import AUDIT_REPEATED_MAX

PERIOD_MS: Final = 60_000
_OTHERS: Final = object()


class _Seen:
    """One event of this minute."""

    __slots__ = ("first_ms", "last", "left_out", "written")

    def __init__(self, first_ms: int) -> None:
        self.first_ms = first_ms
        self.written = 0
        self.left_out = 0
        self.last: AuditRecord | None = None


class Summary(NamedTuple):
    """Events that were not written: how many, and the last of them."""

    record: AuditRecord
    left_out: int


class Limiter:
    """Events by what makes them the same."""

    def __init__(self, keys_max: int = AUDIT_REPEATED_MAX) -> None:
        self._keys_max = keys_max
        self._seen: dict[Hashable, _Seen] = {}

    def admits(self, key: Hashable, record: AuditRecord, most: int, monotonic_ms: int) -> bool:
        """Whether the event is written now. If not, a summary follows."""
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= self._keys_max:
                # Above the bound, all others count as one.
                key = _OTHERS
            seen = self._seen.setdefault(key, _Seen(monotonic_ms))
        if seen.written < most:
            seen.written += 1
            return True
        seen.left_out += 1
        seen.last = record
        return False

    def next_ms(self) -> int | None:
        """When :meth:`ended` has something to do."""
        # The oldest was added first.
        first = next(iter(self._seen.values()), None)
        return None if first is None else first.first_ms + PERIOD_MS

    def ended(self, monotonic_ms: int) -> list[Summary]:
        """The summaries of the minutes that are over."""
        summaries: list[Summary] = []
        for key, seen in list(self._seen.items()):
            if monotonic_ms - seen.first_ms < PERIOD_MS:
                break
            del self._seen[key]
            if seen.left_out and seen.last is not None:
                summaries.append(Summary(seen.last, seen.left_out))
        return summaries
