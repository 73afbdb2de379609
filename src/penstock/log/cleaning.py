"""Compaction as a task of one log: created on the event loop, run in a thread, installed on the event loop.

The work itself is in :mod:`penstock.log.compaction`. When ``run`` returns, the cleaned segments are beside the old ones, whole
and synced, as ``.swap`` files whose names say which offsets they replace. After a crash before that, the old segments are used;
after it, the new ones. ``clean-offset`` holds up to where the log is compacted, when the next tombstones may be removed, and up
to where compaction may have left gaps.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.compaction import CompactionPlan, CompactionResult, Replacement, SegmentFile, plan, run
from penstock.log.files import FilePool
from penstock.log.index import IndexBuilder, OffsetIndex, TimeIndex
from penstock.log.names import (
    CLEAN_OFFSET,
    CLEAN_OFFSET_TITLE,
    CLEANED,
    INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    segment_stem,
    swap_path,
)
from penstock.log.notes import read_note, write_note
from penstock.log.segment import Segment
from penstock.ports import Disk

NO_TOMBSTONES = -1

if TYPE_CHECKING:
    from penstock.log.log import Log


@dataclass(slots=True, kw_only=True)
class CompactionTask:
    """One run of compaction. ``result`` is set when it has run."""

    disk: Disk
    directory: str
    plan: CompactionPlan
    generation: int
    index_interval_bytes: int
    result: CompactionResult | None = field(default=None, init=False)

    def run(self) -> None:
        """Clean the segments; blocks. OSError or CORRUPT_RECORDS leaves everything as it was."""
        result = run(self.disk, self.plan)
        try:
            # Before the first gap appears: where compaction never was, recovery takes a gap for lost records.
            before = load_clean_note(self.disk, self.directory)
            touched = max([before.touched_to, *(each.target.next_offset for each in result.replacements)])
            self._note(before.cleaned_to, before.due_ms, touched)
            for replacement in result.replacements:
                self._index(replacement.target)
            for replacement in result.replacements:
                target = replacement.target
                self.disk.rename(target.path, swap_path(self.directory, target.base_offset, target.next_offset))
            self.disk.sync_dir(self.directory)
            self._note(result.cleaned_to_offset, result.tombstones_due_ms, touched)
        except OSError:
            discard(self.disk, self.directory, result.replacements)
            raise
        self.result = result

    def _note(self, cleaned_to: int, due_ms: int | None, touched_to: int) -> None:
        _save_clean_note(self.disk, self.directory, CleanNote(cleaned_to, due_ms, touched_to))

    def _index(self, target: SegmentFile) -> None:
        """Index a cleaned file here, off the event loop."""
        files = FilePool(self.disk, 1)
        segment = Segment(
            self.disk, files, self.directory, target.base_offset, size=target.size_bytes, next_offset=target.next_offset
        )
        segment.log_path = target.path
        offset_path, time_path = segment.stem + INDEX + CLEANED, segment.stem + TIME_INDEX + CLEANED
        for path in (offset_path, time_path):
            self.disk.remove(path)
        segment.set_indexes(OffsetIndex(self.disk, offset_path, 0), TimeIndex(self.disk, time_path, 0))
        builder = IndexBuilder(segment.base_offset, segment.offsets, segment.times, self.index_interval_bytes)
        for position, header in segment.walk(0, target.base_offset):
            builder.add(position, header)
        if target.size_bytes:
            segment.max_timestamp = builder.finish()
            segment.end_times()
        segment.flush_indexes()
        segment.release()


def segment_file(segment: Segment) -> SegmentFile:
    """A closed segment as compaction sees it."""
    return SegmentFile(
        path=segment.log_path,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size,
        max_timestamp=segment.max_timestamp if segment.size else -1,
    )


class CleanNote(NamedTuple):
    """What compaction remembers between runs."""

    cleaned_to: int
    due_ms: int | None
    """When the next tombstones may be removed."""
    touched_to: int
    """Below this offset, missing records were removed by compaction, not lost."""


def load_clean_note(disk: Disk, directory: str) -> CleanNote:
    """The note of the last run."""
    note = read_note(disk, f"{directory}/{CLEAN_OFFSET}", CLEAN_OFFSET_TITLE, 3)
    if note is None:
        return CleanNote(0, None, 0)
    return CleanNote(note[0], None if note[1] == NO_TOMBSTONES else note[1], note[2])


def _save_clean_note(disk: Disk, directory: str, note: CleanNote) -> None:
    due_ms = NO_TOMBSTONES if note.due_ms is None else note.due_ms
    write_note(disk, f"{directory}/{CLEAN_OFFSET}", CLEAN_OFFSET_TITLE, note.cleaned_to, due_ms, note.touched_to)


def call_dirty(disk: Disk, directory: str, offset: int) -> None:
    """Nothing from ``offset`` on counts as cleaned any more; the next run begins there, and is due at once.

    Otherwise a tombstone might be removed while an older record of its key is still there.
    """
    note = load_clean_note(disk, directory)
    if note.cleaned_to > offset:
        _save_clean_note(disk, directory, CleanNote(offset, 0, note.touched_to))


def end_clean_note(disk: Disk, directory: str, next_offset: int) -> None:
    """The log was cut to end at ``next_offset``: what is appended there is not compacted yet, and has no gaps."""
    note = load_clean_note(disk, directory)
    if max(note.cleaned_to, note.touched_to) > next_offset:
        ended = CleanNote(min(note.cleaned_to, next_offset), 0, min(note.touched_to, next_offset))
        _save_clean_note(disk, directory, ended)


def remove_sources(disk: Disk, old: list[Segment]) -> None:
    """Close and remove the ``old`` segments that one replacement was made from, except for the file whose name it takes.

    The caller syncs the directory before :func:`put_in_place`. A file system may keep a rename and lose an earlier removal, and
    the replaced segments would then overlap with their replacement. After a crash in between, recovery completes the exchange.
    """
    for segment in old:
        segment.close()
        for path in segment.paths():
            if path != old[0].log_path:
                disk.remove(path)


def put_in_place(disk: Disk, files: FilePool, directory: str, replacement: Replacement) -> Segment:
    """Put a cleaned segment in the place of its sources, which are durably removed."""
    target = replacement.target
    new = Segment(disk, files, directory, target.base_offset, size=target.size_bytes, next_offset=target.next_offset)
    disk.rename(swap_path(directory, target.base_offset, target.next_offset), new.log_path)
    for suffix in (INDEX, TIME_INDEX):
        if disk.exists(new.stem + suffix + CLEANED):
            disk.rename(new.stem + suffix + CLEANED, new.stem + suffix)
    return new


def discard(disk: Disk, directory: str, replacements: tuple[Replacement, ...]) -> None:
    """Remove the files of a run, because the log has changed in the meantime."""
    for replacement in replacements:
        target = replacement.target
        stem = segment_stem(directory, target.base_offset)
        for suffix in SEGMENT_SUFFIXES:
            disk.remove(stem + suffix + CLEANED)
        disk.remove(swap_path(directory, target.base_offset, target.next_offset))


def compaction_task(log: "Log", now_ms: int, upto_offset: int | None) -> CompactionTask | None:
    """See :meth:`penstock.log.log.Log.compaction_task`."""
    if not log.config.compacts or not log.is_usable or len(log.segment_list.items) == 1:
        return None
    limit = log.synced_offset if upto_offset is None else min(upto_offset, log.synced_offset)
    note = load_clean_note(log.disk, log.directory)
    found = plan(
        [segment_file(segment) for segment in log.segment_list.items[:-1] if segment.next_offset <= limit],
        log.config,
        note.cleaned_to,
        now_ms,
        producer_offsets=log.producers.last_offsets(),
        tombstones_due_ms=note.due_ms,
    )
    if found is None:
        return None
    return CompactionTask(
        disk=log.disk,
        directory=log.directory,
        plan=found,
        generation=log.generation,
        index_interval_bytes=log.config.index_interval_bytes,
    )


def install(log: "Log", task: CompactionTask) -> None:
    """See :meth:`penstock.log.log.Log.install`."""
    if task.result is None:
        return
    replacements = task.result.replacements
    closed = {segment.base_offset: segment for segment in log.segment_list.items[:-1]}
    try:
        if task.generation != log.generation or any(
            source.base_offset not in closed for replacement in replacements for source in replacement.sources
        ):
            call_dirty(log.disk, log.directory, task.plan.first_dirty_offset)
            discard(log.disk, log.directory, replacements)
            # If a power failure brought them back, they would replace what was appended since.
            log.disk.sync_dir(log.directory)
            return
        exchanges = [(each, [closed[source.base_offset] for source in each.sources]) for each in replacements]
        for _, old in exchanges:
            remove_sources(log.disk, old)
        if exchanges:
            log.disk.sync_dir(log.directory)
        for replacement, old in exchanges:
            new = put_in_place(log.disk, log.files, log.directory, replacement)
            items = log.segment_list.items
            at = items.index(old[0])
            log.segment_list.replace([*items[:at], new, *items[at + len(old) :]])
    except OSError as error:
        # Memory and files may differ now; the next start completes the exchange.
        raise log.fail(error) from error
    finally:
        log.reader.forget()
        log.mark_end()
