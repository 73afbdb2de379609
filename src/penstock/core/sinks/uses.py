"""When a sink was last used, and whether it has been idle for long enough to be deleted.

A use is an open, a commit, an abort or a staged batch. Within a process it is known exactly, by the monotonic clock. After a restart
it is known from ``__sinks``: each commit is stored there, and another use only if the stored one is :data:`USE_STEP_MS` older. So
tasks that open a sink again and again cause no writes.

Invariant: a sink is never considered idle too early. Uses that the previous process may not have stored are allowed for, and clients
have :data:`GRACE_MS` after a start of the broker to come back.
"""

from typing import Final

from msgspec.structs import replace

from penstock.core.sinks.sink import Sink
from penstock.core.sinks.stored import StoredSink
from penstock.errors import PenstockError, Reason
from penstock.limits import SINK_REMEMBER_MS_MIN
from penstock.ports import Clock
from penstock.settings import SinkSettings

USE_STEP_MS: Final = 3_600_000
"""How much older than the last use the stored one may be."""
GRACE_MS: Final = 3_600_000
"""How long after a start no unused sink is deleted."""


class Uses:
    """The uses of all sinks of a node."""

    def __init__(self, clock: Clock, settings: SinkSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._loaded_ms = clock.monotonic_ms()
        self._apart_ms = clock.now_ms() - self._loaded_ms
        """The difference between the wall clock and the monotonic clock."""

    def load(self) -> None:
        """Sinks are being loaded: their earlier uses were in another process."""
        self._loaded_ms = self._clock.monotonic_ms()

    def loaded(self, name: str, stored: StoredSink) -> Sink:
        """A stored sink."""
        idle_ms = max(1, self._clock.now_ms() - stored.last_used_ms)
        return Sink(name, stored, self._loaded_ms - idle_ms)

    def touch(self, sink: Sink) -> None:
        """The sink is used now."""
        sink.touched_ms = self._clock.monotonic_ms()

    def staged_to(self, sink: Sink, end_offset: int) -> None:
        """The current end of its staging log; new records are a use."""
        if sink.seen_offset is not None and end_offset != sink.seen_offset:
            self.touch(sink)
        sink.seen_offset = end_offset

    def last_used_ms(self, sink: Sink) -> int:
        """Unix time of the last known use."""
        apart_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        # The two clocks round differently. Ignore a difference of 1 ms, so that repeated calls return the same time.
        if abs(apart_ms - self._apart_ms) > 1:
            self._apart_ms = apart_ms
        return max(sink.stored.last_used_ms, self._apart_ms + sink.touched_ms)

    def remembered_ms(self, sink: Sink) -> int:
        """How long its last batch is remembered after the last use: as requested when it was opened, up to the limit."""
        wished_ms = sink.stored.remember_ms
        return self._settings.remember_ms if wished_ms is None else min(wished_ms, self._settings.remember_ms)

    def is_idle(self, sink: Sink, limit_ms: int) -> bool:
        """Whether it was not used for this long."""
        now_ms = self._clock.monotonic_ms()
        if sink.touched_ms < self._loaded_ms:
            if now_ms - self._loaded_ms < min(limit_ms, GRACE_MS):
                return False
            limit_ms += USE_STEP_MS
        return now_ms - sink.touched_ms >= limit_ms

    def is_unsaved(self, sink: Sink, remember_ms: int | None = None) -> bool:
        """Whether its last use, or a new ``remember_ms``, must be stored."""
        if remember_ms is not None and remember_ms != sink.stored.remember_ms:
            return True
        return self.last_used_ms(sink) - sink.stored.last_used_ms >= USE_STEP_MS

    def saved(self, sink: Sink, remember_ms: int | None = None) -> StoredSink:
        """The state to store for that."""
        wished_ms = sink.stored.remember_ms if remember_ms is None else remember_ms
        return replace(sink.stored, used_ms=self.last_used_ms(sink), remember_ms=wished_ms)


def check_remember_ms(remember_ms: int | None) -> None:
    """INVALID_REQUEST if the time is too short for clients to come back."""
    if remember_ms is not None and remember_ms < SINK_REMEMBER_MS_MIN:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"remember_ms is {remember_ms}, but the minimum is {SINK_REMEMBER_MS_MIN}: a repeated batch must find its sink. Delete sinks that are no longer needed",
        )
