import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.primitives import compact_i32s, legacy_i32s, read_i32s, read_uvarint, skip_tags, uvarint


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_round_trip(value) -> None:
    data = uvarint(value)
    assert len(data) <= 5
    assert read_uvarint(b"x" + data + b"y", 1) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**32 - 1, b"\xff\xff\xff\xff\x0f")],
)
def test_unsigned_varints_are_little_groups_of_seven_bits(value, data) -> None:
    assert uvarint(value) == data


@pytest.mark.parametrize("data", [b"\x80" * 5 + b"\0", b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\x7f"])
def test_a_varint_over_32_bits_is_refused(data) -> None:
    with pytest.raises(ProtocolViolation):
        read_uvarint(data, 0)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40))
def test_integer_arrays_round_trip_in_both_encodings(values) -> None:
    plain = struct.pack(f">{len(values)}i", *values)
    assert legacy_i32s(values) == struct.pack(">i", len(values)) + plain
    assert compact_i32s(values) == uvarint(len(values) + 1) + plain
    assert read_i32s(b"x" + plain, 1, len(values)) == values


def test_a_compact_integer_array_may_be_long() -> None:
    values = list(range(1000))
    assert compact_i32s(values) == uvarint(1001) + struct.pack(">1000i", *values)


def test_skipping_tags_ends_after_the_last_one() -> None:
    section = uvarint(130) + b"".join(uvarint(tag) + b"\x02ab" for tag in range(130))
    assert skip_tags(section + b"rest", 1, section[0]) == len(section)
