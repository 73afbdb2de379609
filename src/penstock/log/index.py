"""Where to start searching in a segment: by offset, and by time.

Both indexes have rows of fixed size in increasing order, one for about every ``index_interval_bytes`` of batches, big-endian:

* ``.index``: offset relative to the segment's base (4 bytes), position of the batch that starts with this offset (4);
* ``.timeindex``: timestamp in ms (8), relative offset of a batch (4): up to and including this batch no record is later than
  the timestamp. A row is added only if the timestamp increased, so the last row of a closed segment has its greatest one.

Invariant: rows are hints. A reader checks that a batch with that offset is there, a missing row costs a longer scan, and both
files can be rebuilt from the log. So they are written lazily and never synced.

Rows of the active segment are collected in memory until :meth:`Index.flush`. Of the rows in the file only the last block that
was read is kept in memory, so memory does not grow with the data.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing
from struct import Struct
from typing import Final

from penstock.ports import Disk
from penstock.records.batch import BatchHeader
from penstock.types import NO_TIMESTAMP

BLOCK_ROWS: Final = 512
"""Rows read at once: 2 MiB worth of batches at the usual interval."""
TAIL_ROWS_KEPT: Final = 512
"""Rows that stay in memory after a flush, because readers are mostly near the end."""
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Offsets in an index are 32 bits from the segment's base offset."""

assert array("I").itemsize == 4

Row = tuple[int, int]


class Index:
    """Rows of (key, value), both increasing. See :class:`OffsetIndex` and :class:`TimeIndex` for their meaning."""

    __slots__ = (
        "_block_at",
        "_block_keys",
        "_block_values",
        "_disk",
        "_edge",
        "_first",
        "_flushed",
        "_keys",
        "_values",
        "path",
    )

    _row: Struct
    _key_type: str

    def __init__(self, disk: Disk, path: str, row_count: int) -> None:
        """``row_count`` rows of the file are valid; 0 for a new one."""
        self._disk = disk
        self.path = path
        self._flushed = row_count
        # Rows from number _first on are in memory.
        self._first = row_count
        self._edge: Row | None = None
        self._keys = array(self._key_type)
        self._values = array("I")
        self._block_at = -1
        self._block_keys = self._keys
        self._block_values = self._values

    @classmethod
    def rows_in(cls, disk: Disk, path: str) -> int:
        """How many whole rows a file has; 0 when it is absent."""
        return disk.size(path) // cls._row.size if disk.exists(path) else 0

    def __len__(self) -> int:
        return self._first + len(self._keys)

    @property
    def unflushed_rows(self) -> int:
        """Rows in memory that are not in the file."""
        return self._first + len(self._keys) - self._flushed

    def add(self, key: int, value: int) -> None:
        """A new last row."""
        self._keys.append(key)
        self._values.append(value)

    def last(self) -> Row | None:
        """The last row; read from the file at most once, so that an append never waits for it."""
        if self._keys:
            return self._keys[-1], self._values[-1]
        if self._edge is None and self._first:
            self._edge = self._read_row(self._first - 1)
        return self._edge

    def row(self, number: int) -> Row:
        """The row with this number."""
        if number >= self._first:
            return self._keys[number - self._first], self._values[number - self._first]
        return self._read_row(number)

    def rows(self) -> Iterator[Row]:
        """All rows, read a block at a time."""
        if self._first:
            with closing(self._disk.open(self.path)) as file:
                for at in range(0, self._first, BLOCK_ROWS):
                    count = min(BLOCK_ROWS, self._first - at)
                    yield from self._row.iter_unpack(file.pread(count * self._row.size, at * self._row.size))
        yield from zip(self._keys, self._values, strict=True)

    def floor(self, key: int) -> Row | None:
        """The last row whose key is not above ``key``."""
        keys = self._keys
        if keys and keys[0] <= key:
            at = bisect_right(keys, key) - 1
            return keys[at], self._values[at]
        if self._find_block(key, 0) < 0:
            return None
        at = bisect_right(self._block_keys, key) - 1
        return (self._block_keys[at], self._block_values[at]) if at >= 0 else None

    def floor_by_value(self, value: int) -> Row | None:
        """The last row whose value is not above ``value``."""
        values = self._values
        if values and values[0] <= value:
            at = bisect_right(values, value) - 1
            return self._keys[at], values[at]
        if self._find_block(value, 1) < 0:
            return None
        at = bisect_right(self._block_values, value) - 1
        return (self._block_keys[at], self._block_values[at]) if at >= 0 else None

    def cut(self, row_count: int) -> None:
        """Keep the first ``row_count`` rows."""
        if row_count == len(self):
            return
        if row_count >= self._first:
            del self._keys[row_count - self._first :]
            del self._values[row_count - self._first :]
        else:
            self._keys = array(self._key_type)
            self._values = array("I")
            self._first = row_count
            self._edge = None
        if row_count < self._flushed:
            self._flushed = row_count
            self.forget()
            if self._disk.exists(self.path):
                with closing(self._disk.open(self.path)) as file:
                    file.truncate(row_count * self._row.size)

    def cut_from_value(self, value: int) -> None:
        """Drop the rows whose value is ``value`` or more."""
        self.cut(self.rows_below_value(value))

    def rows_below_value(self, value: int) -> int:
        """How many rows have a value less than ``value``."""
        if len(self._values) and self._values[0] < value:
            return self._first + bisect_left(self._values, value)
        low, high = 0, self._first
        while low < high:
            middle = (low + high) // 2
            if self._read_row(middle)[1] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def flush(self) -> None:
        """Write the rows that are only in memory; after OSError they stay in memory for a later attempt."""
        start = self._flushed - self._first
        pack = self._row.pack
        data = b"".join([pack(key, value) for key, value in zip(self._keys[start:], self._values[start:], strict=True)])
        if data:
            with closing(self._disk.open(self.path, create=True)) as file:
                file.pwritev((data,), self._flushed * self._row.size)
        self._flushed = self._first + len(self._keys)
        surplus = len(self._keys) - TAIL_ROWS_KEPT
        if surplus > 0:
            self._first += surplus
            self._edge = (self._keys[surplus - 1], self._values[surplus - 1])
            del self._keys[:surplus]
            del self._values[:surplus]

    def forget(self) -> None:
        """Drop the cached block; the rows of the tail are dropped with the next cut or flush."""
        self._block_at = -1
        self._block_keys = self._keys
        self._block_values = self._values

    def forget_tail(self) -> None:
        """The segment is closed and flushed: its rows are read from the file from now on."""
        if not self.unflushed_rows:
            self._edge = self.last()
            self._first = self._flushed
            self._keys = array(self._key_type)
            self._values = array("I")
        self.forget()

    def _read_row(self, number: int) -> Row:
        with closing(self._disk.open(self.path)) as file:
            key, value = self._row.unpack(file.pread(self._row.size, number * self._row.size))
        return key, value

    def _find_block(self, wanted: int, column: int) -> int:
        """Load the block of file rows that contains the floor of ``wanted``; its first row's number, -1 if there is none."""
        if self._block_at >= 0:
            held = self._block_values if column else self._block_keys
            if held and held[0] <= wanted and (wanted < held[-1] or self._block_at + len(held) >= self._first):
                return self._block_at
        count = self._first
        if count == 0:
            return -1
        size = self._row.size
        with closing(self._disk.open(self.path)) as file:
            low, high = 0, (count - 1) // BLOCK_ROWS
            while low < high:
                middle = (low + high + 1) // 2
                row = self._row.unpack(file.pread(size, middle * BLOCK_ROWS * size))
                if row[column] <= wanted:
                    low = middle
                else:
                    high = middle - 1
            at = low * BLOCK_ROWS
            data = file.pread(min(BLOCK_ROWS, count - at) * size, at * size)
        self._block_keys, self._block_values = self._columns(data)
        self._block_at = at
        return at

    def _columns(self, data: bytes) -> tuple["array[int]", "array[int]"]:
        """Keys and values of the rows in ``data``."""
        rows = list(self._row.iter_unpack(data))
        return array(self._key_type, [row[0] for row in rows]), array("I", [row[1] for row in rows])


class OffsetIndex(Index):
    """Relative offset -> position."""

    __slots__ = ()
    _row = Struct(">II")
    _key_type = "I"

    def _columns(self, data: bytes) -> tuple["array[int]", "array[int]"]:
        cells = array("I", data)
        if sys.byteorder == "little":
            cells.byteswap()
        return cells[::2], cells[1::2]


class TimeIndex(Index):
    """Greatest timestamp so far -> relative offset of the last batch for which it is the greatest."""

    __slots__ = ()
    _row = Struct(">qI")
    _key_type = "q"


class IndexBuilder:
    """Adds index rows while a segment is scanned, as appending would have."""

    __slots__ = ("_base_offset", "_due", "_interval_bytes", "_last_relative", "_max_timestamp", "_offsets", "_times")

    def __init__(self, base_offset: int, offsets: OffsetIndex, times: TimeIndex, interval_bytes: int) -> None:
        """Continue after the existing rows."""
        self._base_offset = base_offset
        self._offsets = offsets
        self._times = times
        self._interval_bytes = interval_bytes
        last = offsets.last()
        self._due = interval_bytes if last is None else last[1] + interval_bytes
        last_time = times.last()
        self._max_timestamp = NO_TIMESTAMP if last_time is None else last_time[0]
        self._last_relative = -1

    def add(self, position: int, header: BatchHeader) -> None:
        """The next batch."""
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._last_relative = header.base_offset - self._base_offset
        if position >= self._due:
            self._offsets.add(self._last_relative, position)
            self._due = position + self._interval_bytes
            self._add_time()

    def finish(self) -> int:
        """The scan ends here; returns the greatest timestamp, which is then in the time index."""
        if self._last_relative >= 0:
            self._add_time()
        return self._max_timestamp

    def _add_time(self) -> None:
        last = self._times.last()
        if last is None or self._max_timestamp > last[0]:
            self._times.add(self._max_timestamp, self._last_relative)
