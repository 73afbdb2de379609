"""Truncating a log: for a follower whose history differs from its leader's, or whose leader has removed older records.

A truncation is synced when it returns. On disk: ``cut`` tells recovery that a checkpoint was written before the truncation.
"""

from typing import TYPE_CHECKING

from penstock.log.checkpoint import SNAPSHOT_UNKNOWN
from penstock.log.cleaning import end_clean_note
from penstock.log.names import CUT, CUT_TITLE, DELETED, START_OFFSET, START_OFFSET_TITLE
from penstock.log.notes import read_note, write_note
from penstock.log.producer_state import ProducerStates
from penstock.log.segment import OFFSET_LIMIT, Segment
from penstock.log.snapshots import drop_snapshots_above, load_producers
from penstock.log.tail import index_tail
from penstock.ports import Disk

if TYPE_CHECKING:
    from penstock.log.log import Log


class CutNote:
    """Tells recovery that the checkpoint was written before a cut: above the cut the file has other batches now.

    The lowest cut since that checkpoint counts. A later cut at a higher offset does not restore what an earlier one replaced.
    """

    __slots__ = ("_directory", "_disk", "is_there")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.is_there = disk.exists(f"{directory}/{CUT}")

    def read(self) -> tuple[int, ...] | None:
        """Base of the segment, next offset and position; None if there is no note or it is damaged."""
        return read_note(self._disk, f"{self._directory}/{CUT}", CUT_TITLE, 3)

    def write(self, segment_base: int, offset: int, position: int) -> None:
        """The log is about to be cut there."""
        if self.is_there:
            noted = self.read()
            # With a note that cannot be read, recovery trusts no checkpoint at all.
            if noted is None or noted[1] <= offset:
                return
        self.is_there = True
        write_note(self._disk, f"{self._directory}/{CUT}", CUT_TITLE, segment_base, offset, position)

    def remove(self) -> None:
        """A checkpoint made after the cut is durable: recovery can trust it."""
        if self.is_there:
            self._disk.remove(f"{self._directory}/{CUT}")
            self.is_there = False


def truncate_to(log: "Log", offset: int) -> None:
    """See :meth:`penstock.log.log.Log.truncate_to`.

    For a follower whose history diverges from its leader's. Epochs that began there are forgotten, even one without records:
    a power failure can take an epoch's only records and leave its entry. Nothing happens if the log ends before ``offset``.
    """
    if offset > log.next_offset or (offset == log.next_offset and not log.epochs.begins_at_or_above(offset)):
        return
    log.check_usable()
    if offset < log.next_offset:
        # What was not written was not acknowledged.
        log.forget_unwritten()
    try:
        if offset < log.written_offset:
            log.generation += 1
            _cut_files(log, offset)
        else:
            log.forget_epochs(offset)
    except OSError as error:
        raise log.fail(error) from error


def _cut_files(log: "Log", offset: int) -> None:
    items = log.segment_list.items
    number = max((n for n, segment in enumerate(items) if segment.base_offset <= offset), default=None)
    log.active.next_offset = log.written_offset
    kept = items[: 0 if number is None else number + 1]
    if kept:
        segment = kept[-1]
        position = segment.locate(offset, segment.size) if offset > segment.base_offset else 0
        if position < segment.size:
            header = next(segment.headers_at(position), None)
            offset = offset if header is None else min(offset, header.base_offset)
    else:
        segment = Segment(log.disk, log.files, log.directory, offset, size=0, next_offset=offset)
        kept = [segment]
        position = 0
    log.cut_note.write(segment.base_offset, offset, position)
    _remove(log, [item for item in reversed(items) if item not in kept])
    if segment not in items:
        _remove_put_aside(log)
        log.create_file(segment)
    file = segment.opened()
    file.truncate(position)
    file.sync()
    segment.size = segment.synced_size = position
    drop_snapshots_above(log.disk, log.directory, offset)
    _lower_start(log, offset)
    end_clean_note(log.disk, log.directory, offset)
    log.unsynced.sync_names()
    index_tail(segment, log.config.index_interval_bytes, position, offset, {})
    segment.next_offset = offset
    segment.verified_to = OFFSET_LIMIT
    log.unsynced.sync_segments(kept[:-1])
    log.segment_list.replace(kept)
    log.forget_epochs(offset)
    log.producers = load_producers(log.disk, log.directory, log.segment_list, None, offset, log.clock.now_ms())
    log.producers.snapshot_offset = SNAPSHOT_UNKNOWN
    log.settle_at_end()


def start_at(log: "Log", offset: int) -> None:
    """See :meth:`penstock.log.log.Log.start_at`. A crash in between leaves the log as it was, or empty: the follower asks again."""
    log.check_usable()
    truncate_to(log, log.start_offset)
    if log.next_offset == log.start_offset == offset:
        return
    log.generation += 1
    old = log.segment_list.items
    new = Segment(log.disk, log.files, log.directory, offset, size=0, next_offset=offset)
    try:
        if log.is_on_disk:
            log.create_file(new)
            log.disk.remove(f"{log.directory}/{START_OFFSET}")
            drop_snapshots_above(log.disk, log.directory, -1)
            end_clean_note(log.disk, log.directory, 0)
            _remove_put_aside(log)
            _remove(log, [segment for segment in old if segment.base_offset != offset])
            log.unsynced.sync_names()
        log.forget_epochs(0)
    except OSError as error:
        raise log.fail(error) from error
    log.producers = ProducerStates()
    log.start_offset = offset
    log.unsynced.sync_segments([])
    log.segment_list.replace([new])
    log.settle_at_end()


def _remove(log: "Log", segments: list[Segment]) -> None:
    for segment in segments:
        segment.remove()
        log.unsynced.drop_segment(segment)


def _remove_put_aside(log: "Log") -> None:
    """Remove what retention has dropped: the log restarts below it, and recovery must not drop the new segment too."""
    for name in log.disk.listdir(log.directory):
        if name.endswith(DELETED):
            log.disk.remove(f"{log.directory}/{name}")


def _lower_start(log: "Log", offset: int) -> None:
    if offset < log.start_offset:
        note = read_note(log.disk, f"{log.directory}/{START_OFFSET}", START_OFFSET_TITLE, 1)
        if note is not None and note[0] > offset:
            write_note(log.disk, f"{log.directory}/{START_OFFSET}", START_OFFSET_TITLE, offset)
        log.start_offset = offset
