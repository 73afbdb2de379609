import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.group_records import (
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)

OFFSET_KEY = bytes.fromhex("0001 0002 6731 0003 746f70 00000007")
GROUP_KEY = bytes.fromhex("0002 0002 6731")
OFFSET_V1 = bytes.fromhex("0001 0000000000000064 0002 6d64 000001f0d6d2c800 000001f0d6d2c801")
OFFSET_V2 = bytes.fromhex("0002 0000000000000064 0002 6d64 000001f0d6d2c800")
OFFSET_V3 = bytes.fromhex("0003 0000000000000064 00000005 0002 6d64 000001f0d6d2c800")
GROUP_V3 = bytes.fromhex(
    "0003 0008 636f6e73756d6572 0000002a 0005 72616e6765 0002 6d31 000001f0d6d2c800 00000002"
    "0002 6d31 ffff 0001 63 0002 2f31 0000ea60 0000afc8 00000002 5301 00000003 410102"
    "0002 6d32 0002 6932 0001 63 0002 2f31 0000ea60 0000afc8 00000000 00000000"
)
GROUP = GroupMetadataValue(
    "consumer",
    42,
    "range",
    "m1",
    0x1F0D6D2C800,
    [
        GroupMember("m1", None, "c", "/1", 60000, 45000, b"S\x01", b"A\x01\x02"),
        GroupMember("m2", "i2", "c", "/1", 60000, 45000, b"", b""),
    ],
)


def test_keys_are_laid_out_as_kafka_lays_them_out():
    assert encode_offset_key(OffsetCommitKey("g1", "top", 7)) == OFFSET_KEY
    assert decode_key(OFFSET_KEY) == OffsetCommitKey("g1", "top", 7)
    assert decode_key(b"\0\0" + OFFSET_KEY[2:]) == OffsetCommitKey("g1", "top", 7)
    assert encode_group_key(GroupMetadataKey("g1")) == GROUP_KEY
    assert decode_key(memoryview(GROUP_KEY)) == GroupMetadataKey("g1")


def test_offset_values_of_three_versions_are_read_and_two_are_written():
    ms = 0x1F0D6D2C800
    assert decode_offset_value(OFFSET_V1) == OffsetCommitValue(100, -1, "md", ms, ms + 1)
    assert decode_offset_value(OFFSET_V2) == OffsetCommitValue(100, -1, "md", ms)
    assert decode_offset_value(OFFSET_V3) == OffsetCommitValue(100, 5, "md", ms)
    assert encode_offset_value(OffsetCommitValue(100, -1, "md", ms, ms + 1), version=1) == OFFSET_V1
    assert encode_offset_value(OffsetCommitValue(100, 5, "md", ms)) == OFFSET_V3


def test_an_offset_without_epoch_metadata_or_time_round_trips():
    value = OffsetCommitValue(0)
    assert encode_offset_value(value) == bytes.fromhex("0003 0000000000000000 ffffffff 0000 ffffffffffffffff")
    assert decode_offset_value(encode_offset_value(value)) == value


def test_group_metadata_is_laid_out_as_kafka_lays_it_out():
    assert encode_group_value(GROUP) == GROUP_V3
    assert decode_group_value(GROUP_V3) == GROUP


def test_an_empty_group_has_no_protocol_and_no_leader():
    value = GroupMetadataValue("", 3, None, None)
    assert encode_group_value(value) == bytes.fromhex("0003 0000 00000003 ffff ffff ffffffffffffffff 00000000")
    assert decode_group_value(encode_group_value(value)) == value


@pytest.mark.parametrize(
    ("decode", "data"), [(decode_key, OFFSET_KEY), (decode_key, GROUP_KEY), (decode_offset_value, OFFSET_V1),
                         (decode_offset_value, OFFSET_V3), (decode_group_value, GROUP_V3)]
)  # fmt: skip
def test_a_record_cut_anywhere_is_refused(decode, data):
    for cut in range(len(data)):
        with pytest.raises(ProtocolViolation):
            decode(data[:cut])


@pytest.mark.parametrize(
    ("decode", "version"),
    [(decode_key, 3), (decode_key, -1), (decode_offset_value, 0), (decode_offset_value, 4), (decode_group_value, 4)],
)
def test_an_unknown_version_is_refused_with_its_number(decode, version):
    with pytest.raises(ProtocolViolation, match=f"version {version} "):
        decode(struct.pack(">h", version) + bytes(100))


@given(st.sampled_from([OFFSET_KEY, GROUP_KEY, OFFSET_V1, OFFSET_V3, GROUP_V3]), st.data())
def test_mutated_records_never_raise_anything_else(data, draw):
    changed = bytearray(data)
    for _ in range(3):
        changed[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    for decode in (decode_key, decode_offset_value, decode_group_value):
        try:
            decode(changed)
        except ProtocolViolation:
            pass
