"""API keys: long random passwords for programs, each with an owner, whose rights it has.

A key is ``psk_ID_SECRET`` with 32 random bytes as its secret. In the store, ``security/keys/ID`` has the SHA-256 of the secret, from which it
cannot be found, so a key is shown once, when it is made. A key belongs to one user: it ends with the user, also if another one gets
the same name later.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from penstock.core.security.followed import Followed
from penstock.core.security.users import API_KEY_START, Users
from penstock.errors import PenstockError, Reason
from penstock.limits import API_KEY_NAME_CHARS_MAX, API_KEYS_MAX, API_KEYS_PER_USER_MAX
from penstock.metadata.port import Compare, Delete, MetadataStore, Put
from penstock.ports import Entropy

PREFIX: Final = "security/keys/"
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32


class KeyRecord(msgspec.Struct, frozen=True):
    """An API key as it is stored."""

    user: str
    user_id: str
    name: str
    """What it is for, in its owner's words."""
    created_ms: int
    expires_ms: int | None
    secret_sha256: bytes

    def __repr__(self) -> str:
        return f"KeyRecord(user={self.user!r}, name={self.name!r})"


def is_api_key(text: str) -> bool:
    """Whether this looks like an API key, and so is no password and no token."""
    return text.startswith(API_KEY_START)


class ApiKeys:
    """All keys. Empty until :meth:`load`."""

    def __init__(self, store: MetadataStore, users: Users, entropy: Entropy, changed: Callable[[], None]) -> None:
        self._store = store
        self._users = users
        self._entropy = entropy
        self._keys: Final = Followed(store, PREFIX, KeyRecord, changed)
        self.load: Final = self._keys.load

    def get(self, key_id: str) -> KeyRecord | None:
        """The key, if it is stored and its owner still exists."""
        found = self._keys.get(key_id)
        if found is None:
            return None
        owner = self._users.get(found.user)
        return found if owner is not None and owner.id == found.user_id else None

    def of(self, user: str | None = None) -> Iterator[tuple[str, KeyRecord]]:
        """The keys of one user, or of all."""
        for key_id, record in self._keys.items():
            if user in (None, record.user) and self.get(key_id) is not None:
                yield key_id, record

    def stored_keys(self, user: str) -> list[str]:
        """The names in the store of all keys of a user, also of an earlier one of that name."""
        return [self._keys.key(key_id) for key_id, record in self._keys.items() if record.user == user]

    def verified(self, key: str) -> tuple[str, KeyRecord] | None:
        """The id and the record of a key that is right; it may have expired."""
        key_id, _, secret = key.removeprefix(API_KEY_START).partition("_")
        found = self.get(key_id)
        given = hashlib.sha256(_decoded(secret)).digest()
        # The comparison is made in any case, so that its time tells nothing.
        expected = bytes(32) if found is None else found.secret_sha256
        return (key_id, found) if hmac.compare_digest(given, expected) and found is not None else None

    async def create(self, user: str, name: str, now_ms: int, expires_ms: int | None) -> tuple[str, str]:
        """A new key of a user: its id, and the key itself, which nobody can read again."""
        owner = self._users.require(user)
        if len(name) > API_KEY_NAME_CHARS_MAX or not name.isprintable():
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"The name of a key has at most {API_KEY_NAME_CHARS_MAX} characters and no control characters",
            )
        if expires_ms is not None and expires_ms <= now_ms:
            raise PenstockError(Reason.INVALID_REQUEST, "The key would have expired already: give a later time")
        self._check_room(user)
        key_id, secret = self._entropy.secret(_ID_BYTES).hex(), self._entropy.secret(_SECRET_BYTES)
        record = KeyRecord(user, owner.id, name, now_ms, expires_ms, hashlib.sha256(secret).digest())
        stored, found = self._keys.key(key_id), self._users.stored(user)
        compares = [
            Compare(stored, create_revision=0),
            Compare(self._users.key(user), mod_revision=0 if found is None else found.revision),
        ]
        if not (await self._store.txn(compares, [Put(stored, msgspec.json.encode(record))])).succeeded:
            raise PenstockError(Reason.REQUEST_TIMED_OUT, f"The user {user!r} was changed at the same time. Try again")
        encoded = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
        return key_id, f"{API_KEY_START}{key_id}_{encoded}"

    def _check_room(self, user: str) -> None:
        if len(self._keys) >= API_KEYS_MAX or len(self.stored_keys(user)) >= API_KEYS_PER_USER_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"There are {API_KEYS_PER_USER_MAX} keys of this user or {API_KEYS_MAX} in all, which is the limit. Revoke keys that are not needed",
            )

    async def revoke(self, key_id: str, user: str) -> None:
        """Delete a key of a user; UNKNOWN_API_KEY if there is none."""
        found = self._keys.stored(key_id)
        if found is None or found.record.user != user:
            raise unknown_key(key_id)
        stored = self._keys.key(key_id)
        if not (await self._store.txn([Compare(stored, mod_revision=found.revision)], [Delete(stored)])).succeeded:
            raise unknown_key(key_id)


def unknown_key(key_id: str) -> PenstockError:
    """The error for a key that does not exist."""
    return PenstockError(Reason.UNKNOWN_API_KEY, f"There is no API key {key_id!r}; list the keys to see their ids")


def _decoded(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.encode() + b"=" * (-len(secret) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""
