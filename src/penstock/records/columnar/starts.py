"""Where the records of many batches begin.

Records form a chain: each has its length, so the next one is known only when this one was read. There are three ways to follow
the chain. In each the lengths themselves are the proof, so that a wrong guess only costs time:

- *Runs*: records of equal size have a fixed step; the lengths at all guessed places are compared at once.
- *Lanes* (``lanes``): many chains are scanned in parallel, one NumPy step for all of them.
- A plain loop for the rest: few records, or lanes that met nothing.

Invariant: the result is the chain from each region's first byte to its last, or the batch is refused.
"""

from typing import Final

import numpy as np

from penstock.records.columnar.lanes import LENGTH_MIN, WIDTH_BITS, walk_lanes
from penstock.records.columnar.words import Bytes, Ints
from penstock.records.records import RECORD_BYTES_MIN, corrupt

_RUN_MIN: Final = 48
"""A shorter run is left to the lanes, with all that follows it."""
_RUN_REGION_MIN: Final = 256
"""Regions of fewer records are not searched for runs."""
_RUN_SAMPLE: Final = 4
_RUN_WIDTH_MAX: Final = 4
"""A length that takes more bytes than it needs is not worth a run."""
_RUN_TRIED: Final = 512
_RUN_GROWTH: Final = 16


def find_records(source: Bytes, begins: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Where the body of each record begins (after its length) and where it ends, in order.

    ``begins`` and ``ends`` are the regions of the batches in ``source``, in order; region ``i`` must have exactly ``counts[i]`` records.
    """
    if (counts < 0).any() or (counts * RECORD_BYTES_MIN > ends - begins).any():
        raise corrupt("There are more records than fit into the bytes")
    has_some = counts > 0
    if (begins[~has_some] != ends[~has_some]).any():
        raise corrupt("Bytes follow the last record")
    begins, ends, counts = begins[has_some], ends[has_some], counts[has_some]
    if not len(counts):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found: list[Ints] = []
    walked = begins.copy()
    for index in np.flatnonzero(counts >= _RUN_REGION_MIN).tolist():
        walked[index] = _walk_runs(source, int(begins[index]), int(ends[index]), int(counts[index]), found)
    is_open = walked < ends
    if is_open.any():
        record_bytes = (ends - begins) // counts
        found += walk_lanes(source, walked[is_open], ends[is_open], record_bytes[is_open])
    marked = np.concatenate(found)
    if (marked[1:] < marked[:-1]).any():
        marked.sort()
    starts = marked >> WIDTH_BITS
    bodies = starts + (marked & ((1 << WIDTH_BITS) - 1))
    behind = np.cumsum(counts)
    if len(starts) != int(behind[-1]) or (starts[behind - counts] != begins).any():
        raise corrupt("The number of records does not match the batch header")
    record_ends = np.empty_like(starts)
    record_ends[:-1] = starts[1:]
    record_ends[behind - 1] = ends
    return bodies, record_ends


def _walk_runs(source: Bytes, at: int, end: int, count: int, found: list[Ints]) -> int:
    """Find the runs at the start of a region; returns where they end."""
    while count >= _RUN_MIN:
        length, body = source.varint_at(at)
        width = body - at
        step = width + length
        if (
            not LENGTH_MIN <= length <= end - body
            or width > _RUN_WIDTH_MAX
            or not _is_run(source, at, step, width, end)
        ):
            break
        run = _run_at(source, at, step, width, min(count, (end - at) // step))
        if run < _RUN_MIN:
            break
        behind = at + run * step
        found.append(np.arange(at << WIDTH_BITS | width, behind << WIDTH_BITS, step << WIDTH_BITS, dtype=np.int64))
        at = behind
        count -= run
    return at


def _is_run(source: Bytes, at: int, step: int, width: int, end: int) -> bool:
    """Whether the first few records have the same size, so that a wrong guess costs little."""
    places = range(at + step, at + step * _RUN_SAMPLE, step)
    first = source.view[at : at + width]
    return places[-1] + width <= end and all(source.view[place : place + width] == first for place in places)


def _run_at(source: Bytes, at: int, step: int, width: int, count_max: int) -> int:
    """How many consecutive records have ``step`` bytes from ``at`` on. The tested range grows, so a short run is found early."""
    data = source.data
    tried = min(count_max, _RUN_TRIED)
    begin = 0
    while True:
        differs = np.zeros(tried - begin, np.bool_)
        for byte in range(width):
            # The same bytes of a length in a fixed step are a view, not a gather.
            differs |= data[at + begin * step + byte : at + (tried - 1) * step + byte + 1 : step] != data[at + byte]
        if differs.any():
            return begin + int(differs.argmax())
        if tried == count_max:
            return tried
        begin, tried = tried, min(count_max, tried * _RUN_GROWTH)
