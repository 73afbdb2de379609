"""Record batches (format 2), made once before the clock starts.

Invariant: what comes out is a whole valid batch as a broker must accept it: base offset 0, CRC32C over everything after the CRC,
offset deltas 0..n-1, no compression, no producer id.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

# base offset, length, leader epoch, magic, CRC
_HEAD = struct.Struct(">qiibI")
# attributes, last offset delta, first and last timestamp, producer id, producer epoch, base sequence, record count
_BODY = struct.Struct(">hiqqqhii")
_CRC_AT = 17
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEAD.size + _BODY.size
LENGTH_COVERS_FROM = 12  # the length field counts from the leader epoch on


def zigzag(value: int) -> bytes:
    """A signed variable-length integer, as records carry them."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def record(offset_delta: int, value: bytes) -> bytes:
    """One record without key or headers, at the batch's first timestamp."""
    body = b"\x00" + zigzag(0) + zigzag(offset_delta) + zigzag(-1) + zigzag(len(value)) + value + zigzag(0)
    return zigzag(len(body)) + body


def batch_of(values: list[bytes], timestamp_ms: int) -> bytes:
    """A batch holding `values` in order."""
    if not values:
        raise ValueError("a batch holds at least one record")
    records = b"".join(record(delta, value) for delta, value in enumerate(values))
    count = len(values)
    body = _BODY.pack(0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + records
    length = _HEAD.size - LENGTH_COVERS_FROM + len(body)
    return _HEAD.pack(0, length, -1, 2, crc32c(body)) + body


def batch_filling(batch_bytes_max: int, value: bytes, timestamp_ms: int) -> tuple[bytes, int]:
    """The largest batch of equal records within `batch_bytes_max`, and how many records it holds."""
    size = HEADER_BYTES
    count = 0
    while True:
        size += len(record(count, value))
        if size > batch_bytes_max:
            break
        count += 1
    if not count:
        raise ValueError(
            f"a record of {len(value)} bytes does not fit a batch of {batch_bytes_max} bytes: raise the batch size"
        )
    return batch_of([value] * count, timestamp_ms), count


def reseal(frame: bytearray, batch_at: int, batch_bytes: int) -> None:
    """Put the right CRC back after a value inside `frame` was patched."""
    crc_at = batch_at + _CRC_AT
    with memoryview(frame) as view:
        _CRC.pack_into(frame, crc_at, crc32c(view[crc_at + 4 : batch_at + batch_bytes]))
