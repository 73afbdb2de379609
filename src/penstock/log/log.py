"""One partition on disk: an append-only log of batches, cut into segments.

:mod:`penstock.log.writer` is its growing end. Here is the rest of its life: reading, looking up by time, dropping what is old,
compaction, cutting it back, and closing it.

Invariant: ``start_offset <= synced_offset <= written_offset <= next_offset``; only offsets from ``start_offset`` up to
``written_offset`` can be read. Offsets that were dropped or cut away are never readable again at what they held.

On disk: a folder of segments (:mod:`penstock.log.segment`), ``leader-epochs`` (:mod:`penstock.log.epochs`), snapshots of the
producers (:mod:`penstock.log.snapshots`), ``start-offset`` (below it records are deleted though their segment is there),
``clean-offset`` (:mod:`penstock.log.cleaning`) and sometimes ``cut``. A log that was never written to has no folder.
"""

from contextlib import suppress

from penstock.errors import PenstockError, Reason
from penstock.log.checkpoint import NO_PRODUCERS, SNAPSHOT_UNKNOWN, RecoveryPoint
from penstock.log.cleaning import (
    CompactionTask,
    call_dirty,
    discard,
    end_clean_note,
    load_clean_note,
    put_in_place,
    remove_sources,
    segment_file,
)
from penstock.log.compaction import Replacement, plan
from penstock.log.config import LogConfig
from penstock.log.lookup import TimestampAndOffset, find_by_time, find_latest
from penstock.log.names import CUT, CUT_TITLE, DELETED, START_OFFSET, START_OFFSET_TITLE
from penstock.log.notes import read_note, write_note
from penstock.log.producer_state import ProducerStates
from penstock.log.reader import Slice
from penstock.log.retention import RemovalTask, expired_count
from penstock.log.segment import Segment, Segments
from penstock.log.snapshots import (
    drop_snapshots_above,
    drop_snapshots_below,
    load_producers,
    snapshot_path,
    sync_snapshot,
    write_snapshot,
)
from penstock.log.tail import index_tail
from penstock.log.writer import LogWriter

__all__ = ["Log", "Slice"]


class Log(LogWriter):
    """One partition's log. All calls are made on the event loop, except ``run`` of the tasks it hands out."""

    __slots__ = ()

    # Reading.

    def read(self, offset: int, max_bytes: int, upto_offset: int, *, at_least_one: bool = True) -> Slice:
        """Batches from the one that holds ``offset``, of one segment, at most ``max_bytes``, all below ``upto_offset``.

        The first batch comes whole even above ``max_bytes`` when ``at_least_one``. OFFSET_OUT_OF_RANGE outside
        ``start_offset`` to ``upto_offset``; CORRUPT_RECORDS when the batch asked for is damaged on disk, STORAGE_ERROR when
        the disk does not give it.
        """
        upto_offset = min(upto_offset, self.written_offset)
        if not self.start_offset <= offset < upto_offset:
            if offset == upto_offset >= self.start_offset:
                return Slice(b"", offset)
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start_offset} to {upto_offset}; start from the earliest or the latest offset",
            )
        try:
            return self._reader.read(offset, max_bytes, upto_offset, at_least_one)
        except OSError as error:
            raise PenstockError(
                Reason.STORAGE_ERROR, f"cannot read {self.directory}: {error}; check the disk, and read again"
            ) from error

    def bytes_between(self, offset: int, upto_offset: int) -> int:
        """How many bytes lie between two offsets, without reading them; 0 when there is nothing for a reader there."""
        upto_offset = min(upto_offset, self.written_offset)
        if not self.start_offset <= offset < upto_offset:
            return 0
        return self._reader.bytes_between(offset, upto_offset)

    def time_at(self, offset: int, upto_offset: int) -> int | None:
        """The timestamp of the first record of the batch that holds ``offset``, from its header alone; None when nothing is there."""
        upto_offset = min(upto_offset, self.written_offset)
        if not self.start_offset <= offset < upto_offset:
            return None
        return self._reader.time_at(offset)

    def offset_for_time(self, timestamp_ms: int, upto_offset: int) -> TimestampAndOffset | None:
        """The first record below ``upto_offset`` that is not older than ``timestamp_ms``."""
        return find_by_time(self._segments, timestamp_ms, self.start_offset, min(upto_offset, self.written_offset))

    def latest_by_time(self, upto_offset: int) -> TimestampAndOffset | None:
        """The record below ``upto_offset`` with the greatest timestamp."""
        return find_latest(self._segments, self.start_offset, min(upto_offset, self.written_offset))

    # Dropping what is old.

    def retire(
        self, now_ms: int, upto_offset: int | None = None, *, archived_offset: int | None = None
    ) -> list[RemovalTask]:
        """Roll by age, forget idle producers, and drop old segments below ``upto_offset`` (default: all that is written).

        ``archived_offset`` is up to where a tier has the records; None: there is no tier, and age and size decide alone.

        The files are renamed before this returns; the tasks remove them, off the loop.
        """
        if self._closed or self.failed is not None:
            return []
        if self.cut_noted:
            # Until a checkpoint knows of the cut, recovery trusts no snapshot made since, and needs the batches instead.
            return []
        if self.producers.expire(now_ms):
            self._producers_changed = True
        # First of all: a segment must not be judged while records for it are on their way.
        self._write()
        # A full disk may have no room for a new segment: then what is closed goes all the same, and makes some.
        with suppress(PenstockError):
            self._roll_by_age(now_ms)
        upto_offset = self.written_offset if upto_offset is None else min(upto_offset, self.written_offset)
        count = expired_count(
            self._segments.items,
            self._config,
            now_ms,
            start_offset=self.start_offset,
            upto_offset=upto_offset,
            archived_offset=archived_offset,
        )
        if count == 0:
            return []
        if count == len(self._segments.items):
            with suppress(PenstockError):
                self.roll()
            count = min(count, len(self._segments.items) - 1)
            if count == 0:
                return []
        try:
            count = self._keep_producers_of(count)
            expired, kept = self._segments.items[:count], self._segments.items[count:]
            paths = self._put_aside(expired)
        except OSError as error:
            raise self._storage_error(error) from error
        self._segments.replace(kept)
        self._reader.forget()
        drop_snapshots_below(self._disk, self.directory, kept[0].base_offset)
        self.start_offset = max(self.start_offset, kept[0].base_offset)
        # On a full disk this may be refused; older epochs do no harm, and the room must be made.
        with suppress(OSError):
            self.epochs.truncate_from_start(self.start_offset)
        return [RemovalTask(self._disk, tuple(paths))]

    def _keep_producers_of(self, count: int) -> int:
        """Before the first ``count`` segments go, their producers must stand in a snapshot that survives a loss of power.

        Returns how many may go: fewer, when there is no room for a new snapshot and an older one will do.
        """
        items = self._segments.items
        offset = items[count].base_offset
        if not len(self.producers) or sync_snapshot(self._disk, self.directory, offset):
            return count
        # A loss of power has taken the one that was made when the segment was closed, or the disk was full then.
        states, _ = load_producers(
            self._disk, self.directory, Segments(items[:count]), None, offset, self._clock.now_ms()
        )
        try:
            self._disk.write_atomic(snapshot_path(self.directory, offset), states.encode())
        except OSError:
            for fewer in range(count - 1, 0, -1):
                if sync_snapshot(self._disk, self.directory, items[fewer].base_offset):
                    return fewer
            raise
        return count

    def _roll_by_age(self, now_ms: int) -> None:
        active = self._active
        if active.size == 0 or self._config.segment_ms < 0:
            return
        if active.created_ms is None:
            # From before the start of the node: its first batch knows best when it began.
            header = next(active.headers_at(0), None)
            active.created_ms = now_ms if header is None or header.max_timestamp < 0 else header.max_timestamp
        if now_ms - active.created_ms >= self._config.segment_ms:
            self.roll()

    def _put_aside(self, segments: list[Segment]) -> list[str]:
        """Rename their files, oldest first: they are no longer part of the log, and a start after a crash removes them."""
        paths: list[str] = []
        for segment in segments:
            for path in segment.paths():
                if self._disk.exists(path):
                    self._disk.rename(path, path + DELETED)
                    paths.append(path + DELETED)
            if segment in self._unsynced_closed:
                self._unsynced_closed.remove(segment)
            segment.close()
        return paths

    def _remove_put_aside(self) -> None:
        """Remove what retention has dropped: the log begins again below it, and recovery must not drop the new segment too."""
        for name in self._disk.listdir(self.directory):
            if name.endswith(DELETED):
                self._disk.remove(f"{self.directory}/{name}")

    def delete_before(self, offset: int, *, sync: bool = True) -> None:
        """Delete all records below ``offset``. Their segments go with the next :meth:`retire`.

        It is durable when this returns, unless ``sync`` is false: then a loss of power may bring some of them back.
        """
        if not self.start_offset <= offset <= self.written_offset:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start_offset} to {self.written_offset}; nothing was deleted",
            )
        if offset == self.start_offset:
            return
        self._refuse_when_failed()
        try:
            write_note(self._disk, f"{self.directory}/{START_OFFSET}", START_OFFSET_TITLE, offset, sync=sync)
        except OSError as error:
            raise self._storage_error(error) from error
        self.start_offset = offset

    # Compaction.

    def compaction_task(self, now_ms: int, upto_offset: int | None = None) -> CompactionTask | None:
        """What compaction should do now, of what is synced and below ``upto_offset``; None when it would not pay."""
        if not self._config.compacts or self._closed or self.failed is not None or len(self._segments.items) == 1:
            return None
        limit = self.synced_offset if upto_offset is None else min(upto_offset, self.synced_offset)
        closed = [segment for segment in self._segments.items[:-1] if segment.next_offset <= limit]
        note = load_clean_note(self._disk, self.directory)
        found = plan(
            [segment_file(segment) for segment in closed],
            self._config,
            note.cleaned_to,
            now_ms,
            producer_offsets=self.producers.last_offsets(),
            tombstones_due_ms=note.due_ms,
        )
        if found is None:
            return None
        return CompactionTask(
            disk=self._disk,
            directory=self.directory,
            plan=found,
            generation=self._generation,
            index_interval_bytes=self._config.index_interval_bytes,
        )

    def install(self, task: CompactionTask) -> None:
        """Take over what a task has cleaned: all of it, or nothing if the log was cut or dropped segments of it meanwhile."""
        if task.result is None:
            return
        replacements = task.result.replacements
        closed = {segment.base_offset for segment in self._segments.items[:-1]}
        try:
            if task.generation != self._generation or any(
                source.base_offset not in closed for replacement in replacements for source in replacement.sources
            ):
                call_dirty(self._disk, self.directory, task.plan.first_dirty_offset)
                discard(self._disk, self.directory, replacements)
                # Should they come back with the power, they would replace what was appended since.
                self._disk.sync_dir(self.directory)
                return
            exchanges = [(replacement, self._sources_of(replacement)) for replacement in replacements]
            for _, old in exchanges:
                remove_sources(self._disk, old)
            if exchanges:
                self._disk.sync_dir(self.directory)
            for replacement, old in exchanges:
                new = put_in_place(self._disk, self._files, self.directory, replacement)
                at = self._segments.items.index(old[0])
                self._segments.replace([*self._segments.items[:at], new, *self._segments.items[at + len(old) :]])
        except OSError as error:
            # Memory and names may differ now; the next start finishes the exchange.
            self._fail(error)
            raise self._storage_error(error) from error
        finally:
            self._reader.forget()
            self._reader.mark(self.written_offset, self._active, self._written_position)

    def _sources_of(self, replacement: Replacement) -> list[Segment]:
        bases = {source.base_offset for source in replacement.sources}
        return [segment for segment in self._segments.items[:-1] if segment.base_offset in bases]

    # Cutting back.

    def truncate_to(self, offset: int) -> None:
        """Make ``offset`` the next one: all from there on goes, with the whole batch that holds it. Synced when this returns.

        For a follower whose history parts from its leader's. Epochs that began there are forgotten, also one of which no record is left:
        a loss of power can take an epoch's only records and leave its name. Nothing happens when the log ends before ``offset``.
        """
        if offset > self.next_offset or (offset == self.next_offset and not self.epochs.begins_at_or_above(offset)):
            return
        self._refuse_when_failed()
        if offset < self.next_offset:
            # What was not written was promised to nobody.
            self._forget_unwritten()
        try:
            if offset < self.written_offset:
                self._generation += 1
                self._cut_files(offset)
            else:
                self.epochs.truncate_from_end(offset)
                self._epoch = self.epochs.latest
        except OSError as error:
            self._fail(error)
            raise self._storage_error(error) from error

    def _cut_files(self, offset: int) -> None:
        items = self._segments.items
        number = max((n for n, segment in enumerate(items) if segment.base_offset <= offset), default=None)
        self._active.next_offset = self.written_offset
        kept = items[: 0 if number is None else number + 1]
        if kept:
            segment = kept[-1]
            position = segment.locate(offset, segment.size) if offset > segment.base_offset else 0
            if position < segment.size:
                header = next(segment.headers_at(position), None)
                offset = offset if header is None else min(offset, header.base_offset)
        else:
            segment = Segment(self._disk, self._files, self.directory, offset, size=0, next_offset=offset)
            kept = [segment]
            position = 0
        self._note_cut(segment.base_offset, offset, position)
        gone = [item for item in items if item not in kept]
        for item in reversed(gone):
            item.remove()
        if segment not in items:
            self._remove_put_aside()
            self._create_file(segment)
        file = segment.opened()
        file.truncate(position)
        file.sync()
        segment.size = segment.synced_size = position
        drop_snapshots_above(self._disk, self.directory, offset)
        self._lower_start(offset)
        end_clean_note(self._disk, self.directory, offset)
        for directory in sorted({*self._names_dirs, self.directory}, key=len):
            self._disk.sync_dir(directory)
        self._names_dirs.clear()
        self._names_synced = self._names_changed
        index_tail(segment, self._config.index_interval_bytes, position, offset, {})
        segment.next_offset = offset
        segment.verified_to = 2**63
        self._cut_due = False
        self._unsynced_closed = [item for item in self._unsynced_closed if item in kept[:-1]]
        for item in self._unsynced_closed:
            item.opened().sync()
            item.synced_size = item.size
        self._unsynced_closed.clear()
        self._segments.replace(kept)
        self.epochs.truncate_from_end(offset)
        self._epoch = self.epochs.latest
        self.producers, self.snapshot_offset = load_producers(
            self._disk, self.directory, self._segments, None, offset, self._clock.now_ms()
        )
        self._producers_changed = True
        self._settle_at_end()

    def start_at(self, offset: int) -> None:
        """Forget all records and go on at ``offset``: for a copy whose leader has nothing before that any more. Synced when this returns.

        A crash in the middle leaves the log as it was, or empty: the copy asks its leader again.
        """
        self._refuse_when_failed()
        self.truncate_to(self.start_offset)
        if self.next_offset == self.start_offset == offset:
            return
        self._generation += 1
        old = list(self._segments.items)
        on_disk = self._segments_on_disk()
        new = Segment(self._disk, self._files, self.directory, offset, size=0, next_offset=offset)
        try:
            if on_disk:
                self._create_file(new)
                self._disk.remove(f"{self.directory}/{START_OFFSET}")
                drop_snapshots_above(self._disk, self.directory, -1)
                end_clean_note(self._disk, self.directory, 0)
                self._remove_put_aside()
                for segment in old:
                    if segment.base_offset != offset:
                        segment.remove()
                for directory in sorted({*self._names_dirs, self.directory}, key=len):
                    self._disk.sync_dir(directory)
                self._names_dirs.clear()
                self._names_synced = self._names_changed
            self.epochs.truncate_from_end(0)
        except OSError as error:
            self._fail(error)
            raise self._storage_error(error) from error
        self._epoch = self.epochs.latest
        self.producers = ProducerStates()
        self.snapshot_offset = NO_PRODUCERS
        self._producers_changed = True
        self.start_offset = offset
        self._unsynced_closed.clear()
        self._segments.replace([new])
        self._settle_at_end()

    def _lower_start(self, offset: int) -> None:
        if offset < self.start_offset:
            note = read_note(self._disk, f"{self.directory}/{START_OFFSET}", START_OFFSET_TITLE, 1)
            if note is not None and note[0] > offset:
                write_note(self._disk, f"{self.directory}/{START_OFFSET}", START_OFFSET_TITLE, offset)
            self.start_offset = offset

    # Its life.

    def reconfigure(self, config: LogConfig) -> None:
        """Keep it differently from now on."""
        if config != self._config:
            self._config = config
            self._set_limits()

    def recovery_point(self) -> RecoveryPoint:
        """Up to where it is synced, and which snapshot has its producers."""
        return RecoveryPoint(*self._synced_point, SNAPSHOT_UNKNOWN if self._producers_changed else self.snapshot_offset)

    def take_snapshot(self) -> tuple[str, bytes] | None:
        """Path and content of a new snapshot of the producers, for a checkpoint to write; None when the last one still holds."""
        if not self._producers_changed or self._gathered:
            return None
        self._producers_changed = False
        if not len(self.producers):
            self.snapshot_offset = NO_PRODUCERS
            return None
        self.snapshot_offset = self.written_offset
        return snapshot_path(self.directory, self.written_offset), self.producers.encode()

    def snapshots_needed(self) -> frozenset[int]:
        """The offsets whose snapshots must stay."""
        return frozenset(segment.base_offset for segment in self._segments.items)

    def _note_cut(self, segment_base: int, offset: int, position: int) -> None:
        """Warn recovery of a checkpoint that was made before the cut: from here on the file holds other batches than it knew.

        The lowest cut since that checkpoint counts. A later one further up does not restore what an earlier one replaced.
        """
        path = f"{self.directory}/{CUT}"
        if self.cut_noted:
            noted = read_note(self._disk, path, CUT_TITLE, 3)
            # With a note that cannot be read, recovery trusts no checkpoint at all.
            if noted is None or noted[1] <= offset:
                return
        self.cut_noted = True
        write_note(self._disk, path, CUT_TITLE, segment_base, offset, position)

    def forget_cut(self) -> None:
        """A checkpoint made after the cut is durable: recovery need not be warned any more."""
        if self.cut_noted:
            self._disk.remove(f"{self.directory}/{CUT}")
            self.cut_noted = False

    @property
    def generation(self) -> int:
        """Rises whenever it is cut back or closed."""
        return self._generation

    def close(self, *, clean: bool = True) -> None:
        """Write, sync and let go of everything; without ``clean`` only let go, as when its files are about to be removed.

        STORAGE_ERROR when the disk refuses; then the next start has to recover it.
        """
        if self._closed:
            return
        try:
            if clean and self.failed is None:
                self._write()
                self._bring_to_rest()
        except OSError as error:
            self._fail(error)
            raise self._storage_error(error) from error
        finally:
            self._closed = True
            self._generation += 1
            self._position_max = -1
            # Whoever waited for these has been told; there is no file to write them to.
            self._gathered = bytearray()
            self._undo.clear()
            for segment in self._segments.items:
                segment.close()

    def _bring_to_rest(self) -> None:
        task = self.begin_sync()
        if task is not None:
            try:
                task.run()
            except OSError as error:
                self.end_sync(task, error)
                raise
            self.end_sync(task, None)
        if self._active.size:
            self._active.offsets.flush()
            self._active.times.flush()
        snapshot = self.take_snapshot()
        if snapshot is not None:
            write_snapshot(self._disk, *snapshot)
