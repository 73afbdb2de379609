"""Who sends a request: the credential in its head, or the certificate of its connection.

Every request is authenticated by itself, from its head, before its path is looked at and its body is read. ``Authorization: Basic`` has
a user and a password, or an API key; ``Bearer`` an API key or a token. Without it, the client's certificate counts, if TLS asked for
one. The authenticator remembers credentials that it has checked, so only the first request with one has to wait.

Whether the process runs and is ready may be asked without a credential; the answer is one word.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from penstock.core.security.authenticator import Authenticator
from penstock.core.security.identity import NOBODY, Certificate, Credential, Identity
from penstock.errors import PenstockError, Reason
from penstock.gateways.authorization import NAME as AUTHORIZATION
from penstock.gateways.authorization import credential_in
from penstock.gateways.http.server.answers import RawHeaders
from penstock.ports import Clock

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
"""May be asked by everyone: load balancers and service managers have no credentials."""

REMEMBERED_MS: Final = 60_000
"""How long the lane uses a login before the authenticator is asked again: a key of a provider that was withdrawn counts no longer."""

_DIGEST_BYTES: Final = 32


class Login(NamedTuple):
    """An identity, the version of the users in which it was current, and how long it is remembered."""

    identity: Identity
    version: int
    until_ms: int


class Client(Protocol):
    """What is known of a connection."""

    certificate: str | None
    is_private: bool

    @property
    def host(self) -> str:
        """The address of the client."""
        ...


class Logins:
    """Of all requests to a gateway."""

    def __init__(self, authenticator: Authenticator, clock: Clock, key: bytes) -> None:
        """``key``: random; only this process can make digests of heads."""
        self.is_required: Final = authenticator.is_required
        self._authenticator: Final = authenticator
        self._clock: Final = clock
        self._key: Final = key

    @property
    def on_changed(self) -> list[Callable[[], None]]:
        """Called after a change of users or keys."""
        return self._authenticator.on_changed

    def digest(self, head: bytes) -> bytes:
        """What the table of the lane has instead of a head, which may contain a credential."""
        return blake2b(head, digest_size=_DIGEST_BYTES, key=self._key).digest()

    def remembered(self, headers: RawHeaders) -> Login | None:
        """The login of a head that came over a private connection, if its credential was checked a short time ago."""
        try:
            credential = credential_of(headers)
        except PenstockError:
            return None
        if credential is None:
            return None
        version = self._authenticator.version
        identity = self._authenticator.remembered(credential, is_private=True)
        return None if identity is None else self._login(identity, version)

    def _login(self, identity: Identity, version: int) -> Login:
        return Login(identity, version, self._clock.monotonic_ms() + REMEMBERED_MS)

    def holds(self, login: Login) -> bool:
        """Whether the identity is still current. False as well if any user has changed: it must be looked up again."""
        if login.version != self._authenticator.version or self._clock.monotonic_ms() >= login.until_ms:
            return False
        expires_ms = login.identity.expires_ms
        return expires_ms is None or self._clock.now_ms() < expires_ms

    def is_current(self, identity: Identity) -> bool:
        """Whether a stream with this identity may continue."""
        return identity is NOBODY or self._authenticator.is_current(identity)

    async def login(self, headers: RawHeaders, client: Client) -> Login:
        """The login of a request. AUTHENTICATION_REQUIRED without a credential, AUTHENTICATION_FAILED with a wrong one."""
        credential = credential_of(headers)
        if credential is None:
            if client.certificate is None:
                raise PenstockError(
                    Reason.AUTHENTICATION_REQUIRED,
                    "Authentication is required; send a user and password (Basic), or an API key or token (Bearer)",
                )
            credential = Certificate(client.certificate)
        version = self._authenticator.version
        identity = await self._authenticator.authenticate(credential, client.host, is_private=client.is_private)
        return self._login(identity, version)


def has_credential(headers: RawHeaders, client: Client) -> bool:
    """Whether a request says who sends it."""
    return client.certificate is not None or any(name == AUTHORIZATION for name, _ in headers)


def without_credential(headers: RawHeaders) -> RawHeaders:
    """The headers that handlers may see."""
    return [header for header in headers if header[0] != AUTHORIZATION]


def credential_of(headers: RawHeaders) -> Credential | None:
    """The credential in a head, or None without one. AUTHENTICATION_FAILED if it cannot be read."""
    return credential_in([value for name, value in headers if name == AUTHORIZATION])
