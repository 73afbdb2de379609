"""The records inside one batch: decoded one by one, every length checked before it is used.

After the 61-byte header, compressed as a whole or not, each record is::

    length varint | attributes 1 byte | timestamp delta varint | offset delta varint
    key length varint, key | value length varint, value | header count varint, (name length varint, name, value length varint, value)*

Varints are zigzag-encoded, seven bits per byte, lowest first; a length of -1 is null. Anything that does not fit exactly is
CORRUPT_RECORDS.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.errors import PenstockError, Reason
from penstock.limits import RECORD_HEADERS_MAX
from penstock.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    Compression,
    read_header,
)
from penstock.records.compression import decompress
from penstock.types import Buffer

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two lengths, header count: one byte each."""
_VARINT_BITS_MAX: Final = 63

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record. A tuple, because it costs a third of a frozen dataclass, and there are many."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


RecordSpan = tuple[int, int, int, int, int, bytes | None, bytes | None, int]
"""The place of one record in the opened records of its batch, so that it can be copied without being decoded completely:

start (position of its length), end, timestamp delta, position of its offset delta (nothing from there to the end depends on
the batch's timestamp), offset delta, key, value, position of its headers. A plain tuple, because that is cheapest.
"""


def open_records(batch: Buffer, header: BatchHeader, bytes_max: int) -> bytes:
    """The bytes after the header, decompressed; RECORDS_TOO_LARGE if they decompress to more than ``bytes_max``."""
    if not header.record_count:
        return b""
    codec = header.attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise PenstockError(Reason.UNSUPPORTED_COMPRESSION_TYPE, "Use none, gzip, snappy, lz4 or zstd")
    return decompress(memoryview(batch)[HEADER_BYTES : header.size_bytes], Compression(codec), bytes_max)


def read_records(batch: Buffer, bytes_max: int) -> Iterator[Record]:
    """The records of one whole batch, in order. Does not check the CRC: the receiver of the bytes does that."""
    header = read_header(batch)
    data = open_records(batch, header, bytes_max)
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    fixed_timestamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    for _, end, timestamp_delta, _, offset_delta, key, value, headers_at in read_spans(data, header):
        yield Record(
            base_offset + offset_delta,
            base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp,
            key,
            value,
            () if end - headers_at == 1 else read_headers(data, headers_at, end),
        )


def read_spans(data: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """The place of each record in the opened records ``data``. Does not check headers."""
    size = len(data)
    count = header.record_count
    if count < 0 or count * RECORD_BYTES_MIN > size:
        raise corrupt(f"{count} records do not fit into {size} bytes")
    offset_delta_max = header.last_offset_delta
    offset_delta = -1
    position = 0
    try:
        for index in range(count):
            start = position
            # Inline, because nearly every varint is a single byte and a call would cost more than decoding it.
            number = data[position]
            position += 1
            if number > 127:
                number, position = _read_more(data, position, number)
            length = (number >> 1) ^ -(number & 1)
            end = position + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise corrupt(f"Record {index} declares {length} bytes, but {size - position} are left")
            number = data[position + 1]  # after the attributes, which have no bit in use
            position += 2
            if number > 127:
                number, position = _read_more(data, position, number)
            timestamp_delta = (number >> 1) ^ -(number & 1)
            offset_delta_at = position
            number = data[position]
            position += 1
            if number > 127:
                number, position = _read_more(data, position, number)
            previous, offset_delta = offset_delta, (number >> 1) ^ -(number & 1)
            # Records with equal offsets could not be acknowledged separately, and compress too well: a million in a kilobyte.
            if not previous < offset_delta <= offset_delta_max:
                raise corrupt(
                    f"Record {index} has offset delta {offset_delta} after {previous}, with a maximum of {offset_delta_max}"
                )
            number = data[position]
            position += 1
            if number > 127:
                number, position = _read_more(data, position, number)
            key_size = (number >> 1) ^ -(number & 1)
            key = None
            if key_size >= 0:
                key = data[position : position + key_size]
                position += key_size
            number = data[position]
            position += 1
            if number > 127:
                number, position = _read_more(data, position, number)
            value_size = (number >> 1) ^ -(number & 1)
            value = None
            if value_size >= 0:
                value = data[position : position + value_size]
                position += value_size
            if position >= end or key_size < -1 or value_size < -1:
                raise corrupt(f"Record {index} of {length} bytes has a key of {key_size} and a value of {value_size}")
            yield start, end, timestamp_delta, offset_delta_at, offset_delta, key, value, position
            position = end
    except IndexError:
        raise corrupt("The records end in the middle of a record") from None
    if position != size:
        raise corrupt(f"{size - position} bytes follow the last record")


def read_headers(data: bytes, position: int, end: int) -> Headers:
    """The headers of one record, which start at ``position`` and must end exactly at ``end``."""
    try:
        count, position = read_varint(data, position)
        if not 0 <= count * 2 <= end - position:
            raise corrupt(f"{count} headers do not fit into {end - position} bytes")
        if count > RECORD_HEADERS_MAX:
            raise corrupt(f"{count} headers are too many: a record has at most {RECORD_HEADERS_MAX}")
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            length, position = read_varint(data, position)
            if not 0 <= length <= end - position:
                raise corrupt(f"A header name has {length} bytes, but {end - position} are left")
            name = data[position : position + length].decode()
            length, position = read_varint(data, position + length)
            if length == -1:
                headers.append((name, None))
                continue
            if not 0 <= length <= end - position:
                raise corrupt(f"A header value has {length} bytes, but {end - position} are left")
            headers.append((name, data[position : position + length]))
            position += length
    except IndexError:
        raise corrupt("The headers of a record end early") from None
    except UnicodeDecodeError:
        raise corrupt("The name of a header is not UTF-8") from None
    if position != end:
        raise corrupt("The headers of a record do not fill it")
    return tuple(headers)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The zigzag varint at ``position``, and where it ends."""
    number = data[position]
    position += 1
    if number > 127:
        number, position = _read_more(data, position, number)
    return (number >> 1) ^ -(number & 1), position


def corrupt(text: str) -> PenstockError:
    """The error for a malformed batch, whose CRC is correct."""
    return PenstockError(Reason.CORRUPT_RECORDS, f"{text}: the batch is malformed; check the client that created it")


def check_keys(batch: Buffer, header: BatchHeader, bytes_max: int) -> list[tuple[int, str]]:
    """The records that a compacted topic refuses: (index in the batch, what to do about it); empty if all have keys.

    CORRUPT_RECORDS or RECORDS_TOO_LARGE if the batch cannot be opened within ``bytes_max``.
    """
    return [
        (index, "a record in a compacted topic needs a key; add a key")
        for index, (_, _, _, _, _, key, _, _) in enumerate(read_spans(open_records(batch, header, bytes_max), header))
        if key is None
    ]


def _read_more(data: bytes, position: int, number: int) -> tuple[int, int]:
    """The rest of a varint that continues after its first byte, ``number``; not yet zigzag-decoded."""
    number &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            break
        shift += 7
        if shift > _VARINT_BITS_MAX:
            raise corrupt("A number has more than ten bytes")
    return number & 0xFFFFFFFFFFFFFFFF, position
