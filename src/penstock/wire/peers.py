"""Messages between nodes that Kafka's protocol does not have: authentication, requests to a partition's leader, and operations.

Two nodes authenticate each other in Kafka's SaslAuthenticate: both know the cluster's secret, and neither sends it.
The caller sends its id and a nonce; the other node responds with a nonce of its own and a proof that it knows the secret; the
caller proves the same. Each proof covers both nonces, both nodes and, with TLS, the certificate of the node that was called, so it is valid
for this connection only. The messages are JSON, because they are sent once per connection.

While the secret is rotated, two generations of it are valid. The caller names the newest one that it knows; the other node uses that
one, or its own newest if it does not know it yet, and names it in its response.

Requests of APIs that Kafka does not have (:class:`PeerApi`) follow a request header of version 1: the length of the head (u32, big-endian), the
head (MessagePack, its fields in order), and then the batch, if there is one. A response follows a response header of version 0, in MessagePack.
Responses are sent in any order.
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
    """The caller's first message."""

    node: int
    epoch: int
    to_node: int
    nonce: bytes
    generation: int = 0
    """Of the secret; 0 from a node of an older release."""


class Challenge(msgspec.Struct, frozen=True):
    """The response to it."""

    nonce: bytes
    proof: bytes
    generation: int = 0
    """Of the secret that both proofs use; 0 from a node of an older release."""


class Proof(msgspec.Struct, frozen=True):
    """The caller's last message."""

    proof: bytes


def server_proof(secret: bytes, hello: Hello, nonce: bytes, binding: bytes = b"") -> bytes:
    """The proof of the node that was called. ``binding``: the SHA-256 of its certificate, as the caller sees it; empty without TLS."""
    return _proof(secret, b"server", hello, nonce, binding)


def client_proof(secret: bytes, hello: Hello, nonce: bytes, binding: bytes = b"") -> bytes:
    """The proof of the caller, over the same certificate."""
    return _proof(secret, b"client", hello, nonce, binding)


def _proof(secret: bytes, side: bytes, hello: Hello, nonce: bytes, binding: bytes) -> bytes:
    words = [side, str(hello.node).encode(), str(hello.epoch).encode(), str(hello.to_node).encode(), hello.nonce, nonce]
    if binding:
        words.append(binding)
    return hmac.new(secret, b"".join(len(word).to_bytes(2, "big") + word for word in words), sha256).digest()


def is_proof(expected: bytes, given: bytes) -> bool:
    """Whether a proof is right, in constant time."""
    return hmac.compare_digest(expected, given)


_INVALID: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a message of a stranger can cause: it may have text that is not UTF-8, or thousands of brackets."""


def decode_hello(data: bytes) -> Hello:
    """ProtocolViolation if it is not valid."""
    try:
        hello = msgspec.json.decode(data, type=Hello)
    except _INVALID as error:
        raise ProtocolViolation(f"Not a valid Hello message of a node: {error}") from None
    if len(hello.nonce) != NONCE_BYTES:
        raise ProtocolViolation(f"A nonce has {NONCE_BYTES} bytes")
    return hello


def decode_challenge(data: bytes) -> Challenge:
    """ProtocolViolation if it is not valid."""
    try:
        return msgspec.json.decode(data, type=Challenge)
    except _INVALID as error:
        raise ProtocolViolation(f"Not a valid Challenge message of a node: {error}") from None


def decode_proof(data: bytes) -> Proof:
    """ProtocolViolation if it is not valid."""
    try:
        return msgspec.json.decode(data, type=Proof)
    except _INVALID as error:
        raise ProtocolViolation(f"Not a valid Proof message of a node: {error}") from None


# Requests to a leader.


class PeerApi(IntEnum):
    """Keys far above those that Kafka uses."""

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
    """Precedes a batch to append. The leader must lead in this epoch."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    acks: Acks


class AppendOnceHead(msgspec.Struct, frozen=True, array_like=True):
    """Precedes a batch of which only some records are appended: those whose mark is not in the log from an offset on, which is one for all or one for each."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    header: str
    search_from: list[int]


class PartitionStatusHead(msgspec.Struct, frozen=True, array_like=True):
    """Requests the status of a partition, which changes nothing."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    from_offset: int


class CommittedHead(msgspec.Struct, frozen=True, array_like=True):
    """Requests the committed offset of a group in a partition from its coordinator, the leader of a partition of the offsets topic; without
    a group, the least committed offset of all groups that it coordinates.
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
    """Precedes an operation or a stream (MessagePack) of another node: its name and its caller."""

    name: str
    principal: str
    gateway: str
    client: str
    groups: tuple[str, ...] = ()
    listener: str = ""
    method: str = ""
    client_id: str = ""
    request_id: str = ""


class GrantHead(msgspec.Struct, frozen=True, array_like=True):
    """More credit for the stream that the request with this number opened. It has no response."""

    number: int
    count: int


class CancelHead(msgspec.Struct, frozen=True, array_like=True):
    """Cancels the request with this number, which is still answered once. It has no response itself."""

    number: int


OperationHead = DoHead | GrantHead | CancelHead
OPERATION_HEADS: Final[dict[int, type[OperationHead]]] = {
    PeerApi.DO: DoHead,
    PeerApi.OPEN: DoHead,
    PeerApi.GRANT: GrantHead,
    PeerApi.CANCEL: CancelHead,
}


class OperationAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of an operation, the next items of a stream, or a refusal. A stream ends with its first answer that is ``last``."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    last: bool = True
    reason: str = ""
    text: str = ""
    begun: bool = False
    records: list[tuple[int, str]] = []
    bound: str = ""
    """The bound that a full backlog has reached."""


class PeerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Offsets (or the numbers of a partition's status), or a refusal: the name of a reason, and a text."""

    numbers: list[int] = []
    reason: str = ""
    text: str = ""


_HEAD_LENGTH_BYTES: Final = 4
H = TypeVar("H", bound=msgspec.Struct)


def decode_operation_request(api: int, body: memoryview) -> tuple[OperationHead, memoryview]:
    """The head and the operation; ProtocolViolation if they are not valid."""
    start = _HEAD_LENGTH_BYTES + int.from_bytes(body[:_HEAD_LENGTH_BYTES], "big")
    if start > len(body):
        raise ProtocolViolation(f"Invalid request of another node: API {api} is unknown, or its head is incomplete")
    return _decode(body[_HEAD_LENGTH_BYTES:start], OPERATION_HEADS[api]), body[start:]


def refusal_answer(error: PenstockError) -> OperationAnswer:
    """The answer for a refusal, or for the failure of a stream."""
    return OperationAnswer(
        reason=error.reason.name,
        text=error.text,
        begun=error.begun,
        records=list(error.records),
        bound=error.bound.value if isinstance(error, BacklogFull) else "",
    )


def refusal_in(answer: OperationAnswer) -> PenstockError | None:
    """The refusal in an answer. A reason that only a newer node knows becomes LINK_LOST, because it says nothing here."""
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
    """The body of a request, in parts, because the batch is not copied."""
    encoded = msgspec.msgpack.encode(head)
    return [len(encoded).to_bytes(_HEAD_LENGTH_BYTES, "big") + encoded, batch]


def decode_peer_request(api: int, body: memoryview) -> tuple[Head, bytearray]:
    """The head and a copy of the batch, which the leader may change; ProtocolViolation if they are not valid."""
    kind = HEADS.get(api)
    start = _HEAD_LENGTH_BYTES + int.from_bytes(body[:_HEAD_LENGTH_BYTES], "big")
    if kind is None or start > len(body):
        raise ProtocolViolation(f"Invalid request of another node: API {api} is unknown, or its head is incomplete")
    return _decode(body[_HEAD_LENGTH_BYTES:start], kind), bytearray(body[start:])


def encode_answer(numbers: list[int] | PenstockError) -> bytes:
    """The body of an answer."""
    if isinstance(numbers, PenstockError):
        return msgspec.msgpack.encode(PeerAnswer(reason=numbers.reason.name, text=numbers.text))
    return msgspec.msgpack.encode(PeerAnswer(numbers))


def decode_answer(body: memoryview) -> list[int] | PenstockError:
    """The numbers or the refusal; a reason that only a newer node knows becomes LINK_LOST, because it says nothing here."""
    answer = _decode(body, PeerAnswer)
    if not answer.reason:
        return answer.numbers
    return PenstockError(Reason.__members__.get(answer.reason, Reason.LINK_LOST), answer.text)


def _decode(data: memoryview, kind: type[H]) -> H:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"Not a valid {kind.__name__}: {error}") from None


# The partition epoch that a follower knows, in the field of a fetch that in Kafka names the directory of the replica.

_KNOWN_BYTES: Final = 16


def encode_known_epoch(epoch: int) -> bytes:
    """The partition epoch at which a node learned that it is a replica; negative for an observer."""
    return (max(epoch, -1) + 1).to_bytes(_KNOWN_BYTES, "big")


def decode_known_epoch(data: Buffer) -> int:
    """The partition epoch; -1 if there is none."""
    return int.from_bytes(data, "big") - 1
