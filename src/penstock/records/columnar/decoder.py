"""Fetched record batches to Arrow columns, without Python code per record.

All batches of a call are in one buffer: the fetched bytes themselves if they are adjacent, a copy if they are small or
compressed. The records are found (``starts``), their fields are read as vectors (``words``), and the columns are copied out of
the buffer (``columns``).

Invariant: what the row reader (``records/records.py``) refuses is refused here too, whichever columns are requested, except that
headers are only checked if they are requested. Otherwise the records are the same.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.limits import MIB
from penstock.records.columnar.columns import numbers, taken
from penstock.records.columnar.committed import Batch, visible
from penstock.records.columnar.fields import read_fields
from penstock.records.columnar.headers import HEADERS, headers_column
from penstock.records.columnar.opened import OpenedRecords, open_groups
from penstock.records.columnar.starts import find_records
from penstock.records.columnar.words import Ints

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
"""What can be requested; the result has the schema's order."""

_GROUP_BYTES: Final = 16 * MIB

Number = TypeVar("Number", bound=np.generic)


def decode(
    batches: Sequence[Batch],
    *,
    columns: frozenset[str],
    from_offset: int,
    to_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    bytes_max: int,
    group_bytes: int = _GROUP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of whole batches with ``from_offset <= offset < to_offset``, in the requested columns.

    Each result has about ``group_bytes`` of opened records, which bounds the memory. Control batches are skipped, and with
    ``aborted`` (producer id, first offset) the records of those transactions. A batch that decompresses to more than ``bytes_max``
    is RECORDS_TOO_LARGE, a malformed one CORRUPT_RECORDS. A timestamp later than Spark supports (after the year 294,000) becomes
    the last one that it supports.
    """
    seen = visible(batches, aborted, bytes_max) if aborted else batches
    for opened in open_groups(seen, from_offset, to_offset, bytes_max, group_bytes):
        decoded = _decode(opened, columns, from_offset, to_offset)
        if decoded is not None:
            yield decoded


def _decode(opened: OpenedRecords, columns: frozenset[str], from_offset: int, to_offset: int) -> pa.RecordBatch | None:
    heads, source = opened.heads, opened.source
    bodies, ends = find_records(source, opened.begins, opened.ends, heads.counts)
    fields = read_fields(source, heads, bodies, ends, columns)
    offsets = fields.offsets
    chosen: Ints | None = None
    if int(offsets.min()) < from_offset or int(offsets.max()) >= to_offset:
        chosen = np.flatnonzero((offsets >= from_offset) & (offsets < to_offset))
        if not len(chosen):
            return None
    built: dict[str, pa.Array] = {}
    if fields.keys is not None:
        built["key"] = taken(source, fields.keys, chosen)
    if fields.values is not None:
        built["value"] = taken(source, fields.values, chosen)
    if "offset" in columns or not columns:
        built["offset"] = numbers(_some(offsets, chosen), pa.int64())
    if fields.timestamps_us is not None:
        built["timestamp"] = numbers(_some(fields.timestamps_us, chosen), TIMESTAMP)
    if "timestampType" in columns:
        kinds = np.repeat(heads.are_appended.astype(np.int32), heads.counts)
        built["timestampType"] = numbers(_some(kinds, chosen), pa.int32())
    if fields.headers_at is not None:
        built["headers"] = headers_column(source, _some(fields.headers_at, chosen), _some(ends, chosen))
    schema = pa.schema([field for field in SCHEMA if field.name in built])
    decoded = pa.RecordBatch.from_arrays([built[name] for name in schema.names], schema=schema)
    # Without columns there is still a number of rows, which only ``select`` keeps.
    return decoded if columns else decoded.select([])


def _some(values: NDArray[Number], chosen: Ints | None) -> NDArray[Number]:
    return values if chosen is None else values[chosen]
