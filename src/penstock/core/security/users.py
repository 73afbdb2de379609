"""The users: who may log in with a password, and who is an administrator.

In the store, ``security/users/NAME`` is ``{"id", "admin", "created_ms", "generation", "scram": {MECHANISM: {...}}}``. Of a password only what
SCRAM needs to check it is stored. Each change is one compare-and-set, and holds on this node when the call returns.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from penstock.core.security.followed import Followed
from penstock.core.security.identity import RESERVED
from penstock.core.security.scram import ScramHash, ScramKeys, new_keys, saslprep
from penstock.errors import PenstockError, Reason
from penstock.limits import PASSWORD_CHARS_MAX, SCRAM_SALT_BYTES, USER_NAME_CHARS_MAX, USERS_MAX
from penstock.metadata.port import Compare, Delete, MetadataStore, Operation, Put
from penstock.ports import Entropy

PREFIX: Final = "security/users/"
API_KEY_START: Final = "psk_"
"""What every API key begins with."""
_ATTEMPTS_MAX: Final = 100
"""How often a change is tried again because of a concurrent one."""
_FORBIDDEN: Final = frozenset("/:,*\"'\\")
"""Characters with a meaning in addresses, in Basic authentication, and in lists of principals."""


class UserRecord(msgspec.Struct, frozen=True):
    """A user as it is stored."""

    id: str
    """Distinguishes users that had the name one after the other."""
    admin: bool
    created_ms: int
    generation: str
    """Changes with each change of the password."""
    scram: dict[str, ScramKeys] = {}
    """By mechanism; empty for a user without a password."""

    def keys(self, kind: ScramHash) -> ScramKeys | None:
        """What is stored for one mechanism."""
        return self.scram.get(kind.value)


def check_user_name(name: str) -> str:
    """The name as it is stored; PenstockError if it is not allowed."""
    try:
        prepared = saslprep(name)
    except ValueError as error:
        raise PenstockError(Reason.INVALID_REQUEST, f"The name of the user is not allowed. {error}") from None
    if not 0 < len(prepared) <= USER_NAME_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_REQUEST, f"The name of a user has 1 to {USER_NAME_CHARS_MAX} characters, not {len(prepared)}"
        )
    wrong = next((char for char in prepared if char in _FORBIDDEN or char.isspace()), None)
    if wrong is not None or prepared in RESERVED or prepared.startswith("."):
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "The name of a user must have no space and none of / : , * \" ' \\ in it, must not begin with a dot, and not be ANONYMOUS",
        )
    return prepared


def check_password(password: str) -> str:
    """The password as it is hashed; PenstockError if it is not allowed. No text says what it is."""
    try:
        prepared = saslprep(password)
    except ValueError as error:
        raise PenstockError(Reason.INVALID_REQUEST, f"The password is not allowed. {error}") from None
    if not 0 < len(prepared) <= PASSWORD_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_REQUEST, f"A password has 1 to {PASSWORD_CHARS_MAX} characters, not {len(prepared)}"
        )
    if prepared.startswith(API_KEY_START):
        raise PenstockError(Reason.INVALID_REQUEST, f"A password must not begin with {API_KEY_START}, as API keys do")
    return prepared


def hash_password(password: str, secret: Callable[[int], bytes]) -> dict[str, ScramKeys]:
    """What is stored of a prepared password. It takes milliseconds: call it outside the event loop."""
    return {kind.value: new_keys(kind, password, secret(SCRAM_SALT_BYTES)) for kind in ScramHash}


class Users:
    """All users. Empty until :meth:`load`."""

    def __init__(self, store: MetadataStore, entropy: Entropy, changed: Callable[[], None]) -> None:
        self._store = store
        self._entropy = entropy
        self._users: Final = Followed(store, PREFIX, UserRecord, changed)
        self.load: Final = self._users.load
        self.get: Final = self._users.get
        self.items: Final[Callable[[], Iterator[tuple[str, UserRecord]]]] = self._users.items
        self.key: Final = self._users.key
        self.stored: Final = self._users.stored

    def __len__(self) -> int:
        return len(self._users)

    def is_admin(self, name: str) -> bool:
        """Whether there is such a user, who may do everything."""
        found = self._users.get(name)
        return found is not None and found.admin

    def require(self, name: str) -> UserRecord:
        """The user, or UNKNOWN_USER."""
        found = self._users.get(name)
        if found is None:
            raise PenstockError(Reason.UNKNOWN_USER, f"There is no user {name!r}; list the users to see their names")
        return found

    async def create(
        self, name: str, scram: Mapping[str, ScramKeys], now_ms: int, *, admin: bool = False, only_first: bool = False
    ) -> UserRecord:
        """A new user; USER_ALREADY_EXISTS if the name is taken. With ``only_first`` only if there are no users at all."""
        name = check_user_name(name)
        if only_first and len(self._users):
            raise PenstockError(Reason.USER_ALREADY_EXISTS, "There are users already")
        if self._users.get(name) is not None:
            raise _exists(name)
        self._check_room()
        record = UserRecord(self._entropy.uuid().hex, admin, now_ms, self._entropy.uuid().hex, dict(scram))
        key = self.key(name)
        done = await self._store.txn([Compare(key, create_revision=0)], [Put(key, msgspec.json.encode(record))])
        if not done.succeeded:
            raise _exists(name)
        return record

    def _check_room(self) -> None:
        if len(self._users) >= USERS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"There are {USERS_MAX} users, which is the limit. Delete users that are not needed",
            )

    async def set_password(self, name: str, scram: Mapping[str, ScramKeys]) -> None:
        """Replace the password. What the old one began ends."""
        await self.change_scram(name, lambda _: dict(scram))

    async def change_scram(
        self, name: str, change: Callable[[Mapping[str, ScramKeys]], dict[str, ScramKeys]]
    ) -> UserRecord:
        """Change what is stored of a user's password."""
        for _ in range(_ATTEMPTS_MAX):
            before = self.require(name)
            found = self._users.stored(name)
            assert found is not None
            after = msgspec.structs.replace(before, scram=change(before.scram), generation=self._entropy.uuid().hex)
            key = self.key(name)
            if await self._commit([Compare(key, mod_revision=found.revision)], [Put(key, msgspec.json.encode(after))]):
                return after
        raise _busy(name)

    async def delete(self, name: str, *others: Operation, spare_last_admin: bool) -> None:
        """Delete a user, in one transaction with other changes. With ``spare_last_admin``, the last administrator stays."""
        for _ in range(_ATTEMPTS_MAX):
            record = self.require(name)
            found = self._users.stored(name)
            assert found is not None
            compares = [Compare(self.key(name), mod_revision=found.revision)]
            if record.admin and spare_last_admin:
                compares.append(self._another_admin(name))
            if await self._commit(compares, [Delete(self.key(name)), *others]):
                return
        raise _busy(name)

    def _another_admin(self, name: str) -> Compare:
        """The condition that another administrator remains."""
        for other, record in self._users.items():
            found = self._users.stored(other)
            if record.admin and other != name and found is not None:
                return Compare(self.key(other), mod_revision=found.revision)
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"{name} is the last administrator: create another one first, or force it",
        )

    async def _commit(self, compares: list[Compare], operations: list[Operation]) -> bool:
        return (await self._store.txn(compares, operations)).succeeded


def _exists(name: str) -> PenstockError:
    return PenstockError(
        Reason.USER_ALREADY_EXISTS, f"There is a user {name!r} already: choose another name, or set its password"
    )


def _busy(name: str) -> PenstockError:
    return PenstockError(Reason.REQUEST_TIMED_OUT, f"Other clients kept changing the user {name!r}. Try again")
