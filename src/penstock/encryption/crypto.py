"""The four operations that everything else is made of: derive a key, seal a value, encrypt a stream, authenticate a chunk.

``cryptography`` is imported by the first call, because a broker without encryption must not pay for it.
"""

from functools import cache
from hashlib import sha256
from hmac import compare_digest, digest
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.types import Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
"""AES-256, and HMAC with SHA-256."""
BLOCK_BYTES: Final = 16
NONCE_BYTES: Final = 12
MAC_BYTES: Final = 16
SALT_BYTES: Final = 16
SEALED_MORE_BYTES: Final = SALT_BYTES + 16
"""How many bytes a sealed value is longer than the value."""

_NO_NONCE: Final = bytes(NONCE_BYTES)


class Stream(Protocol):
    """A cipher that encrypts, or decrypts, one piece after the other."""

    def update(self, data: Buffer) -> bytes:
        """The same number of bytes, encrypted or decrypted."""
        ...


class WrongKeyError(Exception):
    """A sealed value was changed, or belongs to another key or place."""


def derive(secret: bytes, *parts: bytes) -> bytes:
    """A key of its own for each purpose: HMAC-SHA-256 over the parts and their lengths."""
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return digest(secret, text, "sha256")


def mac(key: bytes, data: bytes) -> bytes:
    """A short authenticator of a few bytes."""
    return digest(key, data, "sha256")[:MAC_BYTES]


def same(left: bytes, right: bytes) -> bool:
    """Compare without telling by the time how much is equal."""
    return compare_digest(left, right)


def fingerprint(key: bytes) -> str:
    """The id of a master key: it says which key is meant, and nothing about it."""
    return sha256(b"penstock master key" + key).hexdigest()[:16]


def seal(key: bytes, salt: bytes, data: Buffer, context: bytes) -> bytes:
    """Encrypt and authenticate a value. ``salt`` is random and new: each value has a key of its own, so no nonce can repeat."""
    assert len(salt) == SALT_BYTES
    return salt + _aead(derive(key, b"seal", salt)).encrypt(_NO_NONCE, data, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The value again; WrongKeyError if a byte, the key or the context differs."""
    from cryptography.exceptions import InvalidTag

    salt = sealed[:SALT_BYTES]
    try:
        return _aead(derive(key, b"seal", salt)).decrypt(_NO_NONCE, sealed[SALT_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise WrongKeyError from error


def encryptor_at(key: bytes, nonce: bytes, position: int) -> Stream:
    """AES-256-CTR from this position of the stream on. The caller never encrypts two bytes with the same three.

    The block counter of 32 bits lasts for 64 GiB.
    """
    return _stream_at(key, nonce, position)


def decrypt_at(key: bytes, nonce: bytes, position: int, data: bytes) -> bytes:
    """The content of encrypted bytes at this position of the stream."""
    return _stream_at(key, nonce, position).update(data)


def _stream_at(key: bytes, nonce: bytes, position: int) -> Stream:
    cipher, algorithm, mode = _ctr()
    block, skipped = divmod(position, BLOCK_BYTES)
    stream: Stream = cipher(algorithm(key), mode(nonce + block.to_bytes(4, "big"))).encryptor()
    if skipped:
        stream.update(bytes(skipped))
    return stream


class ChunkMac:
    """GMAC of numbered chunks. ``seed`` is random and new whenever chunks are authenticated again, so no nonce can repeat."""

    __slots__ = ("_aead", "_seed")

    def __init__(self, key: bytes, seed: bytes) -> None:
        assert len(seed) == NONCE_BYTES - 4
        self._aead = _aead(key)
        self._seed = seed

    def tag(self, number: int, chunk: bytes) -> bytes:
        """The tag of one chunk."""
        return self._aead.encrypt(self._seed + number.to_bytes(4, "big"), b"", chunk)


def _aead(key: bytes) -> "AESGCM":
    return _gcm()(key)


@cache
def _gcm() -> "type[AESGCM]":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM


@cache
def _ctr() -> tuple[Any, Any, Any]:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    return Cipher, AES256, CTR
