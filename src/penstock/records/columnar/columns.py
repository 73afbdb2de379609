"""Arrow columns over existing bytes.

Increasing places in a buffer are the offsets of an Arrow array over it: an element, a gap, an element, a gap. ``take`` of every
other one copies the elements together in C++, without Python code per record. For NumPy, elements of equal size are numbers of
any width: selecting those takes half as long, because their total size is known.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.records.columnar.words import Bytes, Ints

Flags = NDArray[np.bool_]


class Places:
    """Where a piece of each record starts and ends, alternately: the offsets of an Arrow array. Some may be null."""

    __slots__ = ("_size_max", "_size_min", "bounds", "has_null", "nulls")

    def __init__(self, count: int) -> None:
        self.bounds: NDArray[np.int32] = np.empty(2 * count + 1, np.int32)
        self.bounds[-1] = 0
        self.nulls: Flags = np.zeros(count, np.bool_)
        self.has_null = False
        self._size_min, self._size_max = 2**31, -1

    @property
    def size(self) -> int | None:
        """The common size, if all are equal and none is empty or null."""
        return self._size_min if self._size_min == self._size_max > 0 else None

    def put(self, at: int, starts: Ints, ends: Ints, sizes: Ints) -> None:
        """Set the places of the records from number ``at`` on, increasing; a size below zero is a null, whose end is its start."""
        behind = at + len(starts)
        self.bounds[2 * at : 2 * behind : 2] = starts
        self.bounds[2 * at + 1 : 2 * behind + 1 : 2] = ends
        self.bounds[-1] = self.bounds[2 * behind - 1]
        if not len(sizes):
            return
        self._size_min = min(self._size_min, int(sizes.min()))
        self._size_max = max(self._size_max, int(sizes.max()))
        if self._size_min < 0:
            np.less(sizes, 0, out=self.nulls[at:behind])
            self.has_null = True


def taken(source: Bytes, places: Places, chosen: Ints | None = None) -> pa.Array:
    """The bytes at these places as a binary column; with ``chosen`` only those of these records."""
    count = len(places.nulls)
    if places.size is not None:
        starts = places.bounds[:-1:2]
        return _of_one_size(source, places.size, starts if chosen is None else starts[chosen])
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


def _of_one_size(source: Bytes, size: int, starts: NDArray[np.int32]) -> pa.Array:
    begin_max = source.size - size
    elements = np.ndarray((begin_max + 1,), f"V{size}", buffer=source.data.data, strides=(1,))[starts]
    offsets = np.arange(0, (len(starts) + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(elements)])


def bitmap(flags: Flags) -> pa.Buffer:
    """A validity bitmap: set where there is a value."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def numbers(values: NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """A column over the numbers, without copying them."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
