"""Arrow columns over bytes that are already there.

Places that rise through a buffer are the offsets of an Arrow array over it: an element, a gap, an element, a gap. ``take`` of every
other one copies the elements together in C++, and nothing is done per record here.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.records.columnar.words import Bytes, Ints

Flags = NDArray[np.bool_]


def slices(source: Bytes, starts: Ints, ends: Ints, nulls: Flags | None) -> pa.Array:
    """The bytes from each start to its end, as binary; places rise, and a null one has its end at its start."""
    count = len(starts)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1] = bounds[-2] if count else 0
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(source.data)])
    taken = pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if nulls is None or not nulls.any():
        return taken
    _, offsets, data = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [bitmap(~nulls), offsets, data])


def bitmap(flags: Flags) -> pa.Buffer:
    """A validity bitmap: set where there is a value."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def numbers(values: NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """A column over the numbers themselves."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
