"""What nodes say to each other, byte by byte: what was said is what is read, and nonsense is refused."""

from collections.abc import Callable

import msgspec
import pytest

from penstock.errors import PenstockError, Reason
from penstock.types import Acks
from penstock.wire.errors import ProtocolViolation
from penstock.wire.peers import (
    AppendHead,
    AppendOnceHead,
    Head,
    PartitionStatusHead,
    PeerApi,
    decode_answer,
    decode_challenge,
    decode_hello,
    decode_peer_request,
    decode_proof,
    encode_answer,
    encode_peer_request,
)

TOPIC_ID = bytes(range(16))
HEADS: list[tuple[PeerApi, Head]] = [
    (PeerApi.APPEND, AppendHead(TOPIC_ID, 3, 7, Acks.LEADER)),
    (PeerApi.APPEND_ONCE, AppendOnceHead(TOPIC_ID, 3, 7, "mark", [5, 6])),
    (PeerApi.PARTITION_STATUS, PartitionStatusHead(TOPIC_ID, 3, 7, 11, 2, 100)),
]


@pytest.mark.parametrize(("api", "head"), HEADS)
def test_a_request_is_read_as_it_was_said(api: PeerApi, head: Head) -> None:
    data = memoryview(b"".join(encode_peer_request(head, b"the batch")))
    assert decode_peer_request(api, data) == (head, bytearray(b"the batch"))


def test_the_batch_may_be_changed_and_is_not_the_buffer_that_came() -> None:
    data = bytearray(b"".join(encode_peer_request(HEADS[0][1], b"batch")))
    _, batch = decode_peer_request(PeerApi.APPEND, memoryview(data))
    batch[:1] = b"B"
    assert data.endswith(b"batch")


@pytest.mark.parametrize(("api", "head"), HEADS)
def test_a_request_that_ends_early_is_refused(api: PeerApi, head: Head) -> None:
    data = b"".join(encode_peer_request(head))
    for end in range(len(data)):
        with pytest.raises(ProtocolViolation):
            decode_peer_request(api, memoryview(data[:end]))


def test_a_request_of_another_kind_is_refused() -> None:
    data = b"".join(encode_peer_request(HEADS[0][1]))
    with pytest.raises(ProtocolViolation):
        decode_peer_request(PeerApi.APPEND_ONCE, memoryview(data))
    with pytest.raises(ProtocolViolation):
        decode_peer_request(29_999, memoryview(data))


def test_acks_that_nobody_knows_are_refused() -> None:
    head = msgspec.msgpack.encode([TOPIC_ID, 0, 0, "most"])
    with pytest.raises(ProtocolViolation):
        decode_peer_request(PeerApi.APPEND, memoryview(len(head).to_bytes(4, "big") + head))


def test_offsets_and_refusals_come_back() -> None:
    assert decode_answer(memoryview(encode_answer([1, 2]))) == [1, 2]
    refusal = decode_answer(memoryview(encode_answer(PenstockError(Reason.NOT_ENOUGH_REPLICAS, "one is down"))))
    assert isinstance(refusal, PenstockError)
    assert (refusal.reason, refusal.text) == (Reason.NOT_ENOUGH_REPLICAS, "one is down")


def test_a_reason_that_only_a_newer_node_knows_says_nothing_for_sure() -> None:
    data = msgspec.msgpack.encode([[], "SOMETHING_NEW", "what?"])
    refusal = decode_answer(memoryview(data))
    assert isinstance(refusal, PenstockError)
    assert refusal.reason is Reason.LINK_LOST


@pytest.mark.parametrize("decode", [decode_hello, decode_challenge, decode_proof])
@pytest.mark.parametrize("data", [b'{"x":' + b"[" * 100_000, b'{"nonce":"\xff"}', b"\xff\xfe", b""])
def test_nonsense_before_the_proof_is_refused_however_deep(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(data)
