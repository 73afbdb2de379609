"""SCRAM (RFC 5802, RFC 7677): the stored form of a password, and the server's side of the exchange, without input and output.

A password is stored as salt, iterations, StoredKey and ServerKey, from which neither it nor a proof of it can be made. The exchange does
not tell whether a user exists: for an unknown one the caller passes keys that no password has (:func:`fake_keys`).
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from penstock.limits import SCRAM_ITERATIONS, SCRAM_ITERATIONS_MAX, SCRAM_SALT_BYTES

_FAKE: Final = b"a user that does not exist"


class ScramHash(Enum):
    """The hash functions, by the names of their mechanisms."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name for :mod:`hashlib`."""
        return "sha256" if self is ScramHash.SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """Bytes of a hash."""
        return 32 if self is ScramHash.SHA_256 else 64


class ScramKeys(msgspec.Struct, frozen=True):
    """What is stored of a password for one hash function."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramKeys(iterations={self.iterations})"


class ScramError(Exception):
    """The client's message is malformed, or proves nothing. The text is for the log, and holds nothing of the message."""


def saslprep(text: str) -> str:
    """The text as RFC 4013 compares it; ValueError if it has characters that names and passwords must not have."""
    if text.isascii():
        if not text.isprintable():
            raise ValueError("It has control characters")
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if any(prohibited(char) for prohibited in _PROHIBITED for char in prepared):
        raise ValueError("It has characters that are not allowed in names and passwords")
    if any(stringprep.in_table_d1(char) for char in prepared):
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not ends or any(stringprep.in_table_d2(char) for char in prepared):
            raise ValueError("It mixes text from left to right and from right to left")
    return prepared


_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def salted(kind: ScramHash, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword. It takes milliseconds: call it outside the event loop. ``password`` is prepared."""
    return hashlib.pbkdf2_hmac(kind.digest, password.encode(), salt, iterations)


def keys_of(kind: ScramHash, salted_password: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """What to store of a salted password."""
    client_key = hmac.digest(salted_password, b"Client Key", kind.digest)
    server_key = hmac.digest(salted_password, b"Server Key", kind.digest)
    return ScramKeys(salt, iterations, hashlib.new(kind.digest, client_key).digest(), server_key)


def new_keys(kind: ScramHash, password: str, salt: bytes, iterations: int = SCRAM_ITERATIONS) -> ScramKeys:
    """What to store of a new password. It takes milliseconds."""
    return keys_of(kind, salted(kind, password, salt, iterations), salt, iterations)


def matches(kind: ScramHash, keys: ScramKeys, password: str) -> bool:
    """Whether this is the password. It takes milliseconds."""
    made = keys_of(kind, salted(kind, password, keys.salt, keys.iterations), keys.salt, keys.iterations)
    return hmac.compare_digest(made.stored_key, keys.stored_key)


def fake_keys(kind: ScramHash, secret: bytes, user: str) -> ScramKeys:
    """Keys for a user that does not exist: always the same salt for one name, and no password fits."""
    salt = hmac.digest(secret, _FAKE + kind.value.encode() + user.encode(), "sha256")[:SCRAM_SALT_BYTES]
    nothing = hmac.digest(secret, _FAKE + b"key" + user.encode(), kind.digest)
    return ScramKeys(salt, SCRAM_ITERATIONS, nothing, nothing)


class ScramExchange:
    """One login: :meth:`first`, then :meth:`final`. ScramError ends it."""

    def __init__(self, kind: ScramHash, keys_for: Callable[[str], ScramKeys], server_nonce: str) -> None:
        """``keys_for`` gives the keys of a prepared name, or fake ones. ``server_nonce``: random, printable, without comma."""
        self._kind: Final = kind
        self._keys_for = keys_for
        self._server_nonce = server_nonce
        self._keys: ScramKeys | None = None
        self._nonces: tuple[str, ...] = ()
        self._gs2_header = b""
        self._auth_message = b""
        self.user = ""
        """The name that the client claims, once :meth:`first` has returned."""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message: the salt and the iterations."""
        text = _decoded(message)
        parts = text.split(",", 2)
        if len(parts) != 3:
            raise ScramError("The first message has too few parts")
        flag, authzid, bare = parts
        if flag not in ("n", "y"):
            raise ScramError("Channel binding is not supported")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise ScramError("The first message has no name or no nonce")
        if any(field.startswith("tokenauth=") for field in fields[2:]):
            raise ScramError("Delegation tokens are not supported")
        user = _name(fields[0][2:])
        if authzid and (not authzid.startswith("a=") or _name(authzid[2:]) != user):
            raise ScramError("Acting for another user is not supported")
        client_nonce = fields[1][2:]
        if not client_nonce or not client_nonce.isascii() or not client_nonce.isprintable():
            raise ScramError("The nonce is not printable")
        self.user = user
        nonce = client_nonce + self._server_nonce
        # librdkafka before 2.6.1, as in Debian's kcat, repeats its own part. Ours is in both, so neither can be replayed.
        self._nonces = (nonce, client_nonce + nonce)
        self._gs2_header = f"{flag},{authzid},".encode()
        keys = self._keys = self._keys_for(user)
        answer = f"r={nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        self._auth_message = f"{bare},{answer},".encode()
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The answer to the client's proof: the server's. ScramError if the proof is wrong."""
        keys, kind = self._keys, self._kind
        assert keys is not None, "first() comes first"
        without_proof, found, proof_text = _decoded(message).rpartition(",p=")
        fields = without_proof.split(",")
        if not found or len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise ScramError("The final message has no proof")
        if not any(hmac.compare_digest(fields[1][2:].encode(), nonce.encode()) for nonce in self._nonces):
            raise ScramError("The nonce is not that of this exchange")
        if not hmac.compare_digest(_base64(fields[0][2:]), self._gs2_header):
            raise ScramError("The header is not that of the first message")
        proof = _base64(proof_text)
        if len(proof) != kind.size:
            raise ScramError("The proof has a wrong length")
        auth_message = self._auth_message + without_proof.encode()
        signature = hmac.digest(keys.stored_key, auth_message, kind.digest)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(kind.digest, client_key).digest(), keys.stored_key):
            raise ScramError("Wrong password")
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, auth_message, kind.digest))


def is_acceptable(iterations: int) -> bool:
    """Whether a client may choose this number of iterations: not too few for safety, nor too many for this broker."""
    return SCRAM_ITERATIONS <= iterations <= SCRAM_ITERATIONS_MAX


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("The message is not UTF-8") from None


def _name(escaped: str) -> str:
    if "=" in escaped.replace("=2C", "").replace("=3D", ""):
        raise ScramError("The name is escaped in a wrong way")
    try:
        name = saslprep(escaped.replace("=2C", ",").replace("=3D", "="))
    except ValueError:
        raise ScramError("The name has characters that are not allowed") from None
    if not name:
        raise ScramError("The name is empty")
    return name


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("A field is not base64") from None
