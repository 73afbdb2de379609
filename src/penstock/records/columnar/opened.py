"""The opened batches of a fetch in one buffer, into which all vectors point.

Invariant: the regions are in order in the buffer and do not overlap; a column over it can contain all its bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.records.batch import COMPRESSION_MASK, HEADER_BYTES, LENGTH_END
from penstock.records.columnar.committed import Batch
from penstock.records.columnar.heads import Heads, read_heads
from penstock.records.columnar.words import Bytes, Ints
from penstock.records.compression import too_large
from penstock.records.records import corrupt, open_records
from penstock.types import Buffer

COLUMN_BYTES_MAX: Final = 2**31 - 1
"""The limit of an Arrow column with 32-bit offsets."""
_NEIGHBOUR_BYTES_MIN: Final = 4096
"""Copying smaller batches is faster than checking that they are adjacent."""


class OpenedRecords(NamedTuple):
    """The opened records of some batches in one buffer: those of each are a region."""

    heads: Heads
    source: Bytes
    begins: Ints
    ends: Ints


def open_groups(
    batches: Sequence[Batch], from_offset: int, to_offset: int, bytes_max: int, group_bytes: int
) -> Iterator[OpenedRecords]:
    """The batches that may have records with these offsets, in groups that decompress to at most ``group_bytes``.

    Control batches are skipped. A batch that decompresses to more than ``group_bytes`` is a separate group; more than
    ``bytes_max`` is refused. Large, uncompressed batches that are adjacent in one buffer, as in a fetch, are not copied.
    """
    assert group_bytes <= COLUMN_BYTES_MAX
    if not batches:
        return
    raw, behind, sizes = _joined([data for _, data in batches])
    if int(sizes.min()) < HEADER_BYTES:
        raise corrupt("A batch is incomplete")
    heads = read_heads(raw, behind - sizes)
    if (heads.lengths + LENGTH_END != sizes).any():
        raise corrupt("A batch is incomplete")
    last_deltas = np.maximum(heads.last_offset_deltas, 0)
    wanted = np.flatnonzero(
        (heads.counts != 0)
        & ~heads.are_control
        & (heads.base_offsets < to_offset)
        # One that ends before it begins is not skipped but refused, with its records.
        & ((heads.base_offsets >= from_offset - last_deltas) | (heads.last_offset_deltas < 0))
    )
    if len(wanted) < len(sizes):
        heads, behind, sizes = heads.at(wanted), behind[wanted], sizes[wanted]
    if heads.are_compressed.any():
        yield from _decompressed([batches[index] for index in wanted.tolist()], heads, bytes_max, group_bytes)
        return
    if int(sizes.max(initial=0)) - HEADER_BYTES > min(bytes_max, COLUMN_BYTES_MAX):
        raise too_large(min(bytes_max, COLUMN_BYTES_MAX))
    begins = behind - sizes + HEADER_BYTES
    at = 0
    while at < len(wanted):
        after = max(at + 1, int(np.searchsorted(behind, int(begins[at]) + group_bytes, "right")))
        first, last = int(begins[at]), int(behind[after - 1])
        yield OpenedRecords(
            heads.at(slice(at, after)),
            Bytes(raw.view[first:last]),
            begins[at:after] - first,
            behind[at:after] - first,
        )
        at = after


def _decompressed(batches: Sequence[Batch], heads: Heads, bytes_max: int, group_bytes: int) -> Iterator[OpenedRecords]:
    """As :func:`open_groups`, where some have to be decompressed."""
    parts: list[Buffer] = []
    begin = size = 0

    def group(after: int) -> OpenedRecords:
        source, behind, sizes = _joined(parts)
        return OpenedRecords(heads.at(slice(begin, after)), source, behind - sizes, behind)

    for index, (header, data) in enumerate(batches):
        part: Buffer = memoryview(data)[HEADER_BYTES:]
        if header.attributes & COMPRESSION_MASK:
            part = open_records(data, header, bytes_max)
        elif len(part) > bytes_max:
            raise too_large(bytes_max)
        if len(part) > COLUMN_BYTES_MAX:
            raise too_large(COLUMN_BYTES_MAX)
        if parts and size + len(part) > group_bytes:
            yield group(index)
            parts, begin, size = [], index, 0
        parts.append(part)
        size += len(part)
    yield group(len(batches))


def _joined(parts: Sequence[Buffer]) -> tuple[Bytes, Ints, Ints]:
    """The parts joined, where each ends, and its size."""
    sizes = np.array([*map(len, parts)], np.int64)
    whole = None
    if len(parts) == 1:
        whole = parts[0]
    elif int(sizes.sum()) >= len(parts) * _NEIGHBOUR_BYTES_MIN:
        whole = _neighbours(parts, sizes)
    return Bytes(b"".join(parts) if whole is None else whole), np.cumsum(sizes), sizes


def _neighbours(views: Sequence[Buffer], sizes: Ints) -> Buffer | None:
    """The range of bytes that the views form, if they are adjacent; otherwise None."""
    first = views[0]
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
