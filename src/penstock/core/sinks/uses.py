"""When a sink was last used, and whether that is long enough ago for it to go.

A use is an open, a commit, an abort or a staged batch. Within a process it is known exactly, by the monotonic clock, which nobody can set.
Over a restart it is known from ``__sinks``: commits are stored there anyway, and other uses whenever the stored one is
:data:`USE_STEP_MS` old, so that tasks which open a sink again and again cost no writes.

Invariant: a sink is never found idle earlier than it is. What the process before may not have stored is added, and whoever was
kept away by a broker that was down has :data:`GRACE_MS` after its start to come back.
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
"""By so much the stored use may be older than the last one."""
GRACE_MS: Final = 3_600_000
"""For so long after a start nothing goes that nobody has used since."""


class Uses:
    """The uses of all sinks of a node."""

    def __init__(self, clock: Clock, settings: SinkSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._loaded_ms = clock.monotonic_ms()
        self._apart_ms = clock.now_ms() - self._loaded_ms
        """How far the clock that people set is from the monotonic one."""

    def load(self) -> None:
        """Sinks are read from now on: what they were used for before was in another process."""
        self._loaded_ms = self._clock.monotonic_ms()

    def loaded(self, name: str, stored: StoredSink) -> Sink:
        """A sink as it was stored."""
        idle_ms = max(1, self._clock.now_ms() - stored.last_used_ms)
        return Sink(name, stored, self._loaded_ms - idle_ms)

    def touch(self, sink: Sink) -> None:
        """It is used now."""
        sink.touched_ms = self._clock.monotonic_ms()

    def staged_to(self, sink: Sink, end_offset: int) -> None:
        """Its staging log ends there now; what came since it was last looked at is a use."""
        if sink.seen_offset is not None and end_offset != sink.seen_offset:
            self.touch(sink)
        sink.seen_offset = end_offset

    def last_used_ms(self, sink: Sink) -> int:
        """Unix time of the last use that is known."""
        apart_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        # The two count their milliseconds at different moments: a use must not move to and fro by one for who asks twice.
        if abs(apart_ms - self._apart_ms) > 1:
            self._apart_ms = apart_ms
        return max(sink.stored.last_used_ms, self._apart_ms + sink.touched_ms)

    def remembered_ms(self, sink: Sink) -> int:
        """For how long its last batch is remembered after the last use: as its opener wished, within the bound."""
        wished_ms = sink.stored.remember_ms
        return self._settings.remember_ms if wished_ms is None else min(wished_ms, self._settings.remember_ms)

    def is_idle(self, sink: Sink, limit_ms: int) -> bool:
        """Whether nobody used it for so long."""
        now_ms = self._clock.monotonic_ms()
        if sink.touched_ms < self._loaded_ms:
            if now_ms - self._loaded_ms < min(limit_ms, GRACE_MS):
                return False
            limit_ms += USE_STEP_MS
        return now_ms - sink.touched_ms >= limit_ms

    def is_unsaved(self, sink: Sink, remember_ms: int | None = None) -> bool:
        """Whether its last use, or what its opener wishes, has to be stored."""
        if remember_ms is not None and remember_ms != sink.stored.remember_ms:
            return True
        return self.last_used_ms(sink) - sink.stored.last_used_ms >= USE_STEP_MS

    def saved(self, sink: Sink, remember_ms: int | None = None) -> StoredSink:
        """What is to be stored for that."""
        wished_ms = sink.stored.remember_ms if remember_ms is None else remember_ms
        return replace(sink.stored, used_ms=self.last_used_ms(sink), remember_ms=wished_ms)


def check_remember_ms(remember_ms: int | None) -> None:
    """INVALID_REQUEST for a time in which nobody could come back."""
    if remember_ms is not None and remember_ms < SINK_REMEMBER_MS_MIN:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"remember_ms is {remember_ms}, but the minimum is {SINK_REMEMBER_MS_MIN}: a repeated batch must find its sink. Delete sinks that are no longer needed",
        )
