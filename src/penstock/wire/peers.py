"""What nodes say to each other beside Kafka's own words: who they are, and what they ask of a partition's leader.

Inside Kafka's SaslAuthenticate two nodes make sure of each other: both know the cluster's secret, and neither sends it.
The caller says who it is, with a nonce; the other answers with a nonce of its own and the proof that it knows the secret; the
caller proves the same. Each proof covers both nonces and both nodes, so it is good for this connection alone. JSON, since it happens once
a connection.

Requests of APIs that Kafka does not have (:class:`PeerApi`) follow a request header of version 1: the length of the head (u32, big-endian), the
head (MessagePack, its fields in order), and behind it the batch, if there is one. An answer follows a response header of version 0: MessagePack.
They are answered in any order.
"""

import hmac
from enum import IntEnum
from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from penstock.errors import BacklogBound, BacklogFull, PenstockError, Reason
from penstock.types import Acks, Buffer
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
        raise ProtocolViolation(f"this is not a valid greeting of a node: {error}") from None
    if len(hello.nonce) != NONCE_BYTES:
        raise ProtocolViolation(f"a nonce has {NONCE_BYTES} bytes")
    return hello


def decode_challenge(data: bytes) -> Challenge:
    """ProtocolViolation when it is none."""
    try:
        return msgspec.json.decode(data, type=Challenge)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"this is not a valid response of a node: {error}") from None


def decode_proof(data: bytes) -> Proof:
    """ProtocolViolation when it is none."""
    try:
        return msgspec.json.decode(data, type=Proof)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"this is not a valid proof of a node: {error}") from None


# What is asked of a leader.


class PeerApi(IntEnum):
    """Far behind every key that Kafka may come to use."""

    APPEND = 30_000
    APPEND_ONCE = 30_001
    PARTITION_STATUS = 30_002
    COMMITTED = 30_003
    # Operations, on links of their own.
    DO = 30_010
    OPEN = 30_011
    GRANT = 30_012
    CANCEL = 30_013


VERSION: Final = 0


class AppendHead(msgspec.Struct, frozen=True, array_like=True):
    """Before a batch that is to be appended. The leader must lead in this epoch."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    acks: Acks


class AppendOnceHead(msgspec.Struct, frozen=True, array_like=True):
    """Before a batch of which only the records are to be appended whose mark is not there from an offset on: one for all, or each its own."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    header: str
    search_from: list[int]


class PartitionStatusHead(msgspec.Struct, frozen=True, array_like=True):
    """A question that changes nothing."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    from_offset: int


class CommittedHead(msgspec.Struct, frozen=True, array_like=True):
    """How far a group is in a partition, asked of its coordinator, the leader of a partition of the offsets topic; without a group, the one
    of all that it coordinates that is least far.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    group: str
    of_topic: str
    of_partition: int


Head = AppendHead | AppendOnceHead | PartitionStatusHead | CommittedHead
HEADS: Final[dict[int, type[Head]]] = {
    PeerApi.APPEND: AppendHead,
    PeerApi.APPEND_ONCE: AppendOnceHead,
    PeerApi.PARTITION_STATUS: PartitionStatusHead,
    PeerApi.COMMITTED: CommittedHead,
}


class DoHead(msgspec.Struct, frozen=True, array_like=True):
    """Before an operation or a stream (MessagePack) that another node asks for: its name, and for whom it is."""

    name: str
    principal: str
    gateway: str
    client: str


class GrantHead(msgspec.Struct, frozen=True, array_like=True):
    """More credit for the stream that was opened by the request of this number. It is not answered."""

    number: int
    count: int


class CancelHead(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the request of this number is not wanted any more. It is not answered; the request itself is, once."""

    number: int


OperationHead = DoHead | GrantHead | CancelHead
OPERATION_HEADS: Final[dict[int, type[OperationHead]]] = {
    PeerApi.DO: DoHead,
    PeerApi.OPEN: DoHead,
    PeerApi.GRANT: GrantHead,
    PeerApi.CANCEL: CancelHead,
}


class OperationAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of an operation, the next items of a stream, or why there are none. A stream is over with its first answer that is
    ``last``.
    """

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    last: bool = True
    reason: str = ""
    text: str = ""
    begun: bool = False
    records: list[tuple[int, str]] = []
    bound: str = ""
    """Of a backlog that is full: which bound was reached."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Offsets (or the numbers of a partition's status), or why not: the name of a reason, and a text."""

    numbers: list[int] = []
    reason: str = ""
    text: str = ""


_HEAD_LENGTH_BYTES: Final = 4
H = TypeVar("H", bound=msgspec.Struct)


def decode_operation_request(api: int, body: memoryview) -> tuple[OperationHead, memoryview]:
    """Its head, and the operation behind it; ProtocolViolation when it is none."""
    start = _HEAD_LENGTH_BYTES + int.from_bytes(body[:_HEAD_LENGTH_BYTES], "big")
    if start > len(body):
        raise ProtocolViolation(f"this is no request of API {api}")
    return _decode(body[_HEAD_LENGTH_BYTES:start], OPERATION_HEADS[api]), body[start:]


def refusal_answer(error: PenstockError) -> OperationAnswer:
    """Why there is no result, or no further item."""
    return OperationAnswer(
        reason=error.reason.name,
        text=error.text,
        begun=error.begun,
        records=list(error.records),
        bound=error.bound.value if isinstance(error, BacklogFull) else "",
    )


def refusal_in(answer: OperationAnswer) -> PenstockError | None:
    """The refusal that an answer carries. A reason that only a newer node knows is LINK_LOST, since nothing can be known from it."""
    if not answer.reason:
        return None
    error = (
        BacklogFull(BacklogBound(answer.bound), answer.text)
        if answer.bound
        else PenstockError(Reason.__members__.get(answer.reason, Reason.LINK_LOST), answer.text, answer.records)
    )
    error.begun = answer.begun
    return error


def encode_peer_request(head: Head | OperationHead, batch: Buffer = b"") -> list[Buffer]:
    """The body of a request, in parts: the batch is not copied."""
    encoded = msgspec.msgpack.encode(head)
    return [len(encoded).to_bytes(_HEAD_LENGTH_BYTES, "big") + encoded, batch]


def decode_peer_request(api: int, body: memoryview) -> tuple[Head, bytearray]:
    """Its head, and a copy of its batch, in which the leader may write; ProtocolViolation when it is none."""
    kind = HEADS.get(api)
    start = _HEAD_LENGTH_BYTES + int.from_bytes(body[:_HEAD_LENGTH_BYTES], "big")
    if kind is None or start > len(body):
        raise ProtocolViolation(f"this is not a request of API {api}")
    return _decode(body[_HEAD_LENGTH_BYTES:start], kind), bytearray(body[start:])


def encode_answer(numbers: list[int] | PenstockError) -> bytes:
    """The body of an answer."""
    if isinstance(numbers, PenstockError):
        return msgspec.msgpack.encode(Answer(reason=numbers.reason.name, text=numbers.text))
    return msgspec.msgpack.encode(Answer(numbers))


def decode_answer(body: memoryview) -> list[int] | PenstockError:
    """What it says; a reason that only a newer node knows is LINK_LOST, since nothing can be known from it."""
    answer = _decode(body, Answer)
    if not answer.reason:
        return answer.numbers
    return PenstockError(Reason.__members__.get(answer.reason, Reason.LINK_LOST), answer.text)


def _decode(data: memoryview, kind: type[H]) -> H:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"this is not a valid {kind.__name__}: {error}") from None


# What a follower knows of its part, in the field of a fetch that in Kafka names its directory.

_KNOWN_BYTES: Final = 16


def encode_known_epoch(epoch: int) -> bytes:
    """The partition's epoch by which a node knows that it is a replica; one below 0, of an observer, is what nobody said anything about."""
    return (max(epoch, -1) + 1).to_bytes(_KNOWN_BYTES, "big")


def decode_known_epoch(data: Buffer) -> int:
    """The same, read; -1 when nothing was said."""
    return int.from_bytes(data, "big") - 1
