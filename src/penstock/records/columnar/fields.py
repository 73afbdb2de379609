"""The fields of all records, read as vectors, some thousand records at a time.

So few that all vectors of a step fit in the processor's cache; results go directly into arrays that were allocated once.

Invariant: then every record is sound up to its headers: sizes within the record, offsets that increase within its batch.
"""

from typing import Final

import numpy as np

from penstock.records.columnar.columns import Places
from penstock.records.columnar.heads import Heads
from penstock.records.columnar.words import Bytes, Cursor, Ints
from penstock.records.records import corrupt

_CHUNK_RECORDS: Final = 16_000
"""Vectors of so many numbers are just below the size that the allocator returns to the system."""
_OFFSET_MAX: Final = 2**63 - 1
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_TIMESTAMP_MS_PLAIN: Final = 2**52
"""The sum of two such numbers fits easily in 64 bits in microseconds."""


class Fields:
    """The requested fields of each record, and always the offsets."""

    __slots__ = ("headers_at", "keys", "offsets", "timestamps_us", "values")

    def __init__(self, count: int, columns: frozenset[str]) -> None:
        self.offsets: Ints = np.empty(count, np.int64)
        self.keys = Places(count) if "key" in columns else None
        self.values = Places(count) if "value" in columns else None
        self.timestamps_us: Ints | None = np.empty(count, np.int64) if "timestamp" in columns else None
        self.headers_at: Ints | None = np.empty(count, np.int64) if "headers" in columns else None


def read_fields(source: Bytes, heads: Heads, bodies: Ints, ends: Ints, columns: frozenset[str]) -> Fields:
    """The fields of the records with bodies from ``bodies`` to ``ends``, grouped by batch."""
    if (heads.base_offsets > _OFFSET_MAX - np.maximum(heads.last_offset_deltas, 0)).any():
        raise corrupt("A batch has offsets of more than 64 bits")
    count = len(bodies)
    fields = Fields(count, columns)
    spread = _Spread(heads)
    for at in range(0, count, _CHUNK_RECORDS):
        behind = min(count, at + _CHUNK_RECORDS)
        spread.move(at, behind)
        _read_some(source, fields, spread, bodies[at:behind], ends[at:behind])
    return fields


def _read_some(source: Bytes, fields: Fields, spread: "_Spread", bodies: Ints, ends: Ints) -> None:
    at, behind = spread.at, spread.behind
    cursor = Cursor(source, bodies + 1)  # after the attributes, which have no bit in use
    timestamp_deltas = cursor.varint()
    offset_deltas = cursor.varint()
    spread.check_offsets(offset_deltas)
    np.add(offset_deltas, spread.base_offsets, out=fields.offsets[at:behind])
    if fields.timestamps_us is not None:
        fields.timestamps_us[at:behind] = spread.timestamps_us(timestamp_deltas)
    _sized(cursor, at, fields.keys)
    _sized(cursor, at, fields.values)
    if (cursor.at >= ends).any():
        raise corrupt("The fields of a record are longer than the record")
    if fields.headers_at is not None:
        fields.headers_at[at:behind] = cursor.at


def _sized(cursor: Cursor, at: int, places: Places | None) -> None:
    """Read the size of a key or value and skip it."""
    sizes = cursor.varint()
    starts = cursor.at
    cursor.skip(sizes)
    if places is not None:
        places.put(at, starts, cursor.at, sizes)


class _Spread:
    """Header fields for each of the records from ``at`` up to ``behind``; one number if they are of one batch."""

    __slots__ = (
        "_behind",
        "_counts",
        "_delta_before",
        "_first",
        "_heads",
        "_last",
        "_stamps",
        "at",
        "base_offsets",
        "behind",
    )

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._behind = np.cumsum(heads.counts)
        appended = heads.are_appended
        self._stamps = np.where(appended, heads.max_timestamps, heads.base_timestamps)
        self._delta_before = -1
        self._first = self._last = 0
        self._counts: Ints | None = None
        self.at = self.behind = 0
        self.base_offsets: Ints | int = 0

    def move(self, at: int, behind: int) -> None:
        """Continue with the next records."""
        self.at, self.behind = at, behind
        self._first = int(np.searchsorted(self._behind, at, "right"))
        self._last = int(np.searchsorted(self._behind, behind - 1, "right"))
        self._counts = None
        if self._first != self._last:
            ends = np.minimum(self._behind[self._first : self._last + 1], behind)
            self._counts = np.diff(ends, prepend=at)
        self.base_offsets = self._each(self._heads.base_offsets)

    def _each(self, per_batch: Ints) -> Ints | int:
        if self._counts is None:
            return int(per_batch[self._first])
        return np.repeat(per_batch[self._first : self._last + 1], self._counts)

    def check_offsets(self, deltas: Ints) -> None:
        """Refuse offsets that do not increase in their batch, from 0 up to its last."""
        behind = self._behind[self._first : self._last + 1]
        before = np.empty_like(deltas)
        before[1:] = deltas[:-1]
        before[0] = self._delta_before
        ended = behind[behind <= self.behind] - self.at
        begun = ended[ended < len(deltas)]
        before[begun] = -1
        lasts = self._heads.last_offset_deltas[self._first : self._first + len(ended)]
        if (deltas <= before).any() or (deltas[ended - 1] > lasts).any():
            raise corrupt("The offsets of the records do not increase within their batch")
        self._delta_before = -1 if len(ended) and int(ended[-1]) == len(deltas) else int(deltas[-1])

    def timestamps_us(self, deltas: Ints) -> Ints:
        """The timestamps in microseconds, limited to 64 bits."""
        appended = self._heads.are_appended[self._first : self._last + 1]
        if appended.any():
            is_appended = appended[0] if self._counts is None else np.repeat(appended, self._counts)
            deltas = np.where(is_appended, 0, deltas)
        bases = self._stamps[self._first : self._last + 1]
        each_base = self._each(self._stamps)
        stamps = deltas + each_base
        extremes = (deltas.min(), deltas.max(), bases.min(), bases.max())
        if not all(-_TIMESTAMP_MS_PLAIN < int(one) < _TIMESTAMP_MS_PLAIN for one in extremes):
            is_wrapped = ((each_base ^ stamps) & (deltas ^ stamps)) < 0
            stamps = np.where(is_wrapped, np.where(deltas < 0, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX), stamps)
            stamps = np.clip(stamps, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
        return stamps * 1000
