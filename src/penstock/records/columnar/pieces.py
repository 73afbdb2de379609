"""Pieces of many columns, joined by Arrow: how records are written.

All columns are concatenated to one array, and a single ``take`` puts its elements in the order of the format. The data of the
result are then the encoded bytes.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError, Reason
from penstock.limits import RECORD_HEADERS_MAX
from penstock.records.columnar.varbytes import ByteRows, widths, zigzag
from penstock.records.columnar.words import Ints

_HEADER_PIECES: Final = 4
"""Name size, name, value size, value."""


class BinaryColumn(NamedTuple):
    """Binary without nulls, and how large each element is; -1 where there was a null."""

    array: pa.Array
    sizes: Ints


def binary_column(column: pa.Array | pa.ChunkedArray) -> BinaryColumn:
    """Any binary or string column, sliced or chunked, as one array."""
    try:
        array = column.cast(pa.binary())
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks != 1 else array.chunk(0)
    except pa.ArrowInvalid as cause:
        raise PenstockError(
            Reason.RECORDS_TOO_LARGE, f"A column does not fit into 2 GB ({cause}); write it in smaller pieces"
        ) from None
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if nulls is not None:
        # In Arrow a null may have bytes; this removes them.
        array = array.fill_null(b"")
    sizes = np.diff(bounds_of(array)).astype(np.int64)
    if nulls is not None:
        sizes[nulls] = -1
    return BinaryColumn(array, sizes)


def sized_bytes(sizes: Ints) -> Ints:
    """The size of each element including the varint of its size."""
    return widths(zigzag(sizes)) + np.maximum(sizes, 0)


def taken_in_turn(parts: list[pa.Array], count: int, last: pa.Array | None = None) -> pa.Array:
    """One element of each part in turn, ``count`` times, and then ``last``. A part of twice the elements has a gap after each."""
    places = np.empty(count * len(parts) + (last is not None), np.int32)
    at = 0
    numbers = np.arange(count, dtype=np.int32)
    for index, part in enumerate(parts):
        step = 1 if len(part) == count else 2
        places[index : count * len(parts) : len(parts)] = numbers * step + at
        at += len(part)
    if last is not None:
        parts = [*parts, last]
        places[-1] = at
    return pa.concat_arrays(parts).take(pa.array(places))


def data_of(array: pa.Array) -> memoryview:
    """The bytes of all elements."""
    bounds = bounds_of(array)
    return memoryview(array.buffers()[2])[int(bounds[0]) : int(bounds[-1])]


def packed_headers(headers: pa.Array | pa.ChunkedArray) -> BinaryColumn | None:
    """The headers of each row as encoded in a record, their number first; None if no row has any."""
    lists = headers.combine_chunks() if isinstance(headers, pa.ChunkedArray) else headers
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    total = int(counts.sum())
    if not total:
        return None
    if int(counts.max()) > RECORD_HEADERS_MAX:
        raise PenstockError(Reason.INVALID_RECORD, f"A record has at most {RECORD_HEADERS_MAX} headers; send fewer")
    name_array, value_array = lists.flatten().flatten()
    if name_array.null_count:
        raise PenstockError(Reason.INVALID_RECORD, "A header needs a name; remove headers without one")
    names, values = binary_column(name_array), binary_column(value_array)
    rows = len(counts)
    how_many, name_sizes, value_sizes = ByteRows(rows), ByteRows(total), ByteRows(total)
    how_many.put_varints(zigzag(counts))
    name_sizes.put_varints(zigzag(names.sizes))
    value_sizes.put_varints(zigzag(values.sizes))
    joined = pa.concat_arrays(
        [how_many.with_gaps(), name_sizes.with_gaps(), names.array, value_sizes.with_gaps(), values.array]
    )
    first = np.arange(rows, dtype=np.int64) + _HEADER_PIECES * (np.cumsum(counts) - counts)
    places = np.empty(rows + _HEADER_PIECES * total, np.int64)
    places[first] = 2 * np.arange(rows, dtype=np.int64)
    numbers = np.arange(total, dtype=np.int64)
    at = np.repeat(np.arange(1, rows + 1, dtype=np.int64), counts) + _HEADER_PIECES * numbers
    base = 2 * rows
    for index, step in enumerate((2, 1, 2, 1)):
        places[at + index] = base + step * numbers
        base += step * total
    taken = joined.take(pa.array(places))
    bounds = bounds_of(taken)[np.append(first, len(places))]
    array = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), taken.buffers()[2]])
    return BinaryColumn(array, np.diff(bounds).astype(np.int64))


def bounds_of(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where the elements begin in the data, and where the last one ends."""
    bounds: np.ndarray[tuple[int], np.dtype[np.int32]] = np.frombuffer(array.buffers()[1], np.int32)
    return bounds[array.offset : array.offset + len(array) + 1]
