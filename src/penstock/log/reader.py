"""Reading a log: slices of the file, found without scanning.

Known batch boundaries (ends of writes, ends of reads) are kept as marks: offset -> segment and position. A consumer that
continues where it stopped, up to the end of a write, needs no index at all.

Invariant: a mark is the position where the first batch that ends at or after its offset starts, or would start. Code that
truncates, removes or replaces segments calls :meth:`LogReader.forget`.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import PenstockError, Reason
from penstock.limits import REQUEST_BYTES_MAX
from penstock.log.scan import INCOMPLETE, NO_HEADER, sound_length
from penstock.log.segment import Segment
from penstock.records.batch import HEADER_BYTES, LENGTH_END, LENGTH_MIN, read_header, unpack_offset_and_length

if TYPE_CHECKING:
    from penstock.log.log import Log

MARKS_MAX: Final = 256
"""Marks per log; the oldest is dropped first."""
WALK_STEPS_MAX: Final = 8
"""Batches scanned to find the end of a slice before the index is used."""


class Slice(NamedTuple):
    """Consecutive batches: ``data`` starts with the batch that contains the requested offset and ends with a whole batch."""

    data: bytes | memoryview
    next_offset: int
    """Where to continue: the offset after the last batch in ``data``."""


class LogReader:
    """The read side of one log."""

    __slots__ = ("_log", "_marks", "_segments")

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._segments = log.segment_list
        self._marks: dict[int, tuple[Segment, int]] = {}

    def mark(self, offset: int, segment: Segment, position: int) -> None:
        """``offset`` is at a batch boundary, and the batch after it starts, or will start, at ``position``."""
        marks = self._marks
        marks[offset] = (segment, position)
        if len(marks) > MARKS_MAX:
            del marks[next(iter(marks))]

    def forget(self) -> None:
        """Segments were truncated, removed or replaced."""
        self._marks.clear()

    def read(self, offset: int, max_bytes: int, upto_offset: int, at_least_one: bool) -> Slice:
        """See :meth:`penstock.log.log.Log.read`.

        With ``at_least_one`` the first batch is returned whole even above ``max_bytes``. OFFSET_OUT_OF_RANGE outside
        ``start_offset`` to ``upto_offset``; CORRUPT_RECORDS if the requested batch is damaged on disk, STORAGE_ERROR if the
        disk fails.
        """
        log = self._log
        upto_offset = min(upto_offset, log.written_offset)
        if not log.start_offset <= offset < upto_offset:
            if offset == upto_offset >= log.start_offset:
                return Slice(b"", offset)
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is out of range {log.start_offset} to {upto_offset}; start from the earliest or the latest offset",
            )
        try:
            found = self._marks.get(offset)
            segment, position = found if found is not None else self._locate(offset)
            limit = self._marks.get(upto_offset)
            if limit is not None and limit[0] is segment:
                end = limit[1]
            else:
                end = self._end_in(segment, upto_offset)
            while position >= end:
                # A gap that compaction left, unless what is here is damaged: both searches end at damage.
                if position < segment.size and not segment.reaches(position, upto_offset):
                    raise self._corrupt(segment, position, offset, NO_HEADER)
                following = self._segments.after(segment)
                if following is None or following.base_offset >= upto_offset:
                    return Slice(b"", upto_offset)
                segment, position = following, 0
                end = self._end_in(segment, upto_offset)
            available = end - position
            data = segment.opened().pread(min(max_bytes, available), position)
            length = len(data)
            if length == available:
                # Ends at a known boundary.
                if segment.verified_from <= position and end <= segment.verified_to:
                    return Slice(data, min(segment.next_offset, upto_offset))
            elif length < HEADER_BYTES or length < unpack_offset_and_length(data)[1] + LENGTH_END:
                data = self._first_batch(segment, position, end, data) if at_least_one else b""
                if not data:
                    return Slice(b"", offset)
            return self._checked(segment, position, offset, data, upto_offset)
        except OSError as error:
            raise PenstockError(
                Reason.STORAGE_ERROR, f"Cannot read {log.directory}: {error}; check the disk, and try again"
            ) from error

    def bytes_between(self, offset: int, upto_offset: int) -> int:
        """See :meth:`penstock.log.log.Log.bytes_between`."""
        upto_offset = min(upto_offset, self._log.written_offset)
        if not self._log.start_offset <= offset < upto_offset:
            return 0
        segment, position = self._marks.get(offset) or self._locate(offset)
        total = -position
        while upto_offset > segment.next_offset:
            following = self._segments.after(segment)
            if following is None:
                break
            total += segment.size
            segment = following
        return total + self._end_in(segment, upto_offset)

    def time_at(self, offset: int, upto_offset: int) -> int | None:
        """See :meth:`penstock.log.log.Log.time_at`."""
        if not self._log.start_offset <= offset < min(upto_offset, self._log.written_offset):
            return None
        segment, position = self._marks.get(offset) or self._locate(offset)
        while position >= segment.size:
            # A gap that compaction left at the end of a segment.
            following = self._segments.after(segment)
            if following is None:
                return None
            segment, position = following, 0
        header = segment.opened().pread(HEADER_BYTES, position)
        return read_header(header).base_timestamp if len(header) == HEADER_BYTES else None

    def _locate(self, offset: int) -> tuple[Segment, int]:
        segment = self._segments.at(offset)
        if offset <= segment.base_offset:
            return segment, 0
        return segment, segment.locate(offset, segment.size)

    def _end_in(self, segment: Segment, upto_offset: int) -> int:
        """Where in ``segment`` a reader must stop that may read only up to ``upto_offset``."""
        if upto_offset >= segment.next_offset:
            return segment.size
        if upto_offset <= segment.base_offset:
            return 0
        mark = self._marks.get(upto_offset)
        if mark is not None and mark[0] is segment:
            return mark[1]
        position = segment.locate(upto_offset, segment.size)
        self.mark(upto_offset, segment, position)
        return position

    def _first_batch(self, segment: Segment, position: int, end: int, data: bytes) -> bytes:
        """The whole first batch, although it is larger than requested."""
        file = segment.opened()
        if len(data) < HEADER_BYTES:
            data = file.pread(min(HEADER_BYTES, end - position), position)
        if len(data) < LENGTH_END:
            return data
        # A damaged length must not cause a read of the rest of the segment; the check that follows finds it.
        length = unpack_offset_and_length(data)[1]
        size = length + LENGTH_END if LENGTH_MIN <= length <= REQUEST_BYTES_MAX else HEADER_BYTES
        return file.pread(min(size, end - position), position)

    def _checked(self, segment: Segment, position: int, offset: int, data: bytes, upto_offset: int) -> Slice:
        """Check the CRC of what was not checked before, and end the slice with a whole batch."""
        if not segment.is_verified(position, position + len(data)):
            sound, fault = sound_length(
                data,
                offset,
                segment.next_offset,
                self._log.epochs.latest,
                lambda length: segment.offset_at(position + length),
            )
            segment.note_verified(position, position + sound)
            if fault is not None and sound == 0:
                raise self._corrupt(segment, position, offset, fault)
            last = self._last_border(segment, position, memoryview(data)[:sound])
        else:
            last = self._last_border(segment, position, data)
        if last is None:
            raise self._corrupt(segment, position, offset, INCOMPLETE)
        length, next_offset = last
        self.mark(next_offset, segment, position + length)
        next_offset = min(next_offset, upto_offset)
        return Slice(data if length == len(data) else memoryview(data)[:length], next_offset)

    @staticmethod
    def _last_border(segment: Segment, position: int, data: bytes | memoryview) -> tuple[int, int] | None:
        """Length of the whole batches in ``data``, and the offset after them."""
        total = len(data)
        at, last = 0, -1
        steps = 0
        while total - at >= HEADER_BYTES:
            size = unpack_offset_and_length(data, at)[1] + LENGTH_END
            if at + size > total:
                break
            last = at
            at += size
            steps += 1
            if steps == WALK_STEPS_MAX:
                at = LogReader._jump(segment, position, data, at)
        if last < 0:
            return None
        header = read_header(data, last)
        return at, header.base_offset + header.last_offset_delta + 1

    @staticmethod
    def _jump(segment: Segment, position: int, data: bytes | memoryview, at: int) -> int:
        """The start of the last whole batch in ``data`` that is in the index; ``at`` if there is none after it."""
        value = position + len(data) - HEADER_BYTES
        while True:
            row = segment.offsets.floor_by_value(value)
            if row is None or row[1] - position <= at:
                return at
            jump = row[1] - position
            offset, length = unpack_offset_and_length(data, jump)
            if offset == segment.base_offset + row[0] and length >= 0 and jump + length + LENGTH_END <= len(data):
                return jump
            value = row[1] - 1

    @staticmethod
    def _corrupt(segment: Segment, position: int, offset: int, fault: str) -> PenstockError:
        sound = segment.next_sound(position, offset + 1)
        next_offset = segment.next_offset if sound is None else sound[1]
        return PenstockError(
            Reason.CORRUPT_RECORDS,
            f"Offsets {offset} to {next_offset - 1} are damaged on disk ({fault}, {segment.log_path} position {position}); "
            f"restore the file from a replica or a backup, or continue reading at offset {next_offset}",
        )
