"""The login of a connection for JSON lines: ``{"type": "auth", "user": ..., "password": ...}`` or ``"token"``, before anything else.

An API key is a token. Lines before the login are short, the time is bounded, and the third failure closes the connection, also after
the login. A later ``auth`` line renews a login that ends.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.security.identity import Bearer, Credential, Identity, Password, Secret
from penstock.errors import PenstockError, Reason
from penstock.gateways.tcp.answers import answer, failure
from penstock.limits import LOGIN_LINE_FAILURES_MAX, LOGIN_MS_MAX
from penstock.wire.jsonlines import Line

if TYPE_CHECKING:
    from penstock.gateways.tcp.connection import TcpConnection

AUTH: Final = "auth"
_REQUIRED: Final = (
    'Authentication is required: send {"type": "auth", "user": "...", "password": "..."} or a "token" first'
)
ENDED: Final = "The login has ended: connect and authenticate again"


class AuthRequest(msgspec.Struct, frozen=True):
    """An ``auth`` line."""

    type: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return "AuthRequest()"


_decode: Final = msgspec.json.Decoder(AuthRequest).decode


class LineLogin:
    """The login of one connection."""

    def __init__(self, connection: "TcpConnection") -> None:
        self._connection = connection
        self._authenticator: Final = connection.broker.authenticator
        self._clock: Final = connection.broker.clock
        self._began_ms = self._clock.monotonic_ms()
        self._failures = 0

    @property
    def is_late(self) -> bool:
        """Whether the client takes too long. Waits that the broker imposes do not count."""
        return self._clock.monotonic_ms() - self._began_ms > LOGIN_MS_MAX

    async def take(self, line: Line) -> bytes:
        """The answer to a line before the login."""
        began_ms = self._clock.monotonic_ms()
        try:
            identity = await self._identity(line)
        except PenstockError as error:
            self._count_failure()
            self._connection.gateway.count_error(error.reason.name)
            return failure(error.text)
        finally:
            self._began_ms += self._clock.monotonic_ms() - began_ms
        self._connection.log_in(identity)
        return _welcome(identity)

    async def renew(self, line: Line) -> bytes:
        """The answer to an ``auth`` line of a client that is logged in."""
        connection = self._connection
        try:
            identity = await self._identity(line)
            if identity.principal != connection.identity.principal:
                raise PenstockError(
                    Reason.AUTHENTICATION_FAILED, "A login can be renewed only by the principal that began it"
                )
        except PenstockError:
            self._count_failure()
            raise
        connection.log_in(identity)
        return _welcome(identity)

    def _count_failure(self) -> None:
        """Close the connection after the last one, once it is answered. A login that succeeds forgives none."""
        self._failures += 1
        if self._failures >= LOGIN_LINE_FAILURES_MAX:
            self._connection.close()

    async def _identity(self, line: Line) -> Identity:
        credential = _credential(line)
        if credential is None:
            raise PenstockError(Reason.AUTHENTICATION_REQUIRED, _REQUIRED)
        connection = self._connection
        return await self._authenticator.authenticate(
            credential, connection.caller.client, is_private=connection.is_private
        )


def _credential(line: Line) -> Credential | None:
    try:
        request = _decode(line or b"")
    except (ValueError, RecursionError):
        return None
    if request.type != AUTH:
        return None
    if request.token is not None:
        return Bearer(Secret(request.token.encode()))
    if request.user is None or request.password is None:
        return None
    return Password(request.user, Secret(request.password.encode()))


def _welcome(identity: Identity) -> bytes:
    return answer({"principal": identity.principal, "expiresMs": identity.expires_ms})
