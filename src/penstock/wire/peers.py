"""How two nodes make sure of each other, inside Kafka's SaslAuthenticate: both know the cluster's secret, and neither sends it.

The caller says who it is, with a nonce; the other answers with a nonce of its own and the proof that it knows the secret; the
caller proves the same. Each proof covers both nonces and both nodes, so it is good for this connection alone. JSON, since it happens once
a connection.
"""

import hmac
from hashlib import sha256
from typing import Final

import msgspec

from penstock.wire.errors import ProtocolViolation

MECHANISM: Final = "PENSTOCK-NODE"
NONCE_BYTES: Final = 16
SECRET_BYTES: Final = 32


class Hello(msgspec.Struct, frozen=True):
    """The caller's first word."""

    node: int
    epoch: int
    to_node: int
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True):
    """The answer to it."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True):
    """The caller's last word."""

    proof: bytes


def server_proof(secret: bytes, hello: Hello, nonce: bytes) -> bytes:
    """What the node that was called proves itself with."""
    return _proof(secret, b"server", hello, nonce)


def client_proof(secret: bytes, hello: Hello, nonce: bytes) -> bytes:
    """What the caller proves itself with."""
    return _proof(secret, b"client", hello, nonce)


def _proof(secret: bytes, side: bytes, hello: Hello, nonce: bytes) -> bytes:
    words = (side, str(hello.node).encode(), str(hello.epoch).encode(), str(hello.to_node).encode(), hello.nonce, nonce)
    return hmac.new(secret, b"".join(len(word).to_bytes(2, "big") + word for word in words), sha256).digest()


def is_proof(expected: bytes, given: bytes) -> bool:
    """In constant time."""
    return hmac.compare_digest(expected, given)


def decode_hello(data: bytes) -> Hello:
    """ProtocolViolation when it is none."""
    try:
        hello = msgspec.json.decode(data, type=Hello)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"this is no node's greeting: {error}") from None
    if len(hello.nonce) != NONCE_BYTES:
        raise ProtocolViolation(f"a nonce has {NONCE_BYTES} bytes")
    return hello


def decode_challenge(data: bytes) -> Challenge:
    """ProtocolViolation when it is none."""
    try:
        return msgspec.json.decode(data, type=Challenge)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"this is no node's answer: {error}") from None


def decode_proof(data: bytes) -> Proof:
    """ProtocolViolation when it is none."""
    try:
        return msgspec.json.decode(data, type=Proof)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"this is no node's proof: {error}") from None
