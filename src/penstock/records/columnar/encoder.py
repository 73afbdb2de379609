"""Arrow columns to record batches, byte for byte as ``records/builder.py`` builds them.

Besides its key, value and headers a record has only a few varints: they are built as vectors (``varbytes``), and one ``take``
over all parts (heads, keys, values) puts them in the order of the format. The result is the encoded records of many consecutive
batches; each batch is cut out, compressed and sealed.

Invariant: a batch has at most ``batch_bytes_max`` before compression, unless it is a single record that is larger.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.batch import HEADER_BYTES, BatchHeader, Compression
from penstock.records.builder import seal
from penstock.records.columnar.pieces import (
    BinaryColumn,
    binary_column,
    data_of,
    packed_headers,
    sized_bytes,
    taken_in_turn,
)
from penstock.records.columnar.varbytes import ByteRows, widths, zigzag
from penstock.records.columnar.words import Ints

_GROUP_BYTES: Final = 4 * MIB
"""Batches are built together up to this size: enough to share the cost of a call, little enough for the processor's cache."""
_TIMESTAMP_MS_MAX: Final = 2**54
"""More than Spark supports, and the difference of two is a varint of eight bytes."""
_NULL: Final = 1
"""The size of null, -1, in zigzag."""
_ZERO: Final = pa.array([b"\x00"], pa.binary())


def encode(
    *,
    value: pa.Array | pa.ChunkedArray,
    key: pa.Array | pa.ChunkedArray | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    timestamps_ms: int | pa.Array | pa.ChunkedArray,
    compression: Compression = Compression.NONE,
    batch_bytes_max: int,
    batch_records_max: int,
) -> list[bytearray]:
    """Record batches of all rows in their order, ready to be produced: base offset 0, no producer.

    Values and keys are binary or strings of any kind, headers a list of (name, value) structs, timestamps one for all or a column
    (numbers, or Arrow's timestamps of any unit).
    ``batch_bytes_max`` applies before compression; a single record that is larger gets its own batch.
    """
    assert batch_records_max > 0
    count = len(value)
    for column in (key, headers, timestamps_ms):
        if column is not None and not isinstance(column, int) and len(column) != count:
            raise ValueError(
                f"A column has {len(column)} rows, but the values have {count}: use columns of the same table"
            )
    if not count:
        return []
    rows = _Rows(
        binary_column(value),
        None if key is None or key.null_count == count else binary_column(key),
        None if headers is None else packed_headers(headers),
        _timestamps(timestamps_ms),
    )
    batches: list[bytearray] = []
    for group in _groups(_cuts(rows, batch_bytes_max - HEADER_BYTES, batch_records_max)):
        batches += _sealed(rows, group, compression)
    return batches


class _Rows(NamedTuple):
    values: BinaryColumn
    keys: BinaryColumn | None
    headers: BinaryColumn | None
    timestamps: Ints | int
    """One for all, or one each."""


class _Cut(NamedTuple):
    """The rows of one batch, with the size of each record without its length, and the size of all."""

    begin: int
    end: int
    bodies: Ints
    bytes: int


def _timestamps(given: int | pa.Array | pa.ChunkedArray) -> Ints | int:
    if isinstance(given, int):
        stamps: Ints | int = given
        least = most = given
    elif given.null_count:
        raise PenstockError(Reason.INVALID_TIMESTAMP, "A record has no timestamp; fill in the nulls")
    else:
        if pa.types.is_timestamp(given.type):
            given = pc.floor_temporal(given, unit="millisecond").cast(pa.timestamp("ms", given.type.tz))
        stamps = np.asarray(given.cast(pa.int64()), np.int64)
        least, most = int(stamps.min()), int(stamps.max())
    if not -_TIMESTAMP_MS_MAX < least <= most < _TIMESTAMP_MS_MAX:
        raise PenstockError(Reason.INVALID_TIMESTAMP, "A timestamp is out of range; use milliseconds since 1970")
    return stamps


def _cuts(rows: _Rows, bytes_max: int, records_max: int) -> Iterator[_Cut]:
    """Where each batch ends: as many records as fit, at least one."""
    values, keys, headers, timestamps = rows
    count = len(values.sizes)
    # Attributes, and everything that does not depend on the place in the batch.
    fixed = sized_bytes(values.sizes) + 1
    fixed += 1 if keys is None else sized_bytes(keys.sizes)
    fixed += 1 if headers is None else headers.sizes
    # Length and deltas take at least one byte each: no batch can have more records than this.
    behind = np.cumsum(fixed + 3)
    offset_widths = widths(zigzag(np.arange(min(count, records_max), dtype=np.int64)))
    begin = 0
    while begin < count:
        before = int(behind[begin - 1]) if begin else 0
        end = int(behind.searchsorted(before + bytes_max, "right"))
        end = max(begin + 1, min(end, begin + records_max))
        bodies = fixed[begin:end] + (offset_widths if isinstance(offset_widths, int) else offset_widths[: end - begin])
        if isinstance(timestamps, int):
            bodies += 1
        else:
            bodies += widths(zigzag(timestamps[begin:end] - timestamps[begin]))
        taken = np.cumsum(bodies + widths(zigzag(bodies)))
        fitting = max(1, int(taken.searchsorted(bytes_max, "right")))
        yield _Cut(begin, begin + fitting, bodies[:fitting], int(taken[fitting - 1]))
        begin += fitting


def _groups(cuts: Iterator[_Cut]) -> Iterator[list[_Cut]]:
    group: list[_Cut] = []
    size = 0
    for cut in cuts:
        if group and size + cut.bytes > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(cut)
        size += cut.bytes
    yield group


def _sealed(rows: _Rows, cuts: list[_Cut], compression: Compression) -> Iterator[bytearray]:
    """The batches of neighbouring cuts."""
    records = _records(rows, cuts)
    at = 0
    stamps = rows.timestamps
    for begin, end, _, size in cuts:
        header = BatchHeader(
            last_offset_delta=end - begin - 1,
            base_timestamp=stamps if isinstance(stamps, int) else int(stamps[begin]),
            max_timestamp=stamps if isinstance(stamps, int) else int(stamps[begin:end].max()),
            record_count=end - begin,
        )
        yield seal(records[at : at + size], header, compression)
        at += size


def _records(rows: _Rows, cuts: list[_Cut]) -> memoryview:
    """The encoded records of neighbouring cuts."""
    values, keys, headers, timestamps = rows
    begin, count = cuts[0].begin, cuts[-1].end - cuts[0].begin
    counts = np.array([cut.end - cut.begin for cut in cuts], np.int64)
    firsts = np.cumsum(counts) - counts
    value_sizes = zigzag(values.sizes[begin : begin + count])
    heads = ByteRows(count)
    if headers is None:
        # The number of headers, 0, of the record before this one; the last record gets its zero below.
        heads.put_byte(0)
    heads.put_varints(zigzag(np.concatenate([cut.bodies for cut in cuts])))
    heads.put_byte(0)
    if isinstance(timestamps, int):
        heads.put_byte(0)
    else:
        heads.put_varints(zigzag(timestamps[begin : begin + count] - np.repeat(timestamps[begin + firsts], counts)))
    heads.put_varints(zigzag(np.arange(count, dtype=np.int64) - np.repeat(firsts, counts)))
    parts: list[pa.Array]
    if keys is None:
        heads.put_byte(_NULL)
        heads.put_varints(value_sizes)
        parts = [heads.with_gaps()]
    else:
        heads.put_varints(zigzag(keys.sizes[begin : begin + count]))
        between = ByteRows(count)
        between.put_varints(value_sizes)
        parts = [heads.with_gaps(), keys.array.slice(begin, count), between.with_gaps()]
    parts.append(values.array.slice(begin, count))
    if headers is not None:
        parts.append(headers.array.slice(begin, count))
        return data_of(taken_in_turn(parts, count))
    return data_of(taken_in_turn(parts, count, last=_ZERO))[1:]
