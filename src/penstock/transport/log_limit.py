"""Limits log lines that strangers can cause, so that they cannot fill the disk."""

from collections.abc import Callable
from typing import Final

_LINES_MAX: Final = 10
_INTERVAL_SECONDS: Final = 60.0


class LogLimit:
    """At most ten lines a minute. The first line of the next minute says how many were left out."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._lines = 0

    def may_log(self) -> bool:
        """Whether there may be a line now."""
        self._lines += 1
        return self._lines <= _LINES_MAX or self._now() - self._began > _INTERVAL_SECONDS

    def left_out(self) -> str:
        """What to add to the line: how many lines there were not."""
        more = max(self._lines - 1 - _LINES_MAX, 0)
        if self._now() - self._began > _INTERVAL_SECONDS:
            self._began, self._lines = self._now(), 1
        return f" left_out={more}" if more else ""
