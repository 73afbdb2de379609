"""The keys of one data directory, or of one metadata store: numbered, and wrapped by a master key.

New data uses the key with the highest number. A rotation wraps all keys with the new master key and adds a new one, so that
the old master key and an old copy of the keyring do not reveal what is written from then on. Data is not touched.

On disk, JSON: ``{"format_version": 1, "master": id, "wrapped": base64, "sealed": base64}``. The master key wraps a random key, which seals the
numbered keys: a key service sees 32 bytes, whatever the number of keys.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.encryption import crypto
from penstock.errors import PenstockError, Reason
from penstock.limits import KEYRING_KEYS_MAX
from penstock.ports import Keys

FORMAT_VERSION: Final = 1
_CONTEXT: Final = b"penstock keyring"


class _Sealed(msgspec.Struct, frozen=True):
    format_version: int
    master: str
    wrapped: str
    sealed: str


class _Body(msgspec.Struct, frozen=True):
    keys: dict[int, str]
    complete: bool


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys by their numbers; the highest is the current one."""

    keys: Mapping[int, bytes]
    complete: bool
    """Whether nothing is left in the clear: from then on, data in the clear was put there by somebody else."""

    def __repr__(self) -> str:
        return f"Keyring(numbers={sorted(self.keys)}, complete={self.complete})"

    @property
    def current(self) -> int:
        """The number of the key for new data."""
        return max(self.keys)

    def completed(self) -> "Keyring":
        """The same, with nothing left in the clear."""
        return replace(self, complete=True)

    def extended(self) -> "Keyring":
        """The same with a new key for new data."""
        if len(self.keys) >= KEYRING_KEYS_MAX:
            raise PenstockError(
                Reason.INVALID_CONFIG, f"The keyring has {len(self.keys)} keys, and the limit is {KEYRING_KEYS_MAX}"
            )
        return replace(self, keys={**self.keys, self.current + 1: os.urandom(crypto.KEY_BYTES)})


def new_keyring(*, complete: bool) -> Keyring:
    """A keyring with one random key."""
    return Keyring({1: os.urandom(crypto.KEY_BYTES)}, complete)


def encode(ring: Keyring, keys: Keys) -> bytes:
    """The keyring, wrapped by the current master key."""
    body = _Body({number: _text(key) for number, key in ring.keys.items()}, ring.complete)
    wrapping = os.urandom(crypto.KEY_BYTES)
    sealed = crypto.seal(wrapping, os.urandom(crypto.SALT_BYTES), msgspec.json.encode(body), _CONTEXT)
    wrapped = keys.wrap(wrapping, _CONTEXT)
    return msgspec.json.encode(_Sealed(FORMAT_VERSION, keys.current, _text(wrapped), _text(sealed)))


def decode(data: bytes, keys: Keys, where: str) -> tuple[Keyring, str]:
    """The keyring and the id of the master key that wraps it. INVALID_CONFIG if the key is not the right one."""
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if sealed.format_version != FORMAT_VERSION:
            raise _invalid(
                f"{where} has format {sealed.format_version} but this version uses {FORMAT_VERSION}: use the version of Penstock that wrote it"
            )
        wrapping = keys.unwrap(sealed.master, base64.b64decode(sealed.wrapped), _CONTEXT)
        body = msgspec.json.decode(crypto.unseal(wrapping, base64.b64decode(sealed.sealed), _CONTEXT), type=_Body)
        return Keyring(
            {number: base64.b64decode(key) for number, key in body.keys.items()}, body.complete
        ), sealed.master
    except KeyError as error:
        raise _invalid(
            f"{where} cannot be opened. {error.args[0]}; add the missing key as a line of the encryption key file"
        ) from None
    except (crypto.WrongKeyError, msgspec.DecodeError, ValueError) as error:
        raise _invalid(f"{where} is damaged: restore it from a backup of the data directory") from error


def master_of(data: bytes) -> str | None:
    """The id of the master key that wraps a keyring, which can be read without a key; None if it is damaged."""
    try:
        return msgspec.json.decode(data, type=_Sealed).master
    except msgspec.DecodeError:
        return None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _invalid(text: str) -> PenstockError:
    return PenstockError(Reason.INVALID_CONFIG, text)
