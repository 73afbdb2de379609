"""Building batches: for the broker's internal topics, the client, the command line and tests.

Add records until ``size_bytes`` is large enough, then build. Offsets start at 0; the leader sets the base offset.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Compression,
    read_header,
    set_crc,
)
from penstock.records.compression import compress
from penstock.records.records import Record, open_records
from penstock.types import NO_EPOCH, NO_PRODUCER_ID, Buffer


def encode_varint(number: int) -> bytes:
    """``number`` (64 bits, signed) zigzag-encoded."""
    number = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number > 127:
        encoded.append((number & 0x7F) | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL_MAX: Final = 8192
_SMALL: Final = tuple(encode_varint(number) for number in range(_SMALL_MAX))
"""The encodings of most lengths and deltas: one or two bytes."""
_NULL: Final = encode_varint(-1)
_PLAIN_BYTES_MAX: Final = _SMALL_MAX - 16
"""The length of a record with such a value is still in ``_SMALL``."""


class BatchBuilder:
    """Collects the records of one batch: ``count`` of them, with ``size_bytes`` before compression."""

    __slots__ = ("_base_timestamp", "_max_timestamp", "_parts", "count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = HEADER_BYTES
        self._parts: list[bytes] = []
        self._base_timestamp = 0
        self._max_timestamp = 0

    def add(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Add a record after the others."""
        count = self.count
        if count:
            delta = timestamp_ms - self._base_timestamp
            if timestamp_ms > self._max_timestamp:  # noqa: PLR1730  a call of max() costs more than the rest of this line
                self._max_timestamp = timestamp_ms
        else:
            self._base_timestamp = self._max_timestamp = timestamp_ms
            delta = 0
        if (
            key is None
            and value is not None
            and not headers
            and not delta
            and count < _SMALL_MAX
            and len(value) <= _PLAIN_BYTES_MAX
        ):
            # The most common record, a value and nothing else, in two thirds of the time.
            body = b"\x00\x00%b\x01%b%b\x00" % (_SMALL[count], _SMALL[len(value)], value)
            size = len(body)
            length = _SMALL[size]
            self._parts.append(length)
            self._parts.append(body)
            self.size_bytes += size + len(length)
            self.count = count + 1
            return
        key_size = 0 if key is None else len(key)
        value_size = 0 if value is None else len(value)
        body = b"".join(
            (
                b"\x00",
                _SMALL[delta] if 0 <= delta < _SMALL_MAX else encode_varint(delta),
                _SMALL[count] if count < _SMALL_MAX else encode_varint(count),
                _NULL if key is None else _SMALL[key_size] if key_size < _SMALL_MAX else encode_varint(key_size),
                key or b"",
                _NULL
                if value is None
                else _SMALL[value_size]
                if value_size < _SMALL_MAX
                else encode_varint(value_size),
                value or b"",
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        size = len(body)
        length = _SMALL[size] if size < _SMALL_MAX else encode_varint(size)
        self._parts.append(length)
        self._parts.append(body)
        self.size_bytes += size + len(length)
        self.count = count + 1

    def build(
        self,
        *,
        compression: Compression = Compression.NONE,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
    ) -> bytearray:
        """The whole batch, ready to be sent or appended. A bytearray, because the leader writes the offset into it."""
        assert self.count, "a batch has at least one record"
        header = BatchHeader(
            attributes=(TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.count,
        )
        return seal(b"".join(self._parts), header, compression)


def build_batch(
    records: Iterable[Record],
    *,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """One batch of all the records, in their order; their offsets are ignored."""
    builder = BatchBuilder()
    for _, timestamp_ms, key, value, headers in records:
        builder.add(timestamp_ms, key, value, headers)
    return builder.build(
        compression=compression, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


def seal(data: Buffer, header: BatchHeader, compression: Compression) -> bytearray:
    """A batch of the encoded records ``data`` with this ``header``: compressed, with length, codec and CRC set."""
    body = compress(data, compression) if compression else data
    batch = bytearray(HEADER_BYTES + len(body))
    batch[HEADER_BYTES:] = body
    HEADER.pack_into(
        batch,
        0,
        *header._replace(
            length=len(batch) - LENGTH_END, attributes=(header.attributes & ~COMPRESSION_MASK) | int(compression)
        ),
    )
    set_crc(batch)
    return batch


def recompress(batch: Buffer, compression: Compression, bytes_max: int) -> bytearray:
    """The same batch with another codec: only length, codec bits and CRC change.

    RECORDS_TOO_LARGE if the records decompress to more than ``bytes_max``. Run it in a thread: a large batch takes milliseconds.
    """
    header = read_header(batch)
    return seal(open_records(batch, header, bytes_max), header, compression)


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts.append(encode_varint(len(encoded)))
        parts.append(encoded)
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(encode_varint(len(value)))
            parts.append(value)
    return b"".join(parts)
