"""Chains of records scanned in parallel, so that one NumPy step advances all of them.

Every batch is a lane. Inside a long batch more lanes begin at places that look like a record: a length that leads to another
record, whose offset delta is higher. A lane that reaches the start of another has proven it; one that passes over a start has
disproven it, and continues. In the end only lanes that are reached from the first byte of a batch count.

Invariant: a lane never leaves its batch, and only records of the chain from the batch's first byte are returned.
"""

import math
from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.records.columnar.words import WORD_BYTES, Bytes, Ints, Words, raw_varints, shifted, varints
from penstock.records.records import RECORD_BYTES_MIN, corrupt

LENGTH_MIN: Final = RECORD_BYTES_MIN - 1
_NUMBER_MIN: Final = LENGTH_MIN << 1
"""The same in zigzag, where only even numbers are positive."""
_ONE: Final = np.uint64(1)
WIDTH_BITS: Final = 4
"""A record is marked as its place times 16 plus the bytes of its length: one number to sort."""

_LANES_MIN: Final = 96
"""A step of all lanes costs as much as so many iterations of the plain loop."""
_LANE_RECORDS_MIN: Final = 6
_LANE_RECORDS_MAX: Final = 64
_LANE_COST: Final = 60
"""A step of all lanes takes as long as so many guesses: it determines how many records a lane should have."""
_GUESS_RECORDS_MIN: Final = 4000
"""Fewer records are scanned in less time than the guesses take."""
_WINDOW_RECORDS: Final = 1.25
"""The size, in records, of the window in which a start is searched."""
_WINDOW_BYTES_MAX: Final = 4096
"""A fetch has so few larger records that no guess is needed."""
_SPARSE_MAX: Final = 4

_UNMET: Final = -1
_AT_END: Final = -2
_BROKEN: Final = -3


def walk_lanes(source: Bytes, begins: Ints, ends: Ints, record_bytes: Ints) -> list[Ints]:
    """The marks of all records in the regions from ``begins`` to ``ends``, none of them empty, in any order.

    ``record_bytes`` is the approximate size of a record in each region.
    """
    is_first: NDArray[np.bool_] = np.ones(len(begins), np.bool_)
    if int(((ends - begins) // record_bytes).sum()) >= _GUESS_RECORDS_MIN:
        guesses, regions = _guess(source, begins, ends, record_bytes)
        if len(guesses):
            unsorted = np.concatenate((begins, guesses))
            order = np.argsort(unsorted, kind="stable")
            is_first = order < len(begins)
            ends = np.concatenate((ends, ends[regions]))[order]
            begins = unsorted[order]
    lanes = _Lanes(source, begins, ends, is_first)
    if len(begins) >= _LANES_MIN:
        lanes.walk_together()
    return lanes.walked()


class _Lanes:
    __slots__ = (
        "_at",
        "_begins",
        "_behind",
        "_ends",
        "_is_first",
        "_late",
        "_marks",
        "_met",
        "_owners",
        "_source",
        "_targets",
    )

    def __init__(self, source: Bytes, begins: Ints, ends: Ints, is_first: NDArray[np.bool_]) -> None:
        self._source = source
        self._begins = begins
        self._ends = ends
        self._is_first = is_first
        self._at = begins.copy()
        self._behind = np.arange(1, len(begins) + 1, dtype=np.int64)
        """Which lane begins after each lane in its region."""
        self._behind[:-1][is_first[1:]] = _AT_END
        self._behind[-1] = _AT_END
        self._targets = self._behind.copy()
        """The same, without disproven ones."""
        self._met = np.full(len(begins), _UNMET, np.int64)
        self._marks: list[Ints] = []
        self._owners: list[Ints] = []
        self._late: list[int] = []
        """Lanes that are left to the plain loop."""

    def walk_together(self) -> None:
        """Walk all lanes until so few are left that the plain loop is faster."""
        lanes = np.arange(len(self._begins), dtype=np.int64)
        at, ends = self._begins, self._ends
        stops = self._stops(self._targets, ends)
        while len(lanes) >= _LANES_MIN:
            numbers, widths, width_max = raw_varints(self._source.words_at(at))
            if int(numbers.min()) < _NUMBER_MIN or int(np.bitwise_or.reduce(numbers)) & 1 or width_max > WORD_BYTES:
                left = self._without_unsound(lanes, at, numbers, widths)
                lanes, at, ends, stops = lanes[left], at[left], ends[left], stops[left]
                continue
            self._marks.append((at << WIDTH_BITS) | widths)
            self._owners.append(lanes)
            at = at + widths + (numbers >> _ONE).view(np.int64)
            if (at >= stops).any():
                stops = self._meet(lanes, at, ends, stops)
                left = np.flatnonzero(at < stops)
                lanes, at, ends, stops = lanes[left], at[left], ends[left], stops[left]
        self._at[lanes] = at
        self._finish([*lanes.tolist(), *self._late])

    def _without_unsound(self, lanes: Ints, at: Ints, numbers: Words, widths: Ints | int) -> Ints:
        """Which lanes are at a possible length."""
        # In nine or ten bytes: the plain loop reads it, if the lane counts.
        is_long = np.broadcast_to(np.asarray(widths) > WORD_BYTES, at.shape)
        self._at[lanes[is_long]] = at[is_long]
        self._late += lanes[is_long].tolist()
        is_sound = (numbers >= _NUMBER_MIN) & ((numbers & _ONE) == 0)
        self._met[lanes[~is_sound & ~is_long]] = _BROKEN
        return np.flatnonzero(is_sound & ~is_long)

    def _finish(self, lanes: list[int]) -> None:
        """Walk the last lanes one by one; nearly all of them are needed."""
        begins = self._begins.tolist()
        marks: list[int] = []
        owners: list[int] = []
        for lane in lanes:
            try:
                met = self._walk_plain(int(self._at[lane]), int(self._ends[lane]), begins, marks)
            except PenstockError:
                met = _BROKEN
            self._met[lane] = met
            owners += [lane] * (len(marks) - len(owners))
        self._marks.append(np.array(marks, np.int64))
        self._owners.append(np.array(owners, np.int64))

    def _stops(self, targets: Ints, ends: Ints) -> Ints:
        return np.where(targets >= 0, self._begins[targets], ends)

    def _meet(self, lanes: Ints, at: Ints, ends: Ints, stops: Ints) -> Ints:
        """Note which lanes have met another; returns the stops, with new ones for lanes that passed over a wrong start."""
        passed = np.flatnonzero(at > stops)
        if len(passed):
            stops = stops.copy()
            behind = np.searchsorted(self._begins, at[passed])
            is_same = behind < len(self._begins)
            behind = np.where(is_same, behind, 0)
            is_same &= (self._ends[behind] == ends[passed]) & ~self._is_first[behind]
            targets = np.where(is_same, behind, _AT_END)
            self._targets[lanes[passed]] = targets
            stops[passed] = self._stops(targets, ends[passed])
            # After the end of its region nothing can be met.
            out = at > ends
            self._met[lanes[out]] = _BROKEN
            stops[out] = 0
        met = lanes[at == stops]
        self._met[met] = self._targets[met]
        return stops

    def walked(self) -> list[Ints]:
        """The marks of the lanes that begin a region or were met by a lane that counts, after walking them to their ends."""
        if (self._met == self._behind).all():
            return self._in_order()
        begins, met = self._begins.tolist(), self._met.tolist()
        counts = np.zeros(len(begins), np.bool_)
        plain: list[int] = []
        for first in np.flatnonzero(self._is_first).tolist():
            lane = first
            while lane >= 0:
                counts[lane] = True
                behind = met[lane]
                if behind == _UNMET:
                    behind = self._walk_plain(int(self._at[lane]), int(self._ends[lane]), begins, plain)
                lane = behind
            if lane == _BROKEN:
                raise corrupt("The length of a record exceeds its batch")
        marks = [each[counts[owners]] for each, owners in zip(self._marks, self._owners, strict=True)]
        return [*marks, np.array(plain, np.int64)]

    def _in_order(self) -> list[Ints]:
        """All marks, in order if that needs no sorting: the marks of a lane are, and the lanes are in order."""
        *steps, plain = self._marks
        if len(steps) * len(self._begins) > _SPARSE_MAX * sum(map(len, steps)):
            # A few lanes are much longer than the others, and the table would be nearly empty.
            return self._marks
        by_step = np.full((len(steps), len(self._begins)), -1, np.int64)
        for row, marks, owners in zip(by_step, steps, self._owners, strict=False):
            row[owners] = marks
        by_lane = by_step.T.reshape(-1)
        marked = by_lane[by_lane >= 0]
        return [np.insert(marked, np.searchsorted(marked, plain), plain) if len(plain) else marked]

    def _walk_plain(self, at: int, end: int, begins: list[int], marks: list[int]) -> int:
        """Walk one record at a time up to the start of another lane, or the end of the region; returns which it was."""
        view = self._source.view
        behind = bisect_left(begins, at + 1)
        while True:
            stop = begins[behind] if behind < len(begins) and begins[behind] < end else end
            while at < stop:
                number = view[at]
                width = 1
                if number > 127:
                    byte = view[at + 1] if at + 1 < end else 128
                    if byte > 127:
                        length, body = self._source.varint_at(at)
                        number, width = length << 1, body - at
                    else:
                        number, width = number & 0x7F | byte << 7, 2
                length = number >> 1
                if number & 1 or length < LENGTH_MIN or length > end - at - width:
                    raise corrupt(f"A record declares {length} bytes, but {end - at - width} are left")
                marks.append(at << WIDTH_BITS | width)
                at += width + length
            if at == end:
                return _AT_END
            if at == stop:
                return behind
            behind = bisect_left(begins, at, behind)


def _guess(source: Bytes, begins: Ints, ends: Ints, record_bytes: Ints) -> tuple[Ints, Ints]:
    """Places that look like the start of a record, in order, and the region of each."""
    sizes = ends - begins
    lane_records = math.isqrt(int((sizes // record_bytes).sum()) // _LANE_COST)
    lane_records = min(max(lane_records, _LANE_RECORDS_MIN), _LANE_RECORDS_MAX)
    fitting = np.flatnonzero(record_bytes * _WINDOW_RECORDS <= _WINDOW_BYTES_MAX)
    guesses = sizes[fitting] // (record_bytes[fitting] * lane_records) - 1
    fitting, guesses = fitting[guesses > 0], guesses[guesses > 0]
    spacing = sizes[fitting] // (guesses + 1)
    if not len(fitting):
        return fitting, fitting
    window_bytes = int(np.average(record_bytes[fitting], weights=guesses) * _WINDOW_RECORDS) + WORD_BYTES
    regions = np.repeat(fitting, guesses)
    numbers = np.arange(len(regions), dtype=np.int64) - np.repeat(np.cumsum(guesses) - guesses, guesses) + 1
    windows = begins[regions] + numbers * np.repeat(spacing, guesses)
    is_inside = windows + window_bytes <= ends[regions]
    windows, regions = windows[is_inside], regions[is_inside]
    rows: NDArray[np.uint8] = np.ndarray(
        (max(0, source.size - window_bytes + 1), window_bytes), np.uint8, buffer=source.data.data, strides=(1, 1)
    )
    # The attributes of a record are zero, and text has no other zeros: few places are left to check.
    zeros = np.flatnonzero(rows[windows] == 0)
    row = zeros // window_bytes
    at = windows[row] + (zeros - row * window_bytes)
    starts, found = _starts_before(source, at, ends[regions[row]])
    row = row[found]
    is_new = np.ones(len(row), np.bool_)
    is_new[1:] = row[1:] != row[:-1]
    return starts[is_new], regions[row[is_new]]


def _starts_before(source: Bytes, attributes_at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Where the records begin whose attributes may be at these places, and which of the places those are."""
    before = source.words_at(attributes_at - WORD_BYTES)
    last, middle, first = before >> 56, (before >> 48) & 0xFF, (before >> 40) & 0xFF
    width = np.where(middle < 128, 1, np.where(first < 128, 2, 3))
    number: Ints = np.where(
        width == 1,
        last,
        np.where(width == 2, middle & 0x7F | last << 7, first & 0x7F | (middle & 0x7F) << 7 | last << 14),
    ).view(np.int64)
    behind: Ints = attributes_at + (number >> 1)
    likely = np.flatnonzero(((number & 1) == 0) & (number >= LENGTH_MIN << 1) & (last < 128) & (behind < ends))
    behind = behind[likely]
    lengths, widths = varints(source.words_at(behind))
    next_at = np.minimum(behind + widths, source.size - 1)
    # Few are left if the next record must have attributes of zero too; the deltas are the last cheap check.
    sound = np.flatnonzero((source.data[next_at] == 0) & (lengths >= LENGTH_MIN) & (next_at < ends[likely]))
    likely, next_at = likely[sound], next_at[sound]
    attributes_at, width = attributes_at[likely], width[likely]
    here, there = _offset_delta(source, attributes_at + 1), _offset_delta(source, next_at + 1)
    is_record = (here >= 0) & (here < there)
    return (attributes_at - width)[is_record], likely[is_record]


def _offset_delta(source: Bytes, at: Ints) -> Ints:
    """The second varint from each place on; any number where there is none."""
    words = source.words_at(np.minimum(at, source.size - 1))
    _, widths = varints(words)
    return varints(shifted(words, widths))[0]
