import contextlib
import importlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.unit.wire.kafka import oracle


def kio_data_class(kind: str, version: int) -> type:
    module = importlib.import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    return getattr(module, f"ConsumerProtocol{kind.capitalize()}")


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("seed", range(20))
def test_subscriptions_and_assignments_agree_with_kio(version, seed) -> None:
    for kind, cls, encode, decode in (
        ("subscription", Subscription, encode_subscription, decode_subscription),
        ("assignment", Assignment, encode_assignment, decode_assignment),
    ):
        theirs = oracle.random_message(kio_data_class(kind, version), random.Random(seed))
        ours = oracle.to_ours(theirs, cls)
        data = struct.pack(">h", version) + oracle.kio_encode(theirs)
        assert encode(ours, version) == data
        assert decode(data) == ours
        assert decode(memoryview(data + b"newer fields")) == ours


def test_a_version_newer_than_we_know_is_read_as_the_newest_we_know() -> None:
    subscription = Subscription(["t"], b"u", [TopicPartitions("t", [1])], 4, "rack")
    data = struct.pack(">h", 9) + encode_subscription(subscription, 3)[2:] + b"and what version 9 added"
    assert decode_subscription(data) == subscription
    assignment = Assignment([TopicPartitions("t", [0, 1])], None)
    assert decode_assignment(struct.pack(">h", 9) + encode_assignment(assignment, 3)[2:]) == assignment


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\0\0\0\0",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\x01\xff\xff",
        b"\0\0\0\0\0\x01\0\x02\xc3\x28",
        b"\0\0\0\0\0\0\0\0\0\x09abc",
    ],
)
def test_a_broken_subscription_is_refused(data) -> None:
    with pytest.raises(ProtocolViolation):
        decode_subscription(data)


@given(st.binary(max_size=80), st.integers(-1, 5))
def test_random_bytes_never_raise_anything_else(data, version) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(ProtocolViolation):
            decode(struct.pack(">h", version) + data)
