"""Master keys from a file or the environment.

A key file has a key in each line, 32 random bytes in base64; empty lines and lines that start with ``#`` are skipped. The first
key is the current one: it wraps new keys. The others are older, and still unwrap what they wrapped. The id of a key is a
fingerprint, so the order of the lines can change.
"""

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.encryption import crypto
from penstock.errors import PenstockError, Reason
from penstock.limits import MASTER_KEYS_MAX
from penstock.ports import Keys
from penstock.secret_files import read_secret

ENVIRONMENT: Final = "PENSTOCK_ENCRYPTION_KEY"
"""One key in base64, or several with commas in between."""

_SALT: Final = crypto.SALT_BYTES


class MasterKeys:
    """A :class:`penstock.ports.Keys` that has the keys in memory. Its repr shows none of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """``keys`` has at least one key; the first is the current one."""
        self._keys: Final = {crypto.fingerprint(key): key for key in keys}
        self.current: Final = crypto.fingerprint(keys[0])

    def __repr__(self) -> str:
        return f"MasterKeys(current={self.current!r}, count={len(self._keys)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._keys)

    def wrap(self, key: bytes, context: bytes) -> bytes:
        return crypto.seal(self._keys[self.current], os.urandom(_SALT), key, context)

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        key = self._keys.get(key_id)
        if key is None:
            held = ", ".join(self._keys)
            raise KeyError(f"Master key {key_id} is needed, and the keys given are {held}")
        return crypto.unseal(key, wrapped, context)


def load_keys(key_file: str, environment: Mapping[str, str]) -> Keys | None:
    """The keys of the file or, without one, of the environment; None if there are none. INVALID_CONFIG says what is wrong."""
    if key_file:
        return MasterKeys(parse_keys(_read(key_file), key_file))
    text = environment.get(ENVIRONMENT, "")
    return MasterKeys(parse_keys(text.replace(",", "\n"), ENVIRONMENT)) if text else None


def new_key() -> str:
    """A new master key, as a line of a key file."""
    return base64.b64encode(os.urandom(crypto.KEY_BYTES)).decode("ascii")


def parse_keys(text: str, where: str) -> list[bytes]:
    """The keys in ``text``. No error shows a part of a key."""
    lines = [line.strip() for line in text.splitlines()]
    found: list[bytes] = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != crypto.KEY_BYTES:
            raise _invalid(
                f"Line {number} of {where} is not a master key: write {crypto.KEY_BYTES} random bytes in base64, as "
                "`penstock encryption new-key` prints them"
            )
        found.append(key)
    if not found:
        raise _invalid(f"{where} has no master key: create one with `penstock encryption new-key`")
    if len(found) > MASTER_KEYS_MAX:
        raise _invalid(f"{where} has {len(found)} master keys; the limit is {MASTER_KEYS_MAX}: remove the oldest")
    return found


def _read(path: str) -> str:
    try:
        return read_secret(path).decode("ascii", "replace")
    except ValueError as error:
        raise _invalid(f"The encryption key file is refused: {error}") from None


def _invalid(text: str) -> PenstockError:
    return PenstockError(Reason.INVALID_CONFIG, text)
