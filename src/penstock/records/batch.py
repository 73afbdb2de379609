"""The header of a record batch (Kafka's format 2): 61 bytes with everything the broker needs to know.

A batch is what clients send, segments store and replicas copy; the broker never re-encodes it. The CRC does not cover offset
and leader epoch, so the broker can set them without changing the checksum:

====================  =====  ====================================================
field                 bytes  meaning
====================  =====  ====================================================
base offset           8      offset of the first record; set by the leader
length                4      bytes after this field
leader epoch          4      set by the leader
magic                 1      2
crc                   4      CRC-32C of everything after this field
attributes            2      compression 0-2, log-append time 3, transactional 4, control 5, delete horizon 6
last offset delta     4      offset of the last record - base offset
base timestamp        8      milliseconds; the records' deltas are relative to it
max timestamp         8      milliseconds
producer id           8      -1 without idempotence
producer epoch        2
base sequence         4
record count          4
====================  =====  ====================================================

With bit 6 the base timestamp is when the batch's tombstones may be removed (see ``log/compaction.py``); deltas are relative
to it as usual.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import PenstockError, Reason
from penstock.limits import BATCH_RECORDS_MAX
from penstock.types import NO_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, Buffer

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_END: Final = 12
"""A batch has this many bytes more than its length field says."""
CRC_AT: Final = 17
CRC_COVERS_FROM: Final = 21
LENGTH_MIN: Final = HEADER_BYTES - LENGTH_END

MAGIC: Final = 2
NO_SEQUENCE: Final = -1
COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
NOT_A_PRODUCERS_BITS: Final = TRANSACTIONAL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
"""Only the broker may set these."""
_REFUSED_BITS: Final = NOT_A_PRODUCERS_BITS | CONTROL_BIT

_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43

_OFFSET: Final = Struct(">q")
_INT32: Final = Struct(">i")
_CRC: Final = Struct(">I")
_OFFSET_AND_LENGTH: Final = Struct(">qi")
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP: Final = Struct(">q")
_PRODUCER: Final = Struct(">qhi")

unpack_header = HEADER.unpack_from
unpack_offset_and_length = _OFFSET_AND_LENGTH.unpack_from

assert HEADER_BYTES == 61


class Compression(IntEnum):
    """The codec in the lowest three bits of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """The fields of the header, in their order on disk."""

    base_offset: int = 0
    length: int = 0
    leader_epoch: int = NO_EPOCH
    magic: int = MAGIC
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    base_sequence: int = NO_SEQUENCE
    record_count: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec of the records."""
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def is_control(self) -> bool:
        """Whether this is a marker of the broker, not records of a client."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have max_timestamp as their timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequence numbers wrap at 2^31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``; struct.error if there are fewer than 61 bytes. Checks nothing."""
    return BatchHeader._make(unpack_header(buffer, position))


def batches_in(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches that a read of a log returned, each with its header."""
    view = memoryview(data)
    position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.size_bytes
        yield header, view[position:end]
        position = end


def crc_matches(batch: Buffer) -> bool:
    """Whether the CRC of one whole batch is correct."""
    view = memoryview(batch)
    return bool(crc32c(view[CRC_COVERS_FROM:]) == _CRC.unpack_from(view, CRC_AT)[0])


def set_offset(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set the place of a batch in a log. The CRC does not cover these fields."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, LENGTH_END, leader_epoch)


def set_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Set the broker's time as the timestamp of all records, and update the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    set_crc(batch)


def set_producer(batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Set the producer of a batch and the sequence of its first record, and update the CRC."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    set_crc(batch)


def set_crc(batch: bytearray | memoryview) -> None:
    """Update the CRC of a batch."""
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))


def read_produced(batch: Buffer) -> BatchHeader:
    """The header of a received batch, checked by :func:`check_produced`."""
    if len(batch) < HEADER_BYTES:
        raise PenstockError(Reason.CORRUPT_RECORDS, f"{len(batch)} bytes are too few for a batch; send one whole batch")
    header = BatchHeader._make(unpack_header(batch))
    check_produced(batch, header)
    return header


def check_produced(batch: Buffer, header: BatchHeader) -> None:
    """Refuse what a producer may not send: ``batch`` must be exactly one whole, sound batch with base offset 0."""
    base_offset, length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = header
    if (
        magic == MAGIC
        and length + LENGTH_END == len(batch)
        and 0 < record_count <= BATCH_RECORDS_MAX
        and last_offset_delta == record_count - 1
        and base_offset == 0
        and attributes & COMPRESSION_MASK <= Compression.ZSTD
        and not attributes & _REFUSED_BITS
        and crc32c(memoryview(batch)[CRC_COVERS_FROM:]) == crc
    ):
        return
    raise _refusal(batch, header)


def _refusal(batch: Buffer, header: BatchHeader) -> PenstockError:
    """What is wrong with a batch that :func:`check_produced` refuses."""
    size = len(batch)
    if header.magic != MAGIC:
        return PenstockError(
            Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Record format {header.magic} is not accepted; use a client that sends format 2 (Kafka 0.11 or newer)",
        )
    if header.length + LENGTH_END != size:
        return PenstockError(
            Reason.CORRUPT_RECORDS,
            f"The batch declares {header.length + LENGTH_END} bytes, but {size} arrived; send one batch",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        return PenstockError(
            Reason.INVALID_RECORD,
            f"A batch of {header.record_count} records cannot have the last offset delta {header.last_offset_delta}",
        )
    if header.record_count > BATCH_RECORDS_MAX:
        return PenstockError(
            Reason.RECORDS_TOO_LARGE,
            f"A batch has at most {BATCH_RECORDS_MAX} records, not {header.record_count}; send several batches",
        )
    if header.base_offset != 0:
        return PenstockError(
            Reason.INVALID_RECORD,
            f"A produced batch starts at offset 0, not {header.base_offset}; the leader assigns the offset",
        )
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        return PenstockError(Reason.UNSUPPORTED_COMPRESSION_TYPE, "Use none, gzip, snappy, lz4 or zstd")
    if header.attributes & CONTROL_BIT:
        return PenstockError(Reason.INVALID_RECORD, "Only the broker writes control batches")
    if header.attributes & NOT_A_PRODUCERS_BITS and crc_matches(batch):
        return attributes_refused(header)
    return PenstockError(
        Reason.CORRUPT_RECORDS, "The checksum does not match: the batch was damaged in transit; send it again"
    )


def attributes_refused(header: BatchHeader) -> PenstockError:
    """The error for a batch with :data:`NOT_A_PRODUCERS_BITS`."""
    if header.attributes & TRANSACTIONAL_BIT:
        return PenstockError(
            Reason.TRANSACTIONS_NOT_SUPPORTED, "Transactions are not supported; produce without transactional.id"
        )
    if header.attributes & LOG_APPEND_TIME_BIT:
        return PenstockError(Reason.INVALID_TIMESTAMP, "The broker sets the append time; send the creation time")
    return PenstockError(
        Reason.INVALID_RECORD,
        "The broker decides when deleted records are removed; send a batch without a delete horizon",
    )
