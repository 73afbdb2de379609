"""Record batches as they were fetched, to Arrow columns, with nothing done per record in Python.

All batches of a call lie in one buffer: the fetched bytes themselves when they are neighbours there, a copy when they are
small or compressed. The records are found (``starts``), their fields are read as vectors (``words``), and the columns are taken
out of the buffer (``columns``).

Invariant: what the row reader (``records/records.py``) refuses is refused here, whatever columns are wanted; only headers
are not looked into when nobody asks for them. What is not refused is the same records.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.columnar.columns import numbers, slices
from penstock.records.columnar.committed import Batch, visible
from penstock.records.columnar.headers import HEADERS, headers_column
from penstock.records.columnar.heads import Heads
from penstock.records.columnar.opened import COLUMN_BYTES_MAX, Opened, open_groups
from penstock.records.columnar.starts import find_records
from penstock.records.columnar.words import Bytes, Cursor, Ints
from penstock.records.records import corrupt

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
COLUMNS: Final = frozenset(SCHEMA.names)
"""What can be asked for, in the schema's order in the result."""

_GROUP_BYTES: Final = 64 * MIB
_OFFSET_MAX: Final = 2**63 - 1
_CHUNK_RECORDS: Final = 16384
"""As many records as have their vectors in the processor's cache while they are read."""
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_TIMESTAMP_MS_PLAIN: Final = 2**52
"""No sum of two such numbers is near what 64 bits hold in microseconds."""


def decode(
    batches: Sequence[Batch],
    *,
    columns: frozenset[str],
    from_offset: int,
    to_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    bytes_max: int,
) -> pa.RecordBatch | None:
    """The records of whole batches with ``from_offset <= offset < to_offset``, in the wanted columns; None when there are none.

    Control batches are left out, and with ``aborted`` (producer id, first offset) the records of those transactions. A batch that opens to
    more than ``bytes_max`` is RECORDS_TOO_LARGE, as are batches that open to 2 GB together: use :func:`decode_each` for such.
    A malformed batch is CORRUPT_RECORDS, and then nothing is returned. A timestamp that Spark cannot hold (behind the year 294,000) is the last it can.
    """
    seen = visible(batches, aborted, bytes_max) if aborted else batches
    opened = next(open_groups(seen, from_offset, to_offset, bytes_max, COLUMN_BYTES_MAX), None)
    if opened is None:
        return None
    if not opened.are_all:
        raise PenstockError(
            Reason.RECORDS_TOO_LARGE,
            f"the batches open to more than the {COLUMN_BYTES_MAX} bytes of a column; decode fewer at a time",
        )
    return _decode(opened, columns, from_offset, to_offset)


def decode_each(
    batches: Sequence[Batch],
    *,
    columns: frozenset[str],
    from_offset: int,
    to_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    bytes_max: int,
    group_bytes: int = _GROUP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """As :func:`decode`, in as many record batches as hold about ``group_bytes`` of opened records each: what memory is bounded by."""
    seen = visible(batches, aborted, bytes_max) if aborted else batches
    for opened in open_groups(seen, from_offset, to_offset, bytes_max, group_bytes):
        decoded = _decode(opened, columns, from_offset, to_offset)
        if decoded is not None:
            yield decoded


class _Fields(NamedTuple):
    """What the records say of themselves, each a vector."""

    timestamp_deltas: Ints
    offset_deltas: Ints
    keys_at: Ints
    key_sizes: Ints
    values_at: Ints
    value_sizes: Ints
    headers_at: Ints


def _fields(source: Bytes, bodies: Ints, ends: Ints) -> _Fields:
    cursor = Cursor(source, bodies + 1, ends)  # behind the attributes, which have no bit in use
    timestamp_deltas = cursor.varint()
    offset_deltas = cursor.varint()
    key_sizes, keys_at = _sized(cursor)
    value_sizes, values_at = _sized(cursor)
    if (cursor.at >= ends).any():
        raise corrupt("a record has no room for its headers")
    return _Fields(timestamp_deltas, offset_deltas, keys_at, key_sizes, values_at, value_sizes, cursor.at)


def _sized(cursor: Cursor) -> tuple[Ints, Ints]:
    """Sizes (-1 for null) and places of a key or value; the cursor goes behind it."""
    sizes = cursor.varint()
    if int(sizes.min()) < -1:
        raise corrupt("a key or value has less than no bytes")
    at = cursor.at
    if int(sizes.max()) > 0:
        cursor.skip(np.maximum(sizes, 0))
    return sizes, at


def _all_fields(source: Bytes, bodies: Ints, ends: Ints) -> _Fields:
    count = len(bodies)
    if count <= _CHUNK_RECORDS:
        return _fields(source, bodies, ends)
    parts = [
        _fields(source, bodies[at : at + _CHUNK_RECORDS], ends[at : at + _CHUNK_RECORDS])
        for at in range(0, count, _CHUNK_RECORDS)
    ]
    return _Fields(*map(np.concatenate, zip(*parts, strict=True)))


def _decode(opened: Opened, columns: frozenset[str], from_offset: int, to_offset: int) -> pa.RecordBatch | None:
    heads, source = opened.heads, opened.source
    bodies, ends = find_records(source, opened.begins, opened.ends, heads.counts)
    fields = _all_fields(source, bodies, ends)
    offsets = _offsets(heads, fields.offset_deltas)
    chosen: slice | Ints = slice(None)
    if int(offsets.min()) < from_offset or int(offsets.max()) >= to_offset:
        chosen = np.flatnonzero((offsets >= from_offset) & (offsets < to_offset))
        offsets = offsets[chosen]
        if not len(offsets):
            return None
    built: dict[str, pa.Array] = {}
    if "key" in columns:
        built["key"] = _binary(source, fields.keys_at[chosen], fields.key_sizes[chosen])
    if "value" in columns:
        built["value"] = _binary(source, fields.values_at[chosen], fields.value_sizes[chosen])
    if "offset" in columns or not columns:
        built["offset"] = numbers(offsets, pa.int64())
    if "timestamp" in columns:
        built["timestamp"] = numbers(_timestamps_us(heads, fields.timestamp_deltas)[chosen], TIMESTAMP)
    if "timestampType" in columns:
        kinds = np.repeat(heads.are_appended.astype(np.int32), heads.counts)
        built["timestampType"] = numbers(kinds[chosen], pa.int32())
    if "headers" in columns:
        built["headers"] = headers_column(source, fields.headers_at[chosen], ends[chosen])
    schema = pa.schema([field for field in SCHEMA if field.name in built])
    decoded = pa.RecordBatch.from_arrays([built[name] for name in schema.names], schema=schema)
    # Without a column there is still a number of rows, which only a selection keeps.
    return decoded if columns else decoded.select([])


def _offsets(heads: Heads, deltas: Ints) -> Ints:
    """The offset of each record; refused unless they rise in each batch, from 0 up to its last."""
    behind = np.cumsum(heads.counts)
    before = np.empty_like(deltas)
    before[1:] = deltas[:-1]
    before[behind - heads.counts] = -1
    if (deltas <= before).any() or (deltas[behind - 1] > heads.last_offset_deltas).any():
        raise corrupt("the offsets of the records do not rise within their batch")
    if (heads.base_offsets > _OFFSET_MAX - np.maximum(heads.last_offset_deltas, 0)).any():
        raise corrupt("a batch has offsets that are more than 64 bits")
    return deltas + np.repeat(heads.base_offsets, heads.counts)


def _timestamps_us(heads: Heads, deltas: Ints) -> Ints:
    """The timestamp of each record in microseconds, held at what 64 bits can say."""
    bases = heads.base_timestamps
    if heads.are_appended.any():
        bases = np.where(heads.are_appended, heads.max_timestamps, bases)
        deltas = np.where(np.repeat(heads.are_appended, heads.counts), 0, deltas)
    each_base = np.repeat(bases, heads.counts)
    stamps = each_base + deltas
    extremes = (deltas.min(), deltas.max(), bases.min(), bases.max())
    if not all(-_TIMESTAMP_MS_PLAIN < int(one) < _TIMESTAMP_MS_PLAIN for one in extremes):
        is_wrapped = ((each_base ^ stamps) & (deltas ^ stamps)) < 0
        stamps = np.where(is_wrapped, np.where(deltas < 0, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX), stamps)
        stamps = np.clip(stamps, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
    return stamps * 1000


def _binary(source: Bytes, at: Ints, sizes: Ints) -> pa.Array:
    nulls = sizes < 0
    if not nulls.any():
        return slices(source, at, at + sizes, None)
    return slices(source, at, at + np.maximum(sizes, 0), nulls)
