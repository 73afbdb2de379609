"""Attempts to log in: how they are counted, delayed, logged and refused, the same for every method."""

import ipaddress
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, NoReturn

from penstock.core.security.failures import FailedLogins
from penstock.core.security.identity import Identity
from penstock.core.security.turns import Turns
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


class LoginFailed(PenstockError):
    """The refusal of one attempt, with what another attempt with the same credential needs to fail in the same way."""

    def __init__(self, refusal: PenstockError, method: Method, why: Failure, user: str, detail: str) -> None:
        super().__init__(refusal.reason, refusal.text)
        self.method: Final = method
        self.why: Final = why
        self.user: Final = user
        self.detail: Final = detail


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
        self._turns: Final = Turns(self._failures, clock, lambda: self.pause)

    async def hold_back(self, client: str) -> None:
        """Wait before a key or a token is looked at, if there were too many failures. Nobody can guess one, so they need no turn."""
        delay_ms = self._failures.delay_ms(network_of(client), "", self._clock.monotonic_ms())
        if delay_ms:
            await self.pause(delay_ms)

    def turn(self, client: str, user: str) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of a password. It is looked at within the block, where :meth:`fail` counts the failure as well.

        POLICY_VIOLATION at once if too many attempts of the client wait.
        """
        return self._turns.turn(network_of(client), user)

    def abandoned(self, client: str, user: str) -> None:
        """A client has left while its password was checked, which counts as a failure."""
        self._failures.failed(network_of(client), user, self._clock.monotonic_ms())

    def succeeded(self, client: str, user: str) -> None:
        """A user has logged in with a password."""
        self._failures.succeeded(network_of(client), user)

    def proved(self, identity: Identity, client: str) -> None:
        """A client has proved who it is, by any method."""
        self.on_login(identity.principal, client, identity.method, "")

    async def fail(self, method: Method, why: Failure, client: str, user: str = "", detail: str = "") -> NoReturn:
        """Count and log a failure, and raise it late. ``detail`` is one of a few words."""
        network, now_ms = network_of(client), self._clock.monotonic_ms()
        error = LoginFailed(self._refusal(method, why, detail), method, why, user, detail)
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


def network_of(client: str) -> str:
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
