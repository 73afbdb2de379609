"""What the generated Kafka codecs call when straight-line code does not pay: long varints, tags, integer arrays.

Invariants:
- A read never goes before `pos`, and a length or a count that came from the peer is checked before memory is taken.
- A slice past the end of the buffer is short rather than an error in Python, so every decoder compares its final
  position with the size of the buffer once, at the end: positions only grow, so one overrun anywhere shows there.

Positions are offsets into the buffer. Lengths and counts on the wire are either fixed integers (older versions) or
unsigned varints holding the value plus one (flexible versions), where zero means null.
"""

import struct
from collections.abc import Sequence
from typing import Final

from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation

UUID_ZERO: Final = bytes(16)
"""Kafka's null UUID. UUIDs travel through the codec as 16 raw bytes."""

RECORDS_INLINE_BYTES_MAX: Final = 4096
"""Records up to this size are copied into the surrounding buffer: cheaper than two more buffers for the socket."""

DECODE_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError, OverflowError)
"""What Python raises when straight-line decoding meets a truncated or malformed body."""

_VARINT_BYTES_MAX: Final = 5
_TABLE_SIZE: Final = 17

_unpack_i32s: Final = tuple(struct.Struct(f">{n}i").unpack_from for n in range(_TABLE_SIZE))
_pack_legacy_i32s: Final = tuple(struct.Struct(f">i{n}i").pack for n in range(_TABLE_SIZE))
_pack_compact_i32s: Final = tuple(struct.Struct(f">B{n}i").pack for n in range(_TABLE_SIZE))


def malformed(what: str, error: Exception) -> ProtocolViolation:
    """Name the message that could not be read; the Python error says whether it was cut short or not UTF-8."""
    return ProtocolViolation(f"Malformed {what}: {type(error).__name__}: {error}")


def truncated(what: str) -> ProtocolViolation:
    """A length in the message points past its end."""
    return ProtocolViolation(f"Truncated {what}: a length points past the end of the message")


def null_refused(field: str) -> ProtocolViolation:
    """A null, or a negative length, where this version of the message allows none."""
    return ProtocolViolation(f"{field} is null or has a negative length, which this version does not allow")


def count_refused(field: str, count: int, bytes_left: int) -> ProtocolViolation:
    """An array count that the bytes left cannot hold, or one element too many for a single message."""
    return ProtocolViolation(f"{field} declares {count} elements, but {bytes_left} bytes are left in the message")


def tag_refused(field: str) -> ProtocolViolation:
    """A tagged field whose announced size is not the size of its content."""
    return ProtocolViolation(f"A tagged field of {field} does not match its size")


def marker_refused(field: str) -> ProtocolViolation:
    """A nullable structure starts with -1 (null) or 1 (present)."""
    return ProtocolViolation(f"{field} starts with a marker that is neither -1 nor 1")


def uvarint_rest(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Finish an unsigned varint whose first byte (over 127) has been read; return the value and the new position."""
    value = first & 0x7F
    shift = 7
    for at in range(pos, pos + _VARINT_BYTES_MAX - 1):
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at + 1
        shift += 7
    raise ProtocolViolation("A varint is longer than 32 bits")


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint; return the value and the position after it."""
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    return uvarint_rest(buf, pos + 1, first)


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buf: Buffer, pos: int, first: int) -> int:
    """Pass over a section of tagged fields whose count's first byte has been read; return the position after it."""
    count = first
    if count > 0x7F:
        count, pos = uvarint_rest(buf, pos, first)
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
    return pos


def read_i32s(buf: Buffer, pos: int, count: int) -> list[int]:
    """Read `count` 32-bit integers; the caller has checked the count."""
    if count < _TABLE_SIZE:
        return list(_unpack_i32s[count](buf, pos))
    return list(struct.unpack_from(f">{count}i", buf, pos))


def legacy_i32s(values: Sequence[int]) -> bytes:
    """Encode an array of 32-bit integers with its four-byte count."""
    count = len(values)
    if count < _TABLE_SIZE:
        return _pack_legacy_i32s[count](count, *values)
    return struct.pack(f">i{count}i", count, *values)


def compact_i32s(values: Sequence[int]) -> bytes:
    """Encode an array of 32-bit integers with its varint count."""
    count = len(values)
    if count < _TABLE_SIZE:
        return _pack_compact_i32s[count](count + 1, *values)
    return uvarint(count + 1) + struct.pack(f">{count}i", *values)
