"""Arrow columns over bytes that are already there.

Places that rise through a buffer are the offsets of an Arrow array over it: an element, a gap, an element, a gap. ``take`` of every
other one copies the elements together in C++, and nothing is done per record here.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.records.columnar.words import Bytes, Ints

Flags = NDArray[np.bool_]


class Places:
    """Where a piece of each record begins and ends, in turn: the offsets of an Arrow array over the buffer. Some may be null."""

    __slots__ = ("bounds", "has_null", "nulls")

    def __init__(self, count: int) -> None:
        self.bounds: NDArray[np.int32] = np.empty(2 * count + 1, np.int32)
        self.bounds[-1] = 0
        self.nulls: Flags = np.zeros(count, np.bool_)
        self.has_null = False

    def put(self, at: int, starts: Ints, ends: Ints, sizes: Ints) -> None:
        """Those of the records from number ``at`` on, rising; a size below zero is a null, and then its end is its start."""
        behind = at + len(starts)
        self.bounds[2 * at : 2 * behind : 2] = starts
        self.bounds[2 * at + 1 : 2 * behind + 1 : 2] = ends
        self.bounds[-1] = self.bounds[2 * behind - 1]
        if int(sizes.min(initial=0)) < 0:
            np.less(sizes, 0, out=self.nulls[at:behind])
            self.has_null = True


def taken(source: Bytes, places: Places, chosen: Ints | None = None) -> pa.Array:
    """The bytes at these places as binary; only those of the chosen records, if any are chosen."""
    count = len(places.nulls)
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(places.bounds), pa.py_buffer(source.data)]
    )
    numbers = np.arange(0, 2 * count, 2, dtype=np.int32) if chosen is None else (chosen * 2).astype(np.int32)
    column = pieces.take(pa.array(numbers))
    if not places.has_null:
        return column
    nulls = places.nulls if chosen is None else places.nulls[chosen]
    _, offsets, data = column.buffers()
    return pa.Array.from_buffers(pa.binary(), len(column), [bitmap(~nulls), offsets, data])


def bitmap(flags: Flags) -> pa.Buffer:
    """A validity bitmap: set where there is a value."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def numbers(values: NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """A column over the numbers themselves."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
