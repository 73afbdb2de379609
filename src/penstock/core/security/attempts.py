"""Attempts to log in: how they are counted, delayed, logged and refused, the same for every method."""

import ipaddress
from collections.abc import Callable
from enum import Enum
from typing import Final, NoReturn

from penstock.core.security.failures import FailedLogins
from penstock.core.security.identity import Identity
from penstock.errors import PenstockError, Reason
from penstock.limits import LOGIN_DELAY_MS
from penstock.meters import Meters
from penstock.operations.access import USER
from penstock.ports import Clock, Pause, Report

_ADDRESS_BITS: Final = 64
"""One customer of a provider has at least so many addresses of IPv6: they count as one."""


OnLogin = Callable[[str, str, str, str], None]
"""Is called with the principal, the address of the client, the method, and why the login failed; empty if it succeeded."""


class Method(Enum):
    """How a caller authenticated, in the words of the metric and the audit log."""

    PLAIN = "plain"
    SCRAM_256 = "scram-sha-256"
    SCRAM_512 = "scram-sha-512"
    API_KEY = "api-key"
    TOKEN = "token"  # noqa: S105  the word, not a secret
    CERTIFICATE = "certificate"


BY_PASSWORD: Final = frozenset({Method.PLAIN.value, Method.SCRAM_256.value, Method.SCRAM_512.value})
"""The methods by which a user shows that it knows its password."""


class Failure(Enum):
    """Why a credential was refused: for the log and the metric, never for the client."""

    UNKNOWN_USER = "unknown-user"
    WRONG_PASSWORD = "wrong-password"  # noqa: S105  the word, not a secret
    WRONG_KEY = "wrong-key"
    EXPIRED = "expired"
    MALFORMED = "malformed"
    NOT_PRIVATE = "not-private"
    ADMINISTRATOR = "administrator"
    TOKEN = "token"  # noqa: S105  the word, not a secret


class Attempts:
    """The attempts of all clients of a node."""

    def __init__(self, clock: Clock, meters: Meters, report: Report, exists: Callable[[str], bool]) -> None:
        """``exists``: whether there is a user of this name."""
        self.pause: Pause = _no_pause
        """Delays answers; set by the runtime."""
        self.on_login: OnLogin = _not_recorded
        """The audit log; set by the broker."""
        self._clock = clock
        self._meters = meters
        self._report = report
        self._exists = exists
        self._failures: Final = FailedLogins()

    async def hold_back(self, client: str, user: str) -> None:
        """Wait before an attempt is looked at, if there were too many failures."""
        delay_ms = self._failures.delay_ms(_network(client), user, self._clock.monotonic_ms())
        if delay_ms:
            await self.pause(delay_ms)

    def succeeded(self, client: str, user: str) -> None:
        """A user has logged in with a password."""
        self._failures.succeeded(_network(client), user)

    def proved(self, identity: Identity, client: str) -> None:
        """A client has proved who it is, by any method."""
        self.on_login(identity.principal, client, identity.method, "")

    async def fail(self, method: Method, why: Failure, client: str, user: str = "", detail: str = "") -> NoReturn:
        """Count and log a failure, and raise it late. ``detail`` is one of a few words."""
        network, now_ms = _network(client), self._clock.monotonic_ms()
        error = self._refusal(method, why, detail)
        known = user if self._exists(user) else "?"
        if not self._failures.delay_ms(network, "", now_ms):
            # Above the limit nothing is logged, so that nobody fills the disk. An unknown name is not shown: it may be a password.
            reason = f"{why.value} {detail}".rstrip()
            self._report(f"login failed: method={method.value} reason={reason!r} client={client} user={known}")
        self.on_login(f"{USER}{known}", client, method.value, f"{why.value} {detail}".rstrip())
        self._failures.failed(network, user, now_ms)
        await self.pause(LOGIN_DELAY_MS)
        raise error

    def refused(self, method: Method, why: Failure) -> PenstockError:
        """The refusal of a client whose address is not known here, counted and recorded."""
        self.on_login(f"{USER}?", "", method.value, why.value)
        return self._refusal(method, why)

    def _refusal(self, method: Method, why: Failure, detail: str = "") -> PenstockError:
        """The counted refusal, with one text for all causes that could tell something."""
        self._meters.authentication_failures.add((method.value, detail or why.value))
        return PenstockError(Reason.AUTHENTICATION_FAILED, _NOT_PRIVATE if why is Failure.NOT_PRIVATE else _FAILED)


_FAILED: Final = "Authentication failed: check the user and the password, or the API key or token"
_NOT_PRIVATE: Final = "Authentication failed: passwords, API keys and tokens are refused on a connection that others can read. Connect with TLS"


def _network(client: str) -> str:
    """The address whose failures are counted together."""
    if ":" not in client:
        return client
    try:
        network = ipaddress.ip_network((client.partition("%")[0], _ADDRESS_BITS), strict=False)
    except ValueError:
        return client
    return str(network)


def _not_recorded(_principal: str, _client: str, _method: str, _failure: str) -> None:
    """Of tests without an audit log."""


async def _no_pause(_milliseconds: int) -> None:
    """Of tests, whose clock does not move."""
