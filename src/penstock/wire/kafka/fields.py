"""Readers and writers of single fields, for the small hand-written formats where speed does not matter.

Invariant: every reader checks the length it finds against the bytes left and raises `ProtocolViolation`, so the
formats built from them need no checks of their own. A reader returns the value and the position after it. All are
Kafka's older encoding: big-endian integers, two-byte string lengths, four-byte byte lengths and counts.
"""

import struct
from collections.abc import Sequence

from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation


def _take(buf: Buffer, pos: int, size: int) -> tuple[bytes, int]:
    stop = pos + size
    if stop > len(buf):
        raise ProtocolViolation(f"A field of {size} bytes starts {len(buf) - pos} bytes before the end")
    return bytes(buf[pos:stop]), stop


def read_i16(buf: Buffer, pos: int) -> tuple[int, int]:
    """A 16-bit integer."""
    data, pos = _take(buf, pos, 2)
    return int.from_bytes(data, "big", signed=True), pos


def read_i32(buf: Buffer, pos: int) -> tuple[int, int]:
    """A 32-bit integer."""
    data, pos = _take(buf, pos, 4)
    return int.from_bytes(data, "big", signed=True), pos


def read_i64(buf: Buffer, pos: int) -> tuple[int, int]:
    """A 64-bit integer."""
    data, pos = _take(buf, pos, 8)
    return int.from_bytes(data, "big", signed=True), pos


def read_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    """A string; a negative length is null."""
    size, pos = read_i16(buf, pos)
    if size < 0:
        return None, pos
    data, pos = _take(buf, pos, size)
    try:
        return data.decode(), pos
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"A string is not UTF-8: {error.reason}") from None


def read_string(buf: Buffer, pos: int) -> tuple[str, int]:
    """A string that may not be null."""
    value, pos = read_nullable_string(buf, pos)
    if value is None:
        raise ProtocolViolation("A string must not be null")
    return value, pos


def read_nullable_bytes(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    """Bytes; a negative length is null."""
    size, pos = read_i32(buf, pos)
    return (None, pos) if size < 0 else _take(buf, pos, size)


def read_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    """Bytes that may not be null."""
    value, pos = read_nullable_bytes(buf, pos)
    if value is None:
        raise ProtocolViolation("A byte field must not be null")
    return value, pos


def read_count(buf: Buffer, pos: int, element_bytes_min: int) -> tuple[int, int]:
    """An array's count, refused unless that many of the smallest possible elements fit into the bytes left."""
    count, pos = read_i32(buf, pos)
    if count < 0 or count * element_bytes_min > len(buf) - pos:
        raise ProtocolViolation(f"An array declares {count} elements, but {len(buf) - pos} bytes are left")
    return count, pos


def read_i32s(buf: Buffer, pos: int) -> tuple[list[int], int]:
    """An array of 32-bit integers."""
    count, pos = read_count(buf, pos, 4)
    return list(struct.unpack_from(f">{count}i", buf, pos)), pos + 4 * count


def string(value: str | None) -> bytes:
    """Encode a string or null."""
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def data(value: bytes | None) -> bytes:
    """Encode bytes or null."""
    return b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value


def i32s(values: Sequence[int]) -> bytes:
    """Encode an array of 32-bit integers."""
    return struct.pack(f">i{len(values)}i", len(values), *values)
