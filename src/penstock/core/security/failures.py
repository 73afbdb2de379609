"""Failed logins, by address and by user: above ten a minute each further attempt waits, longer and longer.

An attempt with the right password succeeds after its delay. A user is not delayed at an address from which it has
logged in before, except for failures with its name there, so that others cannot make it wait. Memory is bounded: the oldest entries are
forgotten.
"""

from collections import OrderedDict
from typing import Final, NamedTuple, TypeVar

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


K = TypeVar("K")


class Client(NamedTuple):
    """An address, or one user at it."""

    address: str
    user: str = ""
    """A user that has logged in from there; empty for all others."""


class _Level(NamedTuple):
    at_ms: int
    failures: float


class FailedLogins:
    """Each failure raises the level of its address and its user, which falls by ten a minute. Times are monotonic."""

    def __init__(self, kept_max: int = LOGIN_FAILURES_KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._by_client: OrderedDict[Client, _Level] = OrderedDict()
        self._by_user: OrderedDict[str, _Level] = OrderedDict()
        self._welcome: OrderedDict[tuple[str, str], None] = OrderedDict()

    def client(self, address: str, user: str) -> Client:
        """Whose attempts count together: those of an address, and for themselves those of a user that has logged in from there."""
        return Client(address, user if (address, user) in self._welcome else "")

    def count(self, client: Client, now_ms: int) -> int:
        """The failures of a client that are not forgiven yet."""
        return int(_level(self._by_client, client, now_ms))

    def client_delay_ms(self, client: Client, now_ms: int) -> int:
        """How long an attempt waits for the failures of its client."""
        return _delay_ms(_level(self._by_client, client, now_ms))

    def user_delay_ms(self, client: Client, user: str, now_ms: int) -> int:
        """How long an attempt waits for the failures with the name of its user, wherever they came from."""
        return 0 if client.user or not user else _delay_ms(_level(self._by_user, user, now_ms))

    def delay_ms(self, address: str, user: str, now_ms: int) -> int:
        """How long an attempt waits before it is looked at."""
        client = self.client(address, user)
        return max(self.client_delay_ms(client, now_ms), self.user_delay_ms(client, user, now_ms))

    def failed(self, address: str, user: str, now_ms: int) -> None:
        """An attempt has failed; ``user`` is empty if it names nobody."""
        client = self.client(address, user)
        self._add(self._by_client, Client(address), now_ms)
        if client.user:
            self._add(self._by_client, client, now_ms)
        if user:
            self._add(self._by_user, user, now_ms)

    def succeeded(self, address: str, user: str) -> None:
        """A user has logged in."""
        self._welcome[address, user] = None
        self._welcome.move_to_end((address, user))
        if len(self._welcome) > self._kept_max:
            self._welcome.popitem(last=False)

    def _add(self, levels: "OrderedDict[K, _Level]", key: K, now_ms: int) -> None:
        levels[key] = _Level(now_ms, min(_LEVEL_MAX, _level(levels, key, now_ms) + 1))
        levels.move_to_end(key)
        if len(levels) > self._kept_max:
            levels.popitem(last=False)


def _level(levels: "OrderedDict[K, _Level]", key: K, now_ms: int) -> float:
    level = levels.get(key)
    if level is None:
        return 0
    return max(0, level.failures - (now_ms - level.at_ms) / LOGIN_FAILURE_FORGIVEN_MS)


def _delay_ms(failures: float) -> int:
    over = int(failures) - LOGIN_FAILURES_FREE
    return 0 if over < 0 else min(LOGIN_DELAY_MS_MAX, LOGIN_DELAY_MS << (over + 1))
