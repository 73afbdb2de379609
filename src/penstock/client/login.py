"""Proves to a Kafka listener who the client is, on a connection that has negotiated versions.

A broker may limit how long a login is valid (KIP-368). The client then logs in again on the same connection before the time is over.
"""

import random
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.address import Address
from penstock.client.errors import AuthenticationFailed, ClientError, UnsupportedByBroker
from penstock.client.sasl import exchange_for
from penstock.client.security import ClientSecurity
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest, SaslHandshakeResponse

ROUNDS_MAX: Final = 4
"""More than any mechanism takes."""
RENEWED_AFTER: Final = (0.85, 0.95)
"""Which part of its time a login is used for; spread, so that clients do not all return at once."""
_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_NO_MECHANISM: Final = ""

A = TypeVar("A", bound=msgspec.Struct)


class Asked(Protocol):
    """The connection, as far as a login needs it."""

    @property
    def address(self) -> Address:
        """Where it leads."""
        ...

    def call(
        self, request: msgspec.Struct, answer: type[A], *, version_max: int | None = None, timeout_ms: int | None = None
    ) -> A:
        """Send and wait for the answer."""
        ...


def log_in(connection: Asked, security: ClientSecurity, *, timeout_ms: int) -> float | None:
    """Authenticate. Returns after how many seconds to do it again, or None. :class:`AuthenticationFailed` if it is refused."""
    address = connection.address
    mechanism, exchange = exchange_for(security)
    try:
        offered = connection.call(
            SaslHandshakeRequest(mechanism=mechanism.value), SaslHandshakeResponse, timeout_ms=timeout_ms
        )
        if offered.error_code:
            raise AuthenticationFailed(_refused_handshake(address, mechanism, offered))
        message: bytes | None = exchange.start()
        for _ in range(ROUNDS_MAX):
            answer = connection.call(
                SaslAuthenticateRequest(auth_bytes=message or b""), SaslAuthenticateResponse, timeout_ms=timeout_ms
            )
            if answer.error_code:
                raise AuthenticationFailed(_refused(address, security, answer.error_message))
            try:
                message = exchange.answer(answer.auth_bytes)
            except AuthenticationFailed as error:
                raise AuthenticationFailed(f"Authentication with {address} failed. {error}") from None
            if message is None:
                return _renewal(answer.session_lifetime_ms)
    except UnsupportedByBroker as error:
        raise AuthenticationFailed(f"{address} does not support authentication: {error}") from error
    raise AuthenticationFailed(f"Authentication with {address} failed: the server asks for too many messages")


def requires_login(connection: Asked, *, timeout_ms: int) -> bool:
    """Whether the listener requires credentials. A listener without authentication answers that no login is expected."""
    try:
        answer = connection.call(
            SaslHandshakeRequest(mechanism=_NO_MECHANISM), SaslHandshakeResponse, timeout_ms=timeout_ms
        )
    except ClientError:
        return False
    return answer.error_code == _UNSUPPORTED_MECHANISM


def _renewal(lifetime_ms: int) -> float | None:
    if lifetime_ms <= 0:
        return None
    return lifetime_ms / 1000 * random.uniform(*RENEWED_AFTER)  # noqa: S311  spreads logins, hides nothing


def _refused_handshake(address: Address, mechanism: str, answer: SaslHandshakeResponse) -> str:
    if answer.error_code == _UNSUPPORTED_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "no mechanism"
        return f"{address} does not support {mechanism}: choose one of its mechanisms with --sasl-mechanism ({offered})"
    if answer.error_code == _ILLEGAL_STATE:
        return f"{address} does not expect a login: remove the credentials, or use the address of a listener that requires them"
    return f"{address} refused to begin the login (error {answer.error_code})"


def _refused(address: Address, security: ClientSecurity, message: str | None) -> str:
    who = "the token" if security.user is None else f"user {security.user!r}"
    why = f": {message.rstrip('.')}" if message else ""
    return f"{address} refused {who}{why}; check the credentials"
