"""Whatever the bytes: a message or ProtocolViolation, in memory that the bytes paid for."""

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.limits import REQUEST_ELEMENTS_MAX
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.find_coordinator_generated import DECODE_REQUEST as DECODE_FIND_COORDINATOR
from penstock.wire.kafka.metadata_generated import DECODE_REQUEST as DECODE_METADATA
from penstock.wire.kafka.offset_fetch_generated import DECODE_REQUEST as DECODE_OFFSET_FETCH
from penstock.wire.kafka.primitives import uvarint
from tests.unit.wire.kafka import oracle

CASES = [
    (api, version, kind)
    for api in API.values()
    for version in range(api.min_version, api.max_version + 1)
    for kind in ("request", "response")
]
INTERESTING = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 6,
    b"\0",
)


def decoder(api: Api, version: int, kind: str):
    return (api.decode_request_table if kind == "request" else api.decode_response_table)[version]


def valid_bytes(api: Api, version: int, kind: str, seed: object = 0) -> bytes:
    encode = (api.encode_request_table if kind == "request" else api.encode_response_table)[version]
    return b"".join(encode(oracle.random_ours(api, version, kind, seed)))


def decode_anything(api: Api, version: int, kind: str, data: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        decoder(api, version, kind)(data, 0)


@pytest.mark.parametrize(("api", "version", "kind"), CASES, ids=oracle.case_id)
def test_a_message_cut_anywhere_is_refused(api, version, kind) -> None:
    data = valid_bytes(api, version, kind)
    decode = decoder(api, version, kind)
    for cut in {*range(min(len(data), 24)), *range(0, len(data), 1 + len(data) // 24), *range(len(data))[-8:]}:
        with pytest.raises(ProtocolViolation):
            decode(data[:cut], 0)


@pytest.mark.parametrize(("api", "version", "kind"), CASES, ids=oracle.case_id)
def test_extreme_lengths_at_any_place_take_no_memory_of_their_own(api, version, kind) -> None:
    data = valid_bytes(api, version, kind)[:2000]
    frames = [bytes([byte]) * 2000 for byte in (0, 1, 2, 0x7F, 0x80, 0xFF)]
    for at in range(0, len(data), 1 + len(data) // 12):
        frames += [data[:at] + extreme + data[at + len(extreme) :] for extreme in INTERESTING]
    decode_anything(api, version, kind, data)
    tracemalloc.start()
    try:
        for frame in frames:
            decode_anything(api, version, kind, frame)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@settings(max_examples=1500, deadline=None)
@given(
    case=st.sampled_from(CASES),
    seed=st.integers(0, 20),
    flips=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    splice=st.tuples(st.integers(0, 5000), st.binary(max_size=12)),
    cut=st.integers(0, 20000),
)
def test_mutated_messages_never_raise_anything_else(case, seed, flips, splice, cut) -> None:
    api, version, kind = case
    data = bytearray(valid_bytes(api, version, kind, seed))
    at, inserted = splice
    data[at % (len(data) + 1) : at % (len(data) + 1)] = inserted
    for place, value in flips:
        if data:
            data[place % len(data)] = value
    decode_anything(api, version, kind, bytes(data[:cut]))


@settings(max_examples=1500, deadline=None)
@given(case=st.sampled_from(CASES), data=st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(case, data) -> None:
    api, version, kind = case
    decode_anything(api, version, kind, data)


def test_a_count_beyond_the_bytes_left_is_refused_before_it_is_believed() -> None:
    with pytest.raises(ProtocolViolation, match="declares 2147483647 elements, but 3 bytes are left"):
        DECODE_METADATA[1](struct.pack(">i", 2**31 - 1) + b"abc", 0)
    with pytest.raises(ProtocolViolation, match="declares 4 elements, but 3 bytes are left"):
        DECODE_METADATA[9](b"\x05\0\0\0", 0)


def test_a_request_may_hold_so_many_elements_and_not_one_more() -> None:
    limit = REQUEST_ELEMENTS_MAX
    body = b"\0" + uvarint(limit + 1) + b"\x01" * limit + b"\0"
    assert len(DECODE_FIND_COORDINATOR[4](body, 0).coordinator_keys) == limit
    body = b"\0" + uvarint(limit + 2) + b"\x01" * (limit + 1) + b"\0"
    with pytest.raises(ProtocolViolation, match=f"declares {limit + 1} elements"):
        DECODE_FIND_COORDINATOR[4](body, 0)


def test_elements_of_all_arrays_count_together() -> None:
    # Groups of two topics each: no single array is large, the sum is.
    group = b"\x01" + b"\x03" + b"\x01\x01\0" * 2 + b"\0"
    assert len(DECODE_OFFSET_FETCH[8](b"\x08" + group * 7 + b"\0\0", 0).groups) == 7
    count = REQUEST_ELEMENTS_MAX // 3 + 1
    body = uvarint(count + 1) + group * count + b"\0\0"
    with pytest.raises(ProtocolViolation, match="elements"):
        DECODE_OFFSET_FETCH[8](body, 0)


def test_null_is_refused_where_the_version_has_none() -> None:
    with pytest.raises(ProtocolViolation, match=r"MetadataRequest\.topics is null"):
        DECODE_METADATA[0](b"\xff\xff\xff\xff", 0)
    assert DECODE_METADATA[1](b"\xff\xff\xff\xff", 0).topics is None
    with pytest.raises(ProtocolViolation, match=r"OffsetFetchRequestGroup\.group_id is null"):
        DECODE_OFFSET_FETCH[8](b"\x02\0\x01\0\0\0", 0)


def test_a_length_below_minus_one_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        API[ApiKey.FIND_COORDINATOR].decode_request(b"\x80\x00abc", 0, 0)


def test_a_string_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="UnicodeDecodeError"):
        API[ApiKey.FIND_COORDINATOR].decode_request(b"\x00\x02\xc3\x28", 0, 0)


def test_a_varint_over_32_bits_is_refused() -> None:
    for varint in (b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x1f"):
        with pytest.raises(ProtocolViolation, match="varint"):
            DECODE_METADATA[9](varint + bytes(20), 0)


def test_unknown_tagged_fields_are_passed_over() -> None:
    api = API[ApiKey.METADATA]
    body = b"\x00\x01\x00\x00" + b"\x02" + uvarint(7) + b"\x03abc" + uvarint(300) + b"\x00"
    assert api.decode_request(body, 0, 9) == api.decode_request(b"\x00\x01\x00\x00\x00", 0, 9)
    with pytest.raises(ProtocolViolation):
        api.decode_request(body[:-3], 0, 9)


def test_a_known_tag_that_does_not_fill_its_size_is_refused() -> None:
    api = API[ApiKey.FETCH]
    fixed = struct.pack(">iiibiiBBB", 1, 1, 1, 0, 0, -1, 1, 1, 1)
    assert api.decode_request(fixed + b"\x01" + b"\x00\x03" + b"\x03xy", 0, 15).cluster_id == "xy"
    with pytest.raises(ProtocolViolation, match="does not match its size"):
        api.decode_request(fixed + b"\x01" + b"\x00\x04" + b"\x03xy\0", 0, 15)


def test_a_nullable_structure_starts_with_minus_one_or_one() -> None:
    api = API[ApiKey.DESCRIBE_TOPIC_PARTITIONS]
    head = b"\x01" + struct.pack(">i", 5)
    assert api.decode_request(head + b"\xff\0", 0, 0).cursor is None
    assert api.decode_request(head + b"\x01\x02t\0\0\0\x01\0\0", 0, 0).cursor.topic_name == "t"
    with pytest.raises(ProtocolViolation, match="marker"):
        api.decode_request(head + b"\x02\0", 0, 0)
