"""One segment: consecutive batches in one file, with its two indexes.

On disk: ``<base offset>.log`` with batches in increasing offset order, ``.index`` and ``.timeindex``
(:mod:`penstock.log.index`). Only the last segment of a log, the active one, grows.

Invariant: the first ``size`` bytes of the file are whole batches with offsets in ``base_offset`` to ``next_offset``
(excluded); anything after that is a failed write that is about to be truncated. Bytes in ``verified_from`` to ``verified_to``
have been CRC-checked, or were written by this process into the still active file.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from penstock.limits import INDEX_INTERVAL_BYTES_DEFAULT, MIB, REQUEST_BYTES_MAX
from penstock.log.files import FilePool
from penstock.log.index import IndexBuilder, OffsetIndex, TimeIndex
from penstock.log.names import DELETED, INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, offset_of, segment_stem
from penstock.log.scan import OUT_OF_ORDER, DamageError, fault_of, walk
from penstock.ports import Disk, File
from penstock.records.batch import HEADER_BYTES, LENGTH_MIN, MAGIC, BatchHeader, crc_matches, read_header
from penstock.types import NO_TIMESTAMP

OFFSET_LIMIT: Final = 2**63 - 1
SHORT_INDEX_BYTES: Final = 1 * MIB
"""An index without a row for the last this many bytes has lost rows, unless a single batch is as large."""


class Segment:
    """The files of one segment; see the module for its invariants. All calls are made on the event loop."""

    __slots__ = (
        "_disk",
        "_files",
        "_max_timestamp",
        "_offsets",
        "_times",
        "base_offset",
        "created_ms",
        "directory",
        "doomed",
        "file",
        "log_path",
        "next_offset",
        "pins",
        "size",
        "stem",
        "synced_size",
        "used",
        "verified_from",
        "verified_to",
    )

    def __init__(
        self, disk: Disk, files: FilePool, directory: str, base_offset: int, *, size: int, next_offset: int
    ) -> None:
        self._disk = disk
        self._files = files
        self.base_offset = base_offset
        self.directory = directory
        self.stem = segment_stem(directory, base_offset)
        self.log_path = self.stem + LOG
        self.size = size
        self.synced_size = size
        self.next_offset = next_offset
        self.created_ms: int | None = None
        self.file: File | None = None
        self.used = False
        self.pins = 0
        self.doomed = False
        self.verified_from = 0
        self.verified_to = 0
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._max_timestamp: int | None = None

    def __repr__(self) -> str:
        return f"Segment({self.log_path}, size={self.size})"

    # The descriptor.

    @property
    def is_dirty(self) -> bool:
        """Whether bytes are written and not synced."""
        return self.size > self.synced_size

    def opened(self) -> File:
        """The file, opened if necessary."""
        self.used = True
        return self.file or self._files.open(self)

    def release(self) -> None:
        """Close the file and drop cached rows; the next read opens it again."""
        assert self.pins == 0
        file, self.file = self.file, None
        if file is not None:
            file.close()
        if self._offsets is not None:
            self._offsets.forget()
        if self._times is not None:
            self._times.forget()

    def pin(self) -> File:
        """The file for a sync in another thread; it stays open until :meth:`unpin`."""
        file = self.opened()
        self.pins += 1
        return file

    def unpin(self) -> None:
        """The other thread is done with the file."""
        self.pins -= 1
        if self.doomed and self.pins == 0:
            self.release()

    def close(self) -> None:
        """Close the segment for good; a running sync keeps the descriptor until it ends."""
        self.doomed = True
        if self.pins == 0:
            self.release()

    def create(self, now_ms: int) -> None:
        """Create its file, empty, for the first append; the caller syncs the directory."""
        file = self.file or self._files.open(self, create=True)
        if file.size():
            file.truncate(0)
        # A crash may have left the index of a segment that was never written to.
        for path in self.index_paths():
            self._disk.remove(path)
        self.set_indexes(
            OffsetIndex(self._disk, self.stem + INDEX, 0), TimeIndex(self._disk, self.stem + TIME_INDEX, 0)
        )
        self.created_ms = now_ms
        self.verified_to = OFFSET_LIMIT

    def finish(self) -> None:
        """It does not grow any more: write its indexes. OSError if there is no space; they are rebuilt when needed."""
        self.end_times()
        try:
            self.flush_indexes()
        finally:
            self.offsets.forget_tail()
            self.times.forget_tail()
            # Closed files are checked when they are read: damage on disk must be found.
            self.verified_from = self.verified_to = 0

    def put_aside(self) -> list[str]:
        """Close it and rename its files, so that they are no longer part of the log; recovery removes them. Returns the new names."""
        paths = [path for path in self.paths() if self._disk.exists(path)]
        for path in paths:
            self._disk.rename(path, path + DELETED)
        self.close()
        return [path + DELETED for path in paths]

    def remove(self) -> None:
        """Close it and remove its files."""
        self.close()
        for path in self.paths():
            self._disk.remove(path)

    def paths(self) -> list[str]:
        """The paths of its files, whether they exist or not."""
        return [self.stem + suffix for suffix in SEGMENT_SUFFIXES]

    def index_paths(self) -> list[str]:
        """The same without the file of the batches."""
        return [self.stem + INDEX, self.stem + TIME_INDEX]

    # Indexes.

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index; on first use it is checked, and rebuilt if it is not sound."""
        if self._offsets is None:
            self._load_indexes()
            assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index, likewise."""
        if self._times is None:
            self._load_indexes()
            assert self._times is not None
        return self._times

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp in it; -1 if it has none."""
        if self._max_timestamp is None:
            last = self.times.last()
            self._max_timestamp = NO_TIMESTAMP if last is None else last[0]
        return self._max_timestamp

    @max_timestamp.setter
    def max_timestamp(self, value: int) -> None:
        self._max_timestamp = value

    def end_times(self) -> None:
        """The segment is closed: the last row of its time index has its greatest timestamp and its last offset."""
        row = self.max_timestamp, self.next_offset - 1 - self.base_offset
        if self.size and self.times.last() != row:
            self.times.add(*row)

    def set_indexes(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Use indexes that the caller has checked or built."""
        self._offsets = offsets
        self._times = times

    def add_rows(self, base_offset: int, position: int, max_timestamp: int) -> None:
        """Index a batch; ``max_timestamp`` is the greatest up to its end."""
        relative = base_offset - self.base_offset
        self.offsets.add(relative, position)
        last = self.times.last()
        if last is None or max_timestamp > last[0]:
            self.times.add(max_timestamp, relative)

    def flush_indexes(self) -> None:
        """Write the rows that are only in memory."""
        self.offsets.flush()
        self.times.flush()

    def load_indexes_upto(self, position: int) -> tuple[int, int]:
        """Trust the index only for bytes before ``position``, and not at all if its last row is wrong.

        Returns position and offset of the batch from which on a scan must build the index again.
        """
        offsets, times = self.indexes_on_disk()
        offsets.cut_from_value(position)
        last = offsets.last()
        if last is not None and self.row_is_true(*last):
            times.cut_from_value(last[0] + 1)
            if len(times):
                self.set_indexes(offsets, times)
                return last[1], self.base_offset + last[0]
        offsets.cut(0)
        times.cut(0)
        self.set_indexes(offsets, times)
        return 0, self.base_offset

    def indexes_on_disk(self) -> tuple[OffsetIndex, TimeIndex]:
        """The indexes as they are on disk, unchecked."""
        offset_path, time_path = self.index_paths()
        return (
            OffsetIndex(self._disk, offset_path, OffsetIndex.rows_in(self._disk, offset_path)),
            TimeIndex(self._disk, time_path, TimeIndex.rows_in(self._disk, time_path)),
        )

    def _load_indexes(self) -> None:
        offsets, times = self.indexes_on_disk()
        self.set_indexes(offsets, times)
        if self.size and not self._indexes_are_sound(offsets, times):
            self.rebuild_indexes()

    def _indexes_are_sound(self, offsets: OffsetIndex, times: TimeIndex) -> bool:
        """Whether they may belong to this closed segment: the time index ends with its last offset, and the last row is correct."""
        last_time = times.last()
        if last_time is None or self.base_offset + last_time[1] != self.next_offset - 1:
            return False
        last = offsets.last()
        if last is not None and not self.row_is_true(*last):
            return False
        position = 0 if last is None else last[1]
        if self.size - position <= SHORT_INDEX_BYTES:
            return True
        # Nothing is indexed for a long range: one large batch, or lost rows.
        header = self._header_at(position)
        return header is None or position + header.size_bytes >= self.size

    def check_indexes(self, interval_bytes: int) -> None:
        """Compare every row with the batches of the whole segment, and rebuild the indexes if one is wrong."""
        check = IndexCheck(self)
        for position, header in self.batches_at(0):
            check.add(position, header)
        check.finish()
        if check.wrong_places or check.wrong_times:
            self.rebuild_indexes(interval_bytes)

    def row_is_true(self, relative_offset: int, position: int) -> bool:
        """Whether a batch with this offset starts at this position."""
        header = self._header_at(position)
        return header is not None and header.magic == MAGIC and header.base_offset == self.base_offset + relative_offset

    def rebuild_indexes(self, interval_bytes: int = INDEX_INTERVAL_BYTES_DEFAULT) -> None:
        """Build both indexes from the batches. Damage is skipped with the help of old rows that are correct."""
        offsets = OffsetIndex(self._disk, self.stem + INDEX, 0)
        times = TimeIndex(self._disk, self.stem + TIME_INDEX, 0)
        builder = IndexBuilder(self.base_offset, offsets, times, interval_bytes)
        for position, header in self.batches_at(0):
            builder.add(position, header)
        self.max_timestamp = builder.finish()
        for index in (offsets, times):
            self._disk.remove(index.path)
        self.set_indexes(offsets, times)
        self.end_times()
        # Without space the rows stay in memory: reads must work with a full disk.
        with suppress(OSError):
            offsets.flush()
            times.flush()

    # Reading.

    def locate(self, offset: int, end: int) -> int:
        """Position of the first batch that ends at or after ``offset``; ``end`` if all before ``end`` end earlier.

        If that batch is damaged, the position of the damage: reading there reports it.
        """
        row = self.offsets.floor(offset - self.base_offset)
        position, offset_min = 0, self.base_offset
        if row is not None:
            if self.row_is_true(*row):
                position, offset_min = row[1], self.base_offset + row[0]
            elif row[1] >= self.size:
                self.rebuild_indexes()
                return self.locate(offset, end)
            else:
                # The header that the row points to, or the row, is damaged: start at an earlier row.
                position, offset_min = self._true_row_before(row)
        while True:
            try:
                for at, header in self.walk(position, offset_min, end):
                    if header.base_offset + header.last_offset_delta >= offset:
                        # After a gap its offset may be wrong, which no checksum shows; then the next batch contradicts it.
                        if (
                            offset_min < header.base_offset
                            and self.offset_at(at + header.size_bytes) < header.next_offset
                        ):
                            raise DamageError(at, OUT_OF_ORDER)
                        return at
                    offset_min = header.next_offset
            except DamageError as damage:
                sound = self.next_sound(damage.position, offset_min)
                if sound is None or sound[1] > offset:
                    return damage.position
                position, offset_min = sound
                continue
            return end

    def _true_row_before(self, row: tuple[int, int]) -> tuple[int, int]:
        relative = row[0]
        while relative > 0:
            earlier = self.offsets.floor(relative - 1)
            if earlier is None:
                break
            if self.row_is_true(*earlier):
                return earlier[1], self.base_offset + earlier[0]
            relative = earlier[0]
        return 0, self.base_offset

    def next_sound(self, position: int, offset_min: int) -> tuple[int, int] | None:
        """Position and offset of the first sound batch after the damage at ``position``, if it can be found.

        It is the next batch if the length of the damaged one is still correct, otherwise one that an index row points at. Batches
        before ``position`` end below ``offset_min``.
        """
        file = self.opened()
        header = self._header_at(position)
        if header is not None and LENGTH_MIN <= header.length <= REQUEST_BYTES_MAX:
            behind = position + header.size_bytes
            following = self._header_at(behind)
            if (
                following is not None
                and fault_of(following, self.size - behind, offset_min, self.next_offset) is None
                and crc_matches(file.pread(following.size_bytes, behind))
            ):
                return behind, following.base_offset
        rows = self.offsets
        for number in range(rows.rows_below_value(position + 1), len(rows)):
            relative, at = rows.row(number)
            if self.base_offset + relative >= offset_min and self.row_is_true(relative, at):
                return at, self.base_offset + relative
        return None

    def _header_at(self, position: int) -> BatchHeader | None:
        data = self.opened().pread(HEADER_BYTES, position) if position < self.size else b""
        return read_header(data) if len(data) == HEADER_BYTES else None

    def offset_at(self, position: int) -> int:
        """The offset of the batch at ``position``, as its header says; at the end, the next offset."""
        header = self._header_at(position)
        return self.next_offset if header is None else header.base_offset

    def reaches(self, position: int, offset: int) -> bool:
        """Whether the batch at ``position`` ends at ``offset`` or later, as its header says."""
        header = self._header_at(position)
        return header is not None and header.magic == MAGIC and header.next_offset > offset

    def walk(
        self, position: int, offset_min: int, end: int | None = None, *, check_crc: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """As :func:`penstock.log.scan.walk`, for this segment."""
        end = self.size if end is None else end
        limit = self.next_offset
        return walk(self.opened(), position, end, offset_min=offset_min, offset_limit=limit, check_crc=check_crc)

    def headers_at(self, position: int) -> Iterator[BatchHeader]:
        """The headers from ``position`` on; damage is skipped if possible."""
        for _, header in self.batches_at(position):
            yield header

    def batches_at(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """The same, with their positions."""
        offset_min = self.base_offset
        while position < self.size:
            try:
                for at, header in self.walk(position, offset_min):
                    yield at, header
                    offset_min = header.next_offset
            except DamageError as damage:
                sound = self.next_sound(damage.position, offset_min)
                if sound is not None:
                    position, offset_min = sound
                    continue
            return

    def is_verified(self, start: int, end: int) -> bool:
        """Whether these bytes need no CRC check."""
        return self.verified_from <= start and end <= self.verified_to

    def note_verified(self, start: int, end: int) -> None:
        """These bytes were checked. One interval is remembered: it grows, or the newer one replaces it."""
        if start <= self.verified_to and end >= self.verified_from:
            self.verified_from = min(start, self.verified_from)
            self.verified_to = max(end, self.verified_to)
        else:
            self.verified_from, self.verified_to = start, end


class IndexCheck:
    """Compares index rows with the batches of a scan, one by one, so that memory does not grow.

    Rows that point into damage do not count as wrong: they may have been correct.
    """

    __slots__ = (
        "_base_offset",
        "_end",
        "_max_timestamp",
        "_place",
        "_places",
        "_size",
        "_time",
        "_times",
        "has_times",
        "wrong_places",
        "wrong_times",
    )

    def __init__(self, segment: Segment) -> None:
        self._base_offset = segment.base_offset
        self._size = segment.size
        self._end = 0
        self._places = segment.offsets.rows()
        self._times = segment.times.rows()
        self._place = next(self._places, None)
        self._time = next(self._times, None)
        self._max_timestamp = NO_TIMESTAMP
        self.has_times = self._time is not None
        self.wrong_places = 0
        self.wrong_times = 0

    def add(self, position: int, header: BatchHeader) -> None:
        """The next batch."""
        while self._time is not None and self._base_offset + self._time[1] < header.base_offset:
            self._check_time()
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        while self._place is not None and self._place[1] <= position:
            if not self._end <= self._place[1] < position:
                self.wrong_places += self._place != (header.base_offset - self._base_offset, position)
            self._place = next(self._places, None)
        self._end = position + header.size_bytes

    def finish(self) -> None:
        """The segment ends here."""
        while self._time is not None:
            self._check_time()
        while self._place is not None:
            self.wrong_places += not self._end <= self._place[1] < self._size
            self._place = next(self._places, None)

    def _check_time(self) -> None:
        assert self._time is not None
        self.wrong_times += self._time[0] != self._max_timestamp
        self._time = next(self._times, None)


class Segments:
    """The segments of one log in offset order; the last is the active one."""

    __slots__ = ("_bases", "items")

    def __init__(self, items: list[Segment]) -> None:
        self.items = items
        self._bases = [segment.base_offset for segment in items]

    def at(self, offset: int) -> Segment:
        """The segment that contains ``offset``, or would contain it; the first one for an offset before all."""
        number = bisect_right(self._bases, offset) - 1
        return self.items[max(number, 0)]

    def after(self, segment: Segment) -> Segment | None:
        """The segment after ``segment``."""
        number = bisect_right(self._bases, segment.base_offset)
        return self.items[number] if number < len(self.items) else None

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches that end at or after ``offset``; damage is skipped if possible."""
        for segment in self.items:
            if segment.next_offset <= offset or not segment.size:
                continue
            position = segment.locate(offset, segment.size) if offset > segment.base_offset else 0
            yield from segment.headers_at(position)

    def push(self, segment: Segment) -> None:
        """A new active segment."""
        assert not self.items or segment.base_offset > self.items[-1].base_offset
        self.items.append(segment)
        self._bases.append(segment.base_offset)

    def replace(self, items: list[Segment]) -> None:
        """Replace all of them."""
        self.items = items
        self._bases = [segment.base_offset for segment in items]


def segment_bases(disk: Disk, directory: str) -> list[int]:
    """The base offsets of the segments on disk, in order."""
    return [base for name in disk.listdir(directory) if (base := offset_of(name, LOG)) is not None]


def list_segments(disk: Disk, files: FilePool, directory: str) -> list[Segment]:
    """The segments on disk, in offset order; the next offset of the last one is unknown."""
    bases = segment_bases(disk, directory)
    return [
        Segment(disk, files, directory, base, size=disk.size(segment_stem(directory, base) + LOG), next_offset=end)
        for base, end in zip(bases, [*bases[1:], OFFSET_LIMIT], strict=False)
    ]
