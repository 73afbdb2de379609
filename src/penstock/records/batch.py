"""The header of a record batch (Kafka's format 2): 61 bytes that say all the broker needs to know.

A batch is what clients send, what lies on disk and what replicas copy; the broker never re-encodes it. Offset and leader
epoch stand before the CRC's range, so the broker can set them without touching the checksum:

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
base timestamp        8      milliseconds; what the records' deltas count from
max timestamp         8      milliseconds
producer id           8      -1 without idempotence
producer epoch        2
base sequence         4
record count          4
====================  =====  ====================================================

With bit 6 the base timestamp is when the batch's tombstones may go (see ``log/compaction.py``); deltas count from it all the same.
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import PenstockError, Reason
from penstock.limits import BATCH_RECORDS_MAX
from penstock.types import Buffer

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_END: Final = 12
"""A batch takes this many bytes more than its length field says."""
CRC_AT: Final = 17
CRC_COVERS_FROM: Final = 21
LENGTH_MIN: Final = HEADER_BYTES - LENGTH_END

MAGIC: Final = 2
COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
NOT_A_PRODUCERS_BITS: Final = TRANSACTIONAL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
"""What only the broker says of a batch."""
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
    """The header, field by field, in the order on disk."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec of the records."""
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def is_control(self) -> bool:
        """Whether this is a marker of the broker's, not a client's records."""
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
    """The header at ``position``; struct.error when fewer than 61 bytes are there. Checks nothing."""
    return BatchHeader._make(unpack_header(buffer, position))


def crc_matches(batch: Buffer) -> bool:
    """Whether the bytes of one whole batch are what was written."""
    view = memoryview(batch)
    return bool(crc32c(view[CRC_COVERS_FROM:]) == _CRC.unpack_from(view, CRC_AT)[0])


def set_offset(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Place a batch in a log. The CRC does not cover these fields."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, LENGTH_END, leader_epoch)


def set_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Stamp a batch with the broker's clock, and make its CRC right again."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    set_crc(batch)


def set_producer(batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Say who sends a batch and the number of its first record, and make its CRC right again."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    set_crc(batch)


def set_crc(batch: bytearray | memoryview) -> None:
    """Make the CRC right for what the batch holds now."""
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))


def read_produced(batch: Buffer) -> BatchHeader:
    """The header of what came as one batch; refused like :func:`check_produced` does."""
    if len(batch) < HEADER_BYTES:
        raise PenstockError(Reason.CORRUPT_RECORDS, f"{len(batch)} bytes are too few for a batch; send one whole batch")
    header = BatchHeader._make(unpack_header(batch))
    check_produced(batch, header)
    return header


def check_produced(batch: Buffer, header: BatchHeader) -> None:
    """Refuse what a producer may not send: ``batch`` must be exactly one whole, sound batch at offset 0."""
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
    """What is wrong with a batch that :func:`check_produced` does not take."""
    size = len(batch)
    if header.magic != MAGIC:
        return PenstockError(
            Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"record format {header.magic} is not accepted; use a client that sends format 2 (Kafka 0.11 or newer)",
        )
    if header.length + LENGTH_END != size:
        return PenstockError(
            Reason.CORRUPT_RECORDS,
            f"the batch declares {header.length + LENGTH_END} bytes, but {size} arrived; send one batch",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        return PenstockError(
            Reason.INVALID_RECORD,
            f"a batch of {header.record_count} records cannot end at delta {header.last_offset_delta}",
        )
    if header.record_count > BATCH_RECORDS_MAX:
        return PenstockError(
            Reason.RECORDS_TOO_LARGE,
            f"a batch has at most {BATCH_RECORDS_MAX} records, not {header.record_count}; send several batches",
        )
    if header.base_offset != 0:
        return PenstockError(
            Reason.INVALID_RECORD,
            f"a produced batch starts at offset 0, not {header.base_offset}; the leader assigns the offset",
        )
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        return PenstockError(Reason.UNSUPPORTED_COMPRESSION_TYPE, "use none, gzip, snappy, lz4 or zstd")
    if header.attributes & CONTROL_BIT:
        return PenstockError(Reason.INVALID_RECORD, "control batches are written only by the broker")
    if header.attributes & NOT_A_PRODUCERS_BITS and crc_matches(batch):
        return attributes_refused(header)
    return PenstockError(
        Reason.CORRUPT_RECORDS, "the checksum does not match: the batch was damaged in transit; send it again"
    )


def attributes_refused(header: BatchHeader) -> PenstockError:
    """The refusal of a batch with :data:`NOT_A_PRODUCERS_BITS`."""
    if header.attributes & TRANSACTIONAL_BIT:
        return PenstockError(
            Reason.TRANSACTIONS_NOT_SUPPORTED, "transactions are not supported; produce without transactional.id"
        )
    if header.attributes & LOG_APPEND_TIME_BIT:
        return PenstockError(
            Reason.INVALID_TIMESTAMP, "the time of append is set by the broker; send the time of creation"
        )
    return PenstockError(Reason.INVALID_RECORD, "when deleted records may go is decided by the broker")
