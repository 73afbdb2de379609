"""Users and API keys: create, list and delete them, and set passwords. Users may change their own password, and manage their own keys.

Passwords and keys are in operations and results only on their way; none of them is shown by ``repr``.
"""

import msgspec

from penstock.operations.operation import ANY_NODE, Action, Operation, Repeat, on_cluster, on_user

EVERYONE = ""
"""The user of the list of all keys."""


class CreateUser(Operation[None], frozen=True):
    """Create a user. One without a password can only have API keys; an administrator may do everything."""

    user: str
    password: str | None = None
    admin: bool = False

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("user", "admin")

    def __repr__(self) -> str:
        return f"CreateUser(user={self.user!r}, admin={self.admin})"


class SetPassword(Operation[None], frozen=True):
    """Give a user another password. The connections that the old one opened are closed; API keys stay."""

    user: str
    password: str

    rights = (on_user(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("user",)

    def __repr__(self) -> str:
        return f"SetPassword(user={self.user!r})"


class DeleteUser(Operation[None], frozen=True):
    """Delete a user with its API keys, and close its connections. The last administrator is deleted only with ``force``."""

    user: str
    force: bool = False

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("user",)


class UserInfo(msgspec.Struct, frozen=True):
    """A user, without anything secret."""

    user: str
    admin: bool
    created_ms: int
    mechanisms: tuple[str, ...]
    """The SASL mechanisms for which there is a password; PLAIN and HTTP's Basic work with any of them."""
    keys: int
    """API keys."""


class ListUsers(Operation[tuple[UserInfo, ...]], frozen=True):
    """All users, by name."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class NewKey(msgspec.Struct, frozen=True):
    """A new API key, which nobody can read again."""

    id: str
    key: str

    def __repr__(self) -> str:
        return f"NewKey(id={self.id!r})"


class CreateKey(Operation[NewKey], frozen=True):
    """Create an API key of a user, which has the user's rights until it expires or is revoked."""

    user: str
    name: str = ""
    expires_ms: int | None = None

    rights = (on_user(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("user", "name")


class RevokeKey(Operation[None], frozen=True):
    """Delete an API key of a user, and close the connections that use it."""

    user: str
    key: str

    rights = (on_user(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("user",)


class KeyInfo(msgspec.Struct, frozen=True):
    """An API key, without its secret."""

    id: str
    user: str
    name: str
    created_ms: int
    expires_ms: int | None


class ListKeys(Operation[tuple[KeyInfo, ...]], frozen=True):
    """The API keys of a user, or of everyone."""

    user: str = EVERYONE

    rights = (on_user(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ScramInfo(msgspec.Struct, frozen=True):
    """For which SCRAM mechanisms the password of a user is stored, with their iterations."""

    user: str
    iterations: dict[str, int]


class DescribeScram(Operation[tuple[ScramInfo, ...]], frozen=True):
    """The SCRAM credentials of all users that have any."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ScramCredential(msgspec.Struct, frozen=True):
    """A password as a client hashed it."""

    salt: bytes
    iterations: int
    salted_password: bytes

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class AlterScram(Operation[None], frozen=True):
    """Set (or with None delete) what is stored of a user's password, by mechanism. A user that does not exist is created.

    UNKNOWN_USER if one that is deleted does not exist. Without any left, the user is deleted, unless it has API keys or is an administrator.
    """

    user: str
    credentials: dict[str, ScramCredential | None]

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    audited = ("user",)
