"""The client's half of SASL: PLAIN, SCRAM (RFC 5802, 7677) and OAUTHBEARER (RFC 7628), as bytes in and bytes out.

An exchange is used for one login: send :meth:`~Exchange.start`, then what :meth:`~Exchange.answer` returns for each response, until that is
None. SCRAM also proves that the server knows the user's keys; an exchange that ends without this proof is refused.
"""

import base64
import hashlib
import hmac
import secrets
from typing import Final, Protocol

from penstock.client.errors import AuthenticationFailed
from penstock.client.security import ClientSecurity, Mechanism

ITERATIONS_MIN: Final = 4_096
"""As Kafka requires: fewer make a password easy to guess from what is sent."""
ITERATIONS_MAX: Final = 1_000_000
"""About a second of work, so that a false server cannot keep this client busy for long."""
API_KEY_START: Final = "psk_"
"""An API key is psk_ID_SECRET."""
NONCE_BYTES: Final = 18
SALT_BYTES_MAX: Final = 1_024
_GS2_HEADER: Final = "n,,"
_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}
_REFUSED: Final = "The user name or the password is wrong"


class Exchange(Protocol):
    """One login."""

    def start(self) -> bytes:
        """The first message."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The message after the server's; None when the login is complete. :class:`AuthenticationFailed` if the server is not to be trusted."""
        ...


def exchange_for(security: ClientSecurity) -> tuple[Mechanism, Exchange]:
    """The mechanism and the exchange for these credentials; InvalidSecurity if a file cannot be read."""
    mechanism = security.sasl_mechanism
    assert mechanism is not None, "there are credentials"
    if mechanism is Mechanism.OAUTHBEARER:
        token = security.read_token()
        if security.mechanism is None and token.startswith(API_KEY_START):
            # A key of Penstock works without an identity provider: it is a password, and names its user itself.
            return Mechanism.PLAIN, PlainExchange(token.split("_")[1], token)
        return mechanism, BearerExchange(token)
    assert security.user is not None, "the security was checked"
    if mechanism is Mechanism.PLAIN:
        return mechanism, PlainExchange(security.user, security.read_password())
    return mechanism, ScramExchange(_HASHES[mechanism], security.user, security.read_password())


class PlainExchange:
    """Sends the password itself."""

    def __init__(self, user: str, password: str) -> None:
        self._message: Final = f"\0{user}\0{password}".encode()

    def start(self) -> bytes:
        """User and password."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """Complete; the server says nothing."""
        del challenge
        return None


class BearerExchange:
    """Sends a token. A server that refuses it first says why, and waits for an empty message."""

    def __init__(self, token: str) -> None:
        self._message: Final = f"{_GS2_HEADER}\x01auth=Bearer {token}\x01\x01".encode()

    def start(self) -> bytes:
        """The token."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """Complete, unless the server says what is wrong."""
        return b"\x01" if challenge else None


class ScramExchange:
    """Proves knowledge of the password without sending it, and has the server prove the same."""

    def __init__(self, hash_name: str, user: str, password: str, *, nonce: str | None = None) -> None:
        """``nonce`` is for the examples in the RFCs."""
        self._hash: Final = hash_name
        self._password: Final = password.encode()
        self._nonce: Final = nonce or base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare: Final = f"n={name},r={self._nonce}"
        self._server_signature: bytes | None = None

    def start(self) -> bytes:
        """The user and a nonce."""
        return (_GS2_HEADER + self._bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """The proof; then the check of the server's."""
        if self._server_signature is None:
            return self._proof(challenge)
        fields = _fields(challenge, "v")
        if "e" in fields:
            raise AuthenticationFailed(_REFUSED)
        if not hmac.compare_digest(_decoded(fields["v"]), self._server_signature):
            raise AuthenticationFailed("The server did not prove that it knows the user: it may be another server")
        return None

    def _proof(self, challenge: bytes) -> bytes:
        fields = _fields(challenge, "rsi")
        if "e" in fields:
            raise AuthenticationFailed(_REFUSED)
        nonce, salt = fields["r"], _decoded(fields["s"])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailed("The nonce of the server does not continue the one that was sent")
        if not salt or len(salt) > SALT_BYTES_MAX:
            raise AuthenticationFailed("The salt of the server is empty or too long")
        text = fields["i"]
        iterations = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(ITERATIONS_MAX)) + 1 else 0
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"The server asks for {text[:20]!r} iterations instead of {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        final = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        transcript = f"{self._bare},{challenge.decode()},{final}".encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._keyed(salted, b"Client Key")
        signature = self._keyed(hashlib.new(self._hash, client_key).digest(), transcript)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._keyed(self._keyed(salted, b"Server Key"), transcript)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _keyed(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes, needed: str) -> dict[str, str]:
    """The attributes of a message of the server. A mandatory extension (``m``), which this client cannot know, is refused."""
    try:
        pairs = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError:
        raise AuthenticationFailed("The message of the server is not text") from None
    fields = {name: value for name, equals, value in pairs if equals}
    if "e" not in fields and (len(fields) < len(pairs) or "m" in fields or any(name not in fields for name in needed)):
        raise AuthenticationFailed("The message of the server is not SCRAM")
    return fields


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationFailed("The message of the server is not SCRAM") from None
