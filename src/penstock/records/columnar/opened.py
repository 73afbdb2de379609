"""The batches of a fetch, opened, in one buffer: what all vectors then point into.

Invariant: the regions rise through the buffer and do not overlap; a column over it can hold all its bytes.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import PenstockError, Reason
from penstock.records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from penstock.records.columnar.committed import Batch
from penstock.records.columnar.words import Bytes, Ints
from penstock.records.records import corrupt, open_records
from penstock.types import Buffer

_BYTES_MAX: Final = 2**31 - 1
"""What one Arrow column of 32-bit offsets can hold."""
_NEIGHBOUR_BYTES_MIN: Final = 4096
"""Smaller batches are copied together in less time than it takes to see that they are neighbours."""


class Opened(NamedTuple):
    """The opened records of batches in one buffer: those of each are a region."""

    source: Bytes
    begins: Ints
    ends: Ints


def open_all(batches: Sequence[Batch], bytes_max: int) -> Opened:
    """All of them, without a copy when they are large, uncompressed neighbours. ``bytes_max`` is for each."""
    if any(header.attributes & COMPRESSION_MASK for header, _ in batches):
        return joined([open_one(header, data, bytes_max) for header, data in batches])
    sizes = np.array([len(data) for _, data in batches], np.int64)
    if [len(data) for _, data in batches] != [header.size_bytes for header, _ in batches]:
        raise corrupt("a batch is not whole")
    if int(sizes.max()) - HEADER_BYTES > bytes_max:
        raise _too_large(bytes_max)
    total = int(sizes.sum())
    _check_total(total)
    source = None
    if total >= len(batches) * _NEIGHBOUR_BYTES_MIN:
        source = _neighbours([data for _, data in batches], sizes)
    if source is None:
        source = b"".join(data for _, data in batches)
    behind = np.cumsum(sizes)
    return Opened(Bytes(source), behind - sizes + HEADER_BYTES, behind)


def open_one(header: BatchHeader, data: Buffer, bytes_max: int) -> Buffer:
    """The records of one batch, without a copy when they are not compressed."""
    if len(data) != header.size_bytes:
        raise corrupt("a batch is not whole")
    if header.attributes & COMPRESSION_MASK:
        return open_records(data, header, bytes_max)
    if len(data) - HEADER_BYTES > bytes_max:
        raise _too_large(bytes_max)
    return memoryview(data)[HEADER_BYTES:]


def joined(opened: Sequence[Buffer]) -> Opened:
    """Records that were opened each on their own, put together."""
    sizes = np.array([len(each) for each in opened], np.int64)
    _check_total(int(sizes.sum()))
    behind = np.cumsum(sizes)
    return Opened(Bytes(opened[0] if len(opened) == 1 else b"".join(opened)), behind - sizes, behind)


def _check_total(total: int) -> None:
    if total > _BYTES_MAX:
        raise PenstockError(
            Reason.RECORDS_TOO_LARGE,
            f"the records open to {total} bytes and a column holds {_BYTES_MAX}; decode fewer batches at a time",
        )


def _too_large(bytes_max: int) -> PenstockError:
    return PenstockError(
        Reason.RECORDS_TOO_LARGE, f"the records open to more than {bytes_max} bytes; send smaller batches"
    )


def _neighbours(views: Sequence[Buffer], sizes: Ints) -> Buffer | None:
    """The one run of bytes that the views are, one behind the other; None when they are not."""
    first = views[0]
    if len(views) == 1:
        return first
    if not isinstance(first, memoryview) or not first.c_contiguous:
        return None
    owner = first.obj
    if not all(isinstance(view, memoryview) and view.obj is owner for view in views):
        return None
    at = np.array([np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in views], np.int64)
    if (at[1:] != at[:-1] + sizes[:-1]).any():
        return None
    whole = memoryview(owner).cast("B")
    begin = int(at[0]) - int(np.frombuffer(whole, np.uint8).__array_interface__["data"][0])
    return whole[begin : begin + int(sizes.sum())]
