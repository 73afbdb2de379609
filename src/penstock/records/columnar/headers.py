"""The headers column: for each record its header names and values, null if it has none (as in Spark's Kafka source).

Headers are read in rounds: the first one of all records at once, then the second one of those that have two, and so on. When
few records are left, their headers are read one by one.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.limits import RECORD_HEADERS_MAX
from penstock.records.columnar.columns import Places, bitmap, taken
from penstock.records.columnar.words import Bytes, Cursor, Ints
from penstock.records.records import corrupt

HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

_ROUND_MIN: Final = 24
"""A round costs as much as so many headers read one by one."""
_NAME_AT, _NAME_END, _VALUE_AT, _VALUE_END, _VALUE_SIZE = range(5)
_HEADER_BYTES_MIN: Final = 2


def headers_column(source: Bytes, at: Ints, ends: Ints) -> pa.Array:
    """The headers from ``at`` up to ``ends`` of each record, which they must fill. CORRUPT_RECORDS if they do not."""
    count = len(at)
    # A single byte can only mean that there are none, so it is not read: the row reader does the same.
    having = np.flatnonzero(ends - at != 1)
    counts = np.zeros(count, np.int64)
    places, total = np.empty((5, 0), np.int64), 0
    if len(having):
        cursor = Cursor(source, at[having])
        some = cursor.varint()
        left = ends[having] - cursor.at
        if (some < 0).any() or (some > RECORD_HEADERS_MAX).any() or (some * _HEADER_BYTES_MIN > left).any():
            raise corrupt(f"A record has invalid headers, or more than {RECORD_HEADERS_MAX}")
        counts[having] = some
        total = int(some.sum())
        places = _places(source, cursor.at, ends[having], some, total)
    bounds = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    names = _taken(source, places[_NAME_AT], places[_NAME_END], places[_NAME_END] - places[_NAME_AT])
    values = _taken(source, places[_VALUE_AT], places[_VALUE_END], places[_VALUE_SIZE])
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:
        raise corrupt("The name of a header is not UTF-8") from None
    elements = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    has_some = None if counts.all() else bitmap(counts > 0)
    return pa.Array.from_buffers(HEADERS, count, [has_some, pa.py_buffer(bounds)], children=[elements])


def _taken(source: Bytes, starts: Ints, ends: Ints, sizes: Ints) -> pa.Array:
    places = Places(len(starts))
    if len(starts):
        places.put(0, starts, ends, sizes)
    return taken(source, places)


def _places(source: Bytes, at: Ints, ends: Ints, counts: Ints, total: int) -> Ints:
    """Where each header's name and value are, in the order of the records; each record's headers must end at its end."""
    places = np.empty((5, total), np.int64)
    first = np.cumsum(counts) - counts
    active = np.arange(len(at))
    number = 0
    while True:
        done = counts[active] == number
        if done.any():
            if (at[active[done]] != ends[active[done]]).any():
                raise corrupt("The headers of a record do not fill it")
            active = active[~done]
        if len(active) < _ROUND_MIN:
            break
        cursor = Cursor(source, at[active])
        places[:, first[active] + number] = _one_each(cursor)
        at[active] = cursor.at
        number += 1
    for index in active.tolist():
        behind = int(first[index] + counts[index])
        _rest(source, int(at[index]), int(ends[index]), places[:, int(first[index]) + number : behind])
    return places


def _one_each(cursor: Cursor) -> Ints:
    sizes = cursor.varint()
    if (sizes < 0).any():
        raise corrupt("A header has no name")
    name_at = cursor.at
    cursor.skip(sizes)
    name_end = cursor.at
    sizes = cursor.varint()
    value_at = cursor.at
    cursor.skip(sizes)
    return np.stack((name_at, name_end, value_at, cursor.at, sizes))


def _rest(source: Bytes, at: int, end: int, places: Ints) -> None:
    """The headers of one record, from ``at`` on, into ``places``."""
    for index in range(places.shape[1]):
        size, name_at = source.varint_at(at)
        if not 0 <= size <= end - name_at:
            raise corrupt(f"A header name has {size} bytes, but {end - name_at} are left")
        name_end = name_at + size
        size, value_at = source.varint_at(name_end)
        if not -1 <= size <= end - value_at:
            raise corrupt(f"A header value has {size} bytes, but {end - value_at} are left")
        at = value_at + max(size, 0)
        places[:, index] = name_at, name_end, value_at, at, size
    if at != end:
        raise corrupt("The headers of a record do not fill it")
