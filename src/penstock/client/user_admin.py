"""Administration of users and API keys, over HTTP."""

import msgspec

from penstock.client.http import HttpClient, v1_path
from penstock.operations.users import KeyInfo, NewKey, UserInfo

__all__ = ["KeyInfo", "NewKey", "UserAdmin", "UserInfo"]


class _Users(msgspec.Struct):
    users: list[UserInfo]


class _Keys(msgspec.Struct):
    keys: list[KeyInfo]


class UserAdmin(HttpClient):
    """Lists and changes users and API keys."""

    def users(self) -> list[UserInfo]:
        """All users."""
        return self._http.get("/v1/users", _Users).users

    def create(self, user: str, password: str | None = None, *, admin: bool = False) -> None:
        """Create a user; without a password it can only have API keys."""
        self._http.post_only("/v1/users", {"user": user, "password": password, "admin": admin})

    def set_password(self, user: str, password: str) -> None:
        """Set a password; the connections that the old one opened are closed."""
        self._http.put_only(v1_path("users", user, "password"), {"password": password})

    def delete(self, user: str, *, force: bool = False) -> None:
        """Delete a user with its API keys; the last administrator only with ``force``."""
        self._http.delete(v1_path("users", user) + ("?force=true" if force else ""))

    def keys(self, user: str | None = None) -> list[KeyInfo]:
        """The API keys of a user, or of everyone."""
        return self._http.get("/v1/keys", _Keys, {"user": user}).keys

    def create_key(self, user: str, name: str = "", *, expires_ms: int | None = None) -> NewKey:
        """Create an API key; the result is the only place where it is shown."""
        return self._http.post("/v1/keys", {"user": user, "name": name, "expires_ms": expires_ms}, NewKey)

    def revoke(self, key_id: str) -> None:
        """Revoke an API key."""
        self._http.delete(v1_path("keys", key_id))
