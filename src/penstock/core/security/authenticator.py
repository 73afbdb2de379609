"""Turns credentials into identities."""

from collections.abc import Callable
from typing import Protocol

from penstock.core.security.identity import Credential, Identity


class Authenticator(Protocol):
    """What gateways ask, on the event loop."""

    @property
    def is_required(self) -> bool:
        """Whether clients must authenticate. If not, gateways ask nothing and everyone is ANONYMOUS."""
        ...

    @property
    def version(self) -> int:
        """Changes when a user or a key changes: what was remembered of an identity must be checked again."""
        ...

    @property
    def on_changed(self) -> list[Callable[[], None]]:
        """Called after such a change."""
        ...

    async def authenticate(self, credential: Credential, client: str, *, is_private: bool) -> Identity:
        """The identity that a credential proves. PenstockError AUTHENTICATION_FAILED, late, with one text for every cause.

        ``client`` is the address, for the limits on failures. ``is_private``: the bytes cannot be read on the way (TLS or loopback);
        otherwise a credential that can be replayed is refused.
        """
        ...

    def remembered(self, credential: Credential, *, is_private: bool) -> Identity | None:
        """The identity of a credential that was checked a short time ago and is still valid, without waiting."""
        ...

    def is_current(self, identity: Identity) -> bool:
        """Whether the identity still holds: its user and key exist, and its token has not expired."""
        ...
