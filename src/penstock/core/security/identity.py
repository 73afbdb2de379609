"""What a client proves, and who it then is.

A gateway makes a credential of what its protocol carries, and gives it to the authenticator, which answers with an identity.
Secrets are bytes in :class:`Secret`, which never shows them.
"""

from typing import Final, NamedTuple

import msgspec

from penstock.core.security.access import ANONYMOUS, Caller, Principal
from penstock.limits import PRINCIPAL_CHARS_MAX
from penstock.operations.access import USER

RESERVED: Final = frozenset({"*", ANONYMOUS.removeprefix(USER)})
"""Names with a meaning of their own in access rules."""


class Secret:
    """Bytes that must not be shown: neither ``repr``, nor a log line, nor an error has them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        raise TypeError("Compare secrets with hmac.compare_digest")

    __hash__ = None  # type: ignore[assignment]


def check_principal(name: str) -> None:
    """ValueError unless a token or a certificate may give this name to a principal."""
    if not name or len(name) > PRINCIPAL_CHARS_MAX or not name.isprintable():
        raise ValueError("The name is empty, too long, or has control characters")
    if name in RESERVED:
        raise ValueError(f"Nobody may be called {name}")


class Password(NamedTuple):
    """A user's name and password, or the id and the secret of an API key: SASL PLAIN, HTTP Basic, the ``auth`` line."""

    user: str
    password: Secret


class Bearer(NamedTuple):
    """An API key or a token (JWT); which of them, its form tells."""

    token: Secret


class Certificate(NamedTuple):
    """The principal's name that the rules made of a verified client certificate."""

    name: str


Credential = Password | Bearer | Certificate


class Identity(msgspec.Struct, frozen=True):
    """Who a connection or a request is."""

    principal: Principal = ANONYMOUS
    groups: tuple[str, ...] = ()
    """The groups that a token claims, without ``Group:``."""
    method: str = ""
    """How it was proved: ``plain``, ``scram-sha-256``, ``api-key``, ``token``, ``certificate``; empty if it was not."""
    expires_ms: int | None = None
    """When a token ends, in wall time."""
    key_id: str = ""
    """The API key that was used."""
    generation: str = ""
    """Which password of the user was used: a new one ends what the old one began."""

    @property
    def name(self) -> str:
        """The principal without ``User:``."""
        return self.principal.removeprefix(USER)

    def on(self, caller: Caller) -> Caller:
        """The same caller, now with this identity: all of it is replaced."""
        return caller._replace(principal=self.principal, groups=self.groups, method=self.method)


NOBODY: Final = Identity()
