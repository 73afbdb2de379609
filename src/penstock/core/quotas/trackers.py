"""A bounded number of entities that are measured.

Entities that used nothing lately are forgotten to make room, which loses nothing. If there are still too many, new ones share one tracker,
with the smallest of their limits, so that a client that keeps changing its name gains nothing.
"""

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from penstock.core.quotas.rates import Rate, TokenBucket

_SWEEP_MS: Final = 1000
"""Above the bound, not every new entity looks through all others."""
Tracker = TypeVar("Tracker", Rate, TokenBucket)


class Trackers(Generic[Tracker]):
    """The trackers of entities by their keys."""

    def __init__(self, make: Callable[[float], Tracker], count_max: int, forgotten: Callable[[], None]) -> None:
        """``forgotten`` is called when some were dropped: a tracker that is held elsewhere must be looked up again."""
        self._make: Callable[[float], Tracker] = make
        self._count_max = count_max
        self._forgotten = forgotten
        self._found: dict[Hashable, Tracker] = {}
        self._others: Tracker | None = None
        self._swept_ms: int | None = None

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable, limit: float, now_ms: int) -> Tracker:
        """The tracker of an entity, with this limit from now on."""
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= self._count_max:
                self._make_room(now_ms)
            if len(self._found) >= self._count_max:
                return self._shared(limit, now_ms)
            found = self._found[key] = self._make(limit)
        found.set_limit(limit, now_ms)
        return found

    def _shared(self, limit: float, now_ms: int) -> Tracker:
        if self._others is None:
            self._others = self._make(limit)
        self._others.set_limit(min(self._others.limit, limit), now_ms)
        return self._others

    def _make_room(self, now_ms: int) -> None:
        if self._swept_ms is not None and now_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = now_ms
        self._found = {key: tracker for key, tracker in self._found.items() if not tracker.is_idle(now_ms)}
        if len(self._found) < self._count_max:
            self._others = None
            self._forgotten()
