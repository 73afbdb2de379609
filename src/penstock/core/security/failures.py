"""Failed logins, by address and by user: above ten a minute each further attempt waits, longer and longer.

Nobody is locked out: an attempt with the right password succeeds after its delay. A user's failures do not delay an address from which
the user has logged in before, so that others cannot make it wait. Memory is bounded: the oldest entries are forgotten.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.limits import (
    LOGIN_DELAY_MS,
    LOGIN_DELAY_MS_MAX,
    LOGIN_FAILURE_FORGIVEN_MS,
    LOGIN_FAILURES_FREE,
    LOGIN_FAILURES_KEPT_MAX,
)

_OVER_MAX: Final = (LOGIN_DELAY_MS_MAX // LOGIN_DELAY_MS).bit_length()
"""With so many failures above the free ones, the delay is the longest."""
_LEVEL_MAX: Final = LOGIN_FAILURES_FREE + _OVER_MAX


class _Level(NamedTuple):
    at_ms: int
    failures: float


class FailedLogins:
    """Each failure raises the level of its address and its user, which falls by ten a minute. Times are monotonic."""

    def __init__(self, kept_max: int = LOGIN_FAILURES_KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._by_address: OrderedDict[str, _Level] = OrderedDict()
        self._by_user: OrderedDict[str, _Level] = OrderedDict()
        self._welcome: OrderedDict[tuple[str, str], None] = OrderedDict()

    def delay_ms(self, address: str, user: str, now_ms: int) -> int:
        """How long an attempt waits before it is looked at."""
        failures = _level(self._by_address, address, now_ms)
        if user and (address, user) not in self._welcome:
            failures = max(failures, _level(self._by_user, user, now_ms))
        over = int(failures) - LOGIN_FAILURES_FREE
        return 0 if over < 0 else min(LOGIN_DELAY_MS_MAX, LOGIN_DELAY_MS << (over + 1))

    def failed(self, address: str, user: str, now_ms: int) -> None:
        """An attempt has failed; ``user`` is empty if it names nobody."""
        self._add(self._by_address, address, now_ms)
        if user:
            self._add(self._by_user, user, now_ms)

    def succeeded(self, address: str, user: str) -> None:
        """A user has logged in."""
        self._welcome[address, user] = None
        self._welcome.move_to_end((address, user))
        if len(self._welcome) > self._kept_max:
            self._welcome.popitem(last=False)

    def _add(self, levels: "OrderedDict[str, _Level]", key: str, now_ms: int) -> None:
        levels[key] = _Level(now_ms, min(_LEVEL_MAX, _level(levels, key, now_ms) + 1))
        levels.move_to_end(key)
        if len(levels) > self._kept_max:
            levels.popitem(last=False)


def _level(levels: "OrderedDict[str, _Level]", key: str, now_ms: int) -> float:
    level = levels.get(key)
    if level is None:
        return 0
    return max(0, level.failures - (now_ms - level.at_ms) / LOGIN_FAILURE_FORGIVEN_MS)
