"""One partition on disk: an append-only log of batches, split into segments.

``append`` adds a batch and collects small ones in memory; ``write_pending`` passes them to the OS in one write at the end of
the event loop's turn; ``begin_sync`` and ``end_sync`` make them durable in a thread, many appends with one sync. The other
tasks of a log have separate modules: :mod:`penstock.log.reader`, :mod:`penstock.log.sync`, :mod:`penstock.log.retention`,
:mod:`penstock.log.cleaning` and :mod:`penstock.log.cutting`.

Invariant: ``start_offset <= synced_offset <= written_offset <= next_offset``; only offsets from ``start_offset`` up to
``written_offset`` can be read. Records that were deleted or truncated can never be read again. A failed write is undone
completely: offsets, producers, indexes and the file itself return to ``written_offset``. A failed sync is final: the kernel
may have dropped the bytes, so the log accepts no more appends until the node restarts and recovers what is really on disk.

On disk: a directory of segments (:mod:`penstock.log.segment`), ``leader-epochs`` (:mod:`penstock.log.epochs`), snapshots of the
producers (:mod:`penstock.log.snapshots`), ``start-offset``, ``clean-offset`` and sometimes ``cut``. A log that was never written to
has no directory.
"""

from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import APPEND_GATHER_BYTES_MAX, MIB
from penstock.log.checkpoint import RecoveryPoint
from penstock.log.cleaning import CompactionTask, compaction_task, install
from penstock.log.config import LogConfig
from penstock.log.cutting import CutNote, start_at, truncate_to
from penstock.log.environment import LogEnvironment
from penstock.log.epochs import EpochHistory
from penstock.log.index import RELATIVE_OFFSET_MAX
from penstock.log.lookup import TimestampAndOffset, find_by_time, find_latest
from penstock.log.producer_state import ProducerEntry, ProducerStates
from penstock.log.reader import LogReader, Slice
from penstock.log.retention import RemovalTask, delete_before, retire
from penstock.log.segment import Segment, Segments
from penstock.log.snapshots import snapshot_path, write_snapshot
from penstock.log.sync import LogSyncTask, Unsynced
from penstock.ports import SyncTask
from penstock.records.batch import LENGTH_END, BatchHeader
from penstock.types import Buffer

__all__ = ["Log", "Slice"]

GATHERED_BYTES_MAX: Final = 4 * MIB
"""More is written immediately: a turn of the loop must not use unbounded memory."""
INDEX_ROWS_UNFLUSHED_MAX: Final = 128
"""Index rows that are only in memory: a start after a kill scans their batches again."""

_pack_place = Struct(">qii").pack_into


class Log:
    """One partition's log. All calls are made on the event loop, except ``run`` of the tasks that it returns."""

    __slots__ = (
        "_cut_due",
        "_epoch",
        "_gathered",
        "_index_due",
        "_max_timestamp",
        "_notified_offset",
        "_offset_max",
        "_position",
        "_position_max",
        "_report",
        "_undo",
        "_written_position",
        "active",
        "clock",
        "config",
        "cut_note",
        "directory",
        "disk",
        "epochs",
        "failed",
        "files",
        "generation",
        "is_closed",
        "next_offset",
        "on_failed",
        "on_synced",
        "on_written",
        "producers",
        "reader",
        "segment_list",
        "start_offset",
        "synced_offset",
        "synced_point",
        "unsynced",
        "written_offset",
    )

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        config: LogConfig,
        segments: Segments,
        start_offset: int,
        epochs: EpochHistory,
        producers: ProducerStates,
    ) -> None:
        """Use :func:`penstock.log.recovery.open_log`, which determines the arguments. Everything on disk must be synced."""
        self.disk: Final = environment.disk
        self.directory: Final = directory
        self.config = config
        self.files: Final = environment.files
        self.clock: Final = environment.clock
        self._report = environment.report
        self.segment_list: Final = segments
        self.reader: Final = LogReader(self)
        self.epochs: Final = epochs
        self.producers = producers
        self.on_written: Callable[[], None] | None = None
        self.on_synced: Callable[[], None] | None = None
        self.on_failed: Callable[[PenstockError, int], None] | None = None
        self.failed: OSError | None = None
        """Why it accepts no more appends."""
        self.start_offset = start_offset
        self.generation = 0
        """Increases whenever the log is truncated or closed."""
        self.unsynced: Final = Unsynced(self.disk, directory)
        self.cut_note: Final = CutNote(self.disk, directory)
        self.is_closed = False
        self._epoch = epochs.latest
        self._gathered = bytearray()
        self._undo: list[tuple[int, ProducerEntry | None]] = []
        self.settle_at_end()

    def settle_at_end(self) -> None:
        """Take all offsets and positions from the last segment, which is completely synced."""
        segment = self.active = self.segment_list.items[-1]
        self.next_offset = self.written_offset = self.synced_offset = self._notified_offset = segment.next_offset
        self._position = self._written_position = segment.size
        self.synced_point = (segment.base_offset, segment.next_offset, segment.size)
        """Base of the active segment, next offset and size of the segment, as of the last sync."""
        self._max_timestamp = segment.max_timestamp if segment.size else -1
        self._cut_due = False
        # Loaded now, so that an append does not read them from disk.
        if segment.size:
            segment.offsets.last()
            segment.times.last()
        self.reader.forget()
        self.mark_end()
        self._set_limits()

    def mark_end(self) -> None:
        """Let readers find the written end without the index."""
        self.reader.mark(self.written_offset, self.active, self._written_position)

    def _set_limits(self) -> None:
        """The limits that the next append may not exceed without :meth:`_prepare`."""
        segment = self.active
        config = self.config
        last = segment.offsets.last() if segment.size else None
        self._index_due = config.index_interval_bytes + (0 if last is None else last[1])
        self._offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
        self._position_max = min(config.segment_bytes, self._written_position + GATHERED_BYTES_MAX)
        if self.failed is not None or self.is_closed or not self.is_on_disk:
            self._position_max = -1

    @property
    def is_on_disk(self) -> bool:
        """Whether the active segment has a file."""
        return self.active.size > 0 or self.active.file is not None

    @property
    def gathered_bytes(self) -> int:
        """Bytes that are not written yet."""
        return self._position - self._written_position

    @property
    def is_usable(self) -> bool:
        """Whether it accepts appends: it is open, and its disk has not failed."""
        return not self.is_closed and self.failed is None

    def reconfigure(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        if config != self.config:
            self.config = config
            self._set_limits()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Its segments, oldest first; the last is the active one."""
        return tuple(self.segment_list.items)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, including those not written yet."""
        return sum(segment.size for segment in self.segment_list.items) + self.gathered_bytes

    # Reading: see :class:`penstock.log.reader.Reader`.

    def read(self, offset: int, max_bytes: int, upto_offset: int, *, at_least_one: bool = True) -> Slice:
        """Batches from the one that contains ``offset``, of one segment, at most ``max_bytes``, all below ``upto_offset``."""
        return self.reader.read(offset, max_bytes, upto_offset, at_least_one)

    def bytes_between(self, offset: int, upto_offset: int) -> int:
        """The number of bytes between two offsets, without reading them; 0 if a reader can read nothing there."""
        return self.reader.bytes_between(offset, upto_offset)

    def time_at(self, offset: int, upto_offset: int) -> int | None:
        """The timestamp of the first record of the batch that contains ``offset``, from its header alone; None if there is none."""
        return self.reader.time_at(offset, upto_offset)

    def offset_for_time(self, timestamp_ms: int, upto_offset: int) -> TimestampAndOffset | None:
        """The first record below ``upto_offset`` that is not older than ``timestamp_ms``."""
        return find_by_time(self.segment_list, timestamp_ms, self.start_offset, min(upto_offset, self.written_offset))

    def latest_by_time(self, upto_offset: int) -> TimestampAndOffset | None:
        """The record below ``upto_offset`` with the greatest timestamp."""
        return find_latest(self.segment_list, self.start_offset, min(upto_offset, self.written_offset))

    # Appending.

    def append(self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int) -> int:
        """Add a checked batch at the end and return its base offset; a known duplicate returns the offset of the first copy.

        A duplicate's offset is below ``next_offset`` before the call. The offset and epoch are set in ``batch`` itself; small
        batches are copied, large ones are written before this returns. Raises OUT_OF_ORDER_SEQUENCE or
        INVALID_PRODUCER_EPOCH (producers), RECORD_LIST_TOO_LARGE, STORAGE_ERROR; then nothing has changed.
        """
        producer_id = header[9]
        if producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return duplicate
        length = header[1]
        position = self._position
        end = position + length + LENGTH_END
        next_offset = self.next_offset + header[6] + 1
        if end > self._position_max or next_offset > self._offset_max or leader_epoch != self._epoch:
            try:
                self._prepare(length + LENGTH_END, header[6], leader_epoch)
            except PenstockError as error:
                if producer_id >= 0 and error.reason is Reason.STORAGE_ERROR:
                    self.expect(header)
                raise
            position = self._position
            end = position + length + LENGTH_END
        base_offset = self.next_offset
        _pack_place(batch, 0, base_offset, length, leader_epoch)
        if producer_id >= 0:
            self._undo.append((producer_id, self.producers.update(header, base_offset, self.clock.now_ms())))
        self._max_timestamp = max(self._max_timestamp, header[8])
        self.next_offset = next_offset
        self._position = end
        if position >= self._index_due:
            self.active.add_rows(base_offset, position, self._max_timestamp)
            self._index_due = position + self.config.index_interval_bytes
        if length <= APPEND_GATHER_BYTES_MAX:
            self._gathered += batch
        else:
            self.flush(batch)
        return base_offset

    def expect(self, header: BatchHeader) -> None:
        """A batch of an idempotent producer is refused for now, and must be sent again before later ones."""
        self.producers.expect(header, self.clock.now_ms())

    def append_copied(self, batch: Buffer, header: BatchHeader) -> None:
        """Add a batch as its leader did: with its own offset, epoch and producer, and without changing it.

        Compaction may have left a gap before it. The caller has checked the batch. Raises CORRUPT_RECORDS if its offset or
        epoch is too low, which only a replica that is no longer the leader can send.
        """
        base_offset, length, leader_epoch = header[0], header[1], header[2]
        next_offset = base_offset + header[6] + 1
        if base_offset < self.next_offset or leader_epoch < self._epoch:
            raise PenstockError(
                Reason.CORRUPT_RECORDS,
                f"A batch at offset {base_offset} of epoch {leader_epoch} cannot follow offset {self.next_offset - 1} of epoch "
                f"{self._epoch} in {self.directory}",
            )
        position = self._position
        end = position + length + LENGTH_END
        if end > self._position_max or next_offset > self._offset_max or leader_epoch != self._epoch:
            self._prepare(length + LENGTH_END, next_offset - 1 - self.next_offset, leader_epoch)
            position = self._position
            end = position + length + LENGTH_END
        if header[9] >= 0:
            self._undo.append((header[9], self.producers.update(header, base_offset, self.clock.now_ms())))
        self._max_timestamp = max(self._max_timestamp, header[8])
        self.next_offset = next_offset
        self._position = end
        if position >= self._index_due:
            self.active.add_rows(base_offset, position, self._max_timestamp)
            self._index_due = position + self.config.index_interval_bytes
        if length <= APPEND_GATHER_BYTES_MAX:
            self._gathered += batch
        else:
            self.flush(batch)

    def _prepare(self, size: int, last_offset_delta: int, leader_epoch: int) -> None:
        """What an append needs only sometimes: files, a new epoch, a new segment. Raises if the append is refused."""
        self.check_usable()
        if size > self.config.segment_bytes:
            raise PenstockError(
                Reason.RECORD_LIST_TOO_LARGE,
                f"A batch of {size} bytes is larger than a segment of {self.config.segment_bytes}; "
                "send smaller batches or raise segment.bytes",
            )
        try:
            if not self.is_on_disk:
                self.create_file(self.active)
            if leader_epoch != self._epoch:
                assert leader_epoch > self._epoch, "an older leader must not append"
                self.epochs.assign(leader_epoch, self.next_offset)
                self._epoch = leader_epoch
                self.unsynced.add_epoch()
        except OSError as error:
            raise self._refused(error) from error
        if self._position - self._written_position + size > GATHERED_BYTES_MAX:
            self.flush()
        if (
            self._position + size > self.config.segment_bytes
            or self.next_offset + last_offset_delta >= self.active.base_offset + RELATIVE_OFFSET_MAX
        ):
            self.roll()
        self._position_max = min(self.config.segment_bytes, self._written_position + GATHERED_BYTES_MAX)

    def check_usable(self) -> None:
        """STORAGE_ERROR once the disk has failed, SHUTTING_DOWN once the log is closed."""
        if self.failed is not None:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"Syncing {self.directory} to the disk failed ({self.failed}); check the disk, then restart the node",
            )
        if self.is_closed:
            raise PenstockError(Reason.SHUTTING_DOWN, "The log is closed; try again when the node is up")

    def storage_error(self, error: OSError) -> PenstockError:
        """The error of a failed change on disk."""
        return PenstockError(
            Reason.STORAGE_ERROR,
            f"Cannot write to {self.directory}: {error}; free some space or repair the disk, and send again",
        )

    def _refused(self, error: OSError) -> PenstockError:
        """A file could not be created or written: call ``on_failed``; returns what to raise."""
        refusal = self.storage_error(error)
        if self.on_failed is not None:
            self.on_failed(refusal, self.written_offset)
        return refusal

    def create_file(self, segment: Segment) -> None:
        """Create the file of a new active segment; its name is synced with the next sync."""
        is_first = segment.base_offset == self.start_offset
        if is_first:
            self.disk.make_dirs(self.directory, sync=False)
        segment.create(self.clock.now_ms())
        self.unsynced.add_name(with_folders=is_first)

    def roll(self) -> None:
        """Close the active segment and begin a new one at ``next_offset``. STORAGE_ERROR leaves everything as it was."""
        self.flush()
        old = self.active
        if old.size == 0:
            return
        new = Segment(self.disk, self.files, self.directory, self.next_offset, size=0, next_offset=self.next_offset)
        try:
            self.create_file(new)
        except OSError as error:
            raise self._refused(error) from error
        old.max_timestamp = self._max_timestamp
        try:
            old.finish()
        except OSError as error:
            self._report(f"{old.stem}: the index could not be written ({error}); it will be rebuilt")
        # Where a replay begins if the log is truncated, or the older segments are removed. Without space it begins earlier.
        with suppress(OSError):
            if len(self.producers):
                write_snapshot(self.disk, snapshot_path(self.directory, self.next_offset), self.producers.encode())
                self.producers.snapshot_offset = self.next_offset
        self.unsynced.add_segment(old)
        self.segment_list.push(new)
        self.active = new
        self._position = self._written_position = 0
        self._max_timestamp = -1
        self.reader.mark(self.next_offset, new, 0)
        self._set_limits()

    # Writing.

    def write_pending(self) -> None:
        """Write collected appends. STORAGE_ERROR if that fails; then they are undone and ``on_failed`` was called."""
        if self._gathered:
            self.flush()
        if self.written_offset != self._notified_offset:
            self._notified_offset = self.written_offset
            if self.on_written is not None:
                self.on_written()

    def flush(self, large: Buffer | None = None) -> None:
        """One write of the collected appends, followed by ``large``. :meth:`write_pending` then calls ``on_written``."""
        gathered = self._gathered
        if large is None:
            if not gathered:
                return
            buffers: tuple[Buffer, ...] = (gathered,)
        else:
            buffers = (gathered, large) if gathered else (large,)
        segment = self.active
        segment.used = True
        try:
            if self._cut_due:
                self._cut_back()
            (segment.file or self.files.open(segment)).pwritev(buffers, self._written_position)
        except OSError as error:
            self._cut_due = True
            self.forget_unwritten()
            raise self._refused(error) from error
        if gathered:
            self._gathered = bytearray()
        if self._undo:
            self._undo.clear()
        offset, position = self.next_offset, self._position
        self.written_offset = segment.next_offset = offset
        self._written_position = segment.size = position
        segment.max_timestamp = self._max_timestamp
        limit = position + GATHERED_BYTES_MAX
        segment_bytes = self.config.segment_bytes
        self._position_max = min(segment_bytes, limit)
        self.reader.mark(offset, segment, position)
        if segment.offsets.unflushed_rows > INDEX_ROWS_UNFLUSHED_MAX:
            # Without space the rows stay in memory. Writing the batches reports it if there is no space for them either.
            with suppress(OSError):
                segment.flush_indexes()

    def forget_unwritten(self) -> None:
        """Undo every append that is not written."""
        segment = self.active
        self._gathered = bytearray()
        for producer_id, previous in reversed(self._undo):
            self.producers.undo(producer_id, previous)
        self._undo.clear()
        self.next_offset = self.written_offset
        self._position = self._written_position
        self._max_timestamp = segment.max_timestamp if segment.size else -1
        try:
            segment.offsets.cut_from_value(self._written_position)
            segment.times.cut_from_value(self.written_offset - segment.base_offset)
            if self._cut_due:
                self._cut_back()
            if self.epochs.entries and self.epochs.entries[-1][1] > self.written_offset:
                self.epochs.truncate_from_end(self.written_offset + 1)
        except OSError as further:
            self._report(
                f"{segment.log_path}: could not be truncated to {self._written_position} bytes yet ({further})"
            )
        self._epoch = self.epochs.latest
        self._set_limits()

    def forget_epochs(self, offset: int) -> None:
        """The log ends at ``offset``: no epoch began there or later."""
        self.epochs.truncate_from_end(offset)
        self._epoch = self.epochs.latest

    def _cut_back(self) -> None:
        """Remove from the file what a failed write left after ``written_offset``.

        Synced, although the event loop waits for it: refused records must not reappear after a power failure.
        """
        file = self.active.opened()
        if file.size() > self._written_position:
            file.truncate(self._written_position)
            try:
                file.sync()
            except OSError as error:
                # It would have synced other appends too, and the next sync would not report that they are lost.
                self.fail(error)
                raise
        self._cut_due = False

    # Syncing.

    def begin_sync(self) -> LogSyncTask | None:
        if not self.is_usable or (self.written_offset == self.synced_offset and not self.unsynced.has_names):
            return None
        try:
            return self.unsynced.task(self.active, self.written_offset, self.generation)
        except OSError as error:
            self.fail(error)
            return None

    def end_sync(self, task: SyncTask, error: OSError | None) -> None:
        assert isinstance(task, LogSyncTask)
        task.unpin()
        if task.generation != self.generation:
            # The log was truncated in the meantime, which synced it.
            return
        if error is not None:
            self.fail(error)
            return
        self.unsynced.synced(task)
        if task.point[1] > self.synced_offset:
            self.synced_offset = task.point[1]
            self.synced_point = task.point
            if self.on_synced is not None:
                self.on_synced()

    def fail(self, error: OSError) -> PenstockError:
        """A sync failed: written bytes may be lost, and no later sync would report it. Returns what to raise."""
        if self.failed is not None:
            return self.storage_error(error)
        self.failed = error
        self._position_max = -1
        self._report(f"{self.directory}: syncing to the disk failed ({error}); no more appends until the node restarts")
        if self.on_failed is not None:
            self.on_failed(
                PenstockError(Reason.STORAGE_ERROR, f"Syncing {self.directory} to the disk failed: {error}"),
                self.synced_offset,
            )
        return self.storage_error(error)

    # Removing and maintenance.

    def delete_before(self, offset: int, *, sync: bool = True) -> None:
        """Delete all records below ``offset``. Their segments are removed with the next :meth:`retire`.

        It is durable when this returns, unless ``sync`` is false: then a power failure may restore some of them.
        """
        delete_before(self, offset, sync=sync)

    def compaction_task(self, now_ms: int, upto_offset: int | None = None) -> CompactionTask | None:
        """What compaction should do now with what is synced and below ``upto_offset``; None if it is not worthwhile."""
        return compaction_task(self, now_ms, upto_offset)

    def install(self, task: CompactionTask) -> None:
        """Install the segments that a task has cleaned; none if the log was truncated or dropped one of them in the meantime."""
        install(self, task)

    def truncate_to(self, offset: int) -> None:
        """Remove all records from ``offset`` on, including the whole batch that contains it. Synced when this returns."""
        truncate_to(self, offset)

    def start_at(self, offset: int) -> None:
        """Forget all records and continue at ``offset``, the leader's start offset. Synced when this returns."""
        start_at(self, offset)

    def retire(
        self, now_ms: int, upto_offset: int | None = None, *, archived_offset: int | None = None
    ) -> list[RemovalTask]:
        """Roll by age, forget idle producers, and drop old segments below ``upto_offset`` (default: all that is written).

        With ``archived_offset``, age and size remove only records below it, which a tier has. The files are renamed before this
        returns; the tasks remove them, off the event loop.
        """
        return retire(self, now_ms, upto_offset, archived_offset)

    def recovery_point(self) -> RecoveryPoint:
        """Up to where the log is synced, and which snapshot has its producers."""
        return RecoveryPoint(*self.synced_point, self.producers.snapshot_offset)

    def take_snapshot(self) -> tuple[str, bytes] | None:
        """Path and content of a new snapshot of the producers, for a checkpoint; None if the last one is still correct."""
        data = None if self.gathered_bytes else self.producers.take_snapshot(self.written_offset)
        return None if data is None else (snapshot_path(self.directory, self.written_offset), data)

    def close(self, *, clean: bool = True) -> None:
        """Write, sync and close everything; without ``clean`` only close, because the files are about to be removed.

        STORAGE_ERROR if the disk fails; then the next start has to recover the log.
        """
        if self.is_closed:
            return
        try:
            if clean and self.failed is None:
                self.flush()
                task = self.begin_sync()
                if task is not None:
                    try:
                        task.run()
                    except OSError as error:
                        self.end_sync(task, error)
                        raise
                    self.end_sync(task, None)
                if self.active.size:
                    self.active.flush_indexes()
                snapshot = self.take_snapshot()
                if snapshot is not None:
                    write_snapshot(self.disk, *snapshot)
        except OSError as error:
            raise self.fail(error) from error
        finally:
            self.is_closed = True
            self.generation += 1
            self._position_max = -1
            self._gathered = bytearray()
            self._undo.clear()
            for segment in self.segment_list.items:
                segment.close()
