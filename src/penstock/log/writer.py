"""The growing end of a log: appends, writes and syncs.

``append`` places a batch and gathers small ones in memory; ``write_pending`` hands them to the OS in one write at the end of
the event loop's turn; ``begin_sync`` and ``end_sync`` make them durable off the loop, many appends with one sync.

Invariant: ``start_offset <= synced_offset <= written_offset <= next_offset``, and only offsets below ``written_offset`` are
ever read. A write that the disk refuses is undone as if it had never been asked for: offsets, producers, indexes and the
file itself go back to ``written_offset``. A sync that the disk refuses is final: the kernel may have dropped the bytes, so
the log takes no more appends until the node starts again and looks at what is really there.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import APPEND_GATHER_BYTES_MAX, MIB
from penstock.log.checkpoint import SNAPSHOT_UNKNOWN
from penstock.log.config import LogConfig
from penstock.log.epochs import EpochHistory
from penstock.log.files import FilePool
from penstock.log.index import RELATIVE_OFFSET_MAX
from penstock.log.names import LEADER_EPOCHS, folders_above
from penstock.log.producer_state import ProducerEntry, ProducerStates
from penstock.log.reader import Reader
from penstock.log.segment import Segment, Segments
from penstock.log.snapshots import snapshot_path, write_snapshot
from penstock.log.sync import LogSyncTask
from penstock.ports import Clock, Disk, File, Report, SyncTask
from penstock.records.batch import LENGTH_END, BatchHeader
from penstock.types import Buffer

GATHERED_BYTES_MAX: Final = 4 * MIB
"""More is written at once: a turn of the loop must not hold unbounded memory."""
INDEX_ROWS_UNFLUSHED_MAX: Final = 128
"""Rows kept in memory only: what a start after a kill has to walk over."""

_pack_place = Struct(">qii").pack_into


class LogWriter:
    """What appending needs of a log, and nothing else; :class:`penstock.log.log.Log` is the whole. Called on the event loop."""

    __slots__ = (
        "_active",
        "_clock",
        "_closed",
        "_config",
        "_cut_due",
        "_disk",
        "_epoch",
        "_epochs_changed",
        "_epochs_synced",
        "_files",
        "_gathered",
        "_generation",
        "_index_due",
        "_max_timestamp",
        "_names_changed",
        "_names_dirs",
        "_names_synced",
        "_notified_offset",
        "_offset_max",
        "_position",
        "_position_max",
        "_reader",
        "_report",
        "_segments",
        "_producers_changed",
        "_synced_point",
        "_undo",
        "_unsynced_closed",
        "_written_position",
        "cut_noted",
        "directory",
        "epochs",
        "failed",
        "next_offset",
        "on_failed",
        "on_synced",
        "on_written",
        "producers",
        "start_offset",
        "snapshot_offset",
        "synced_offset",
        "written_offset",
    )

    def __init__(
        self,
        *,
        disk: Disk,
        directory: str,
        config: LogConfig,
        files: FilePool,
        clock: Clock,
        report: Report,
        segments: Segments,
        start_offset: int,
        epochs: EpochHistory,
        producers: ProducerStates,
        snapshot_offset: int,
    ) -> None:
        """Use :func:`penstock.log.recovery.open_log`, which finds out what to put here. All there is must be synced."""
        self._disk = disk
        self.directory: Final = directory
        self._config = config
        self._files = files
        self._clock = clock
        self._report = report
        self._segments = segments
        self._reader = Reader(self._segments)
        self.epochs: Final = epochs
        self.producers = producers
        self.on_written: Callable[[], None] | None = None
        self.on_synced: Callable[[], None] | None = None
        self.on_failed: Callable[[PenstockError, int], None] | None = None
        self.failed: OSError | None = None
        self.start_offset = start_offset
        self._closed = False
        self._cut_due = False
        self.cut_noted = False
        self._generation = 0
        self.snapshot_offset = snapshot_offset
        self._producers_changed = snapshot_offset == SNAPSHOT_UNKNOWN
        self._epoch = epochs.latest
        self._epochs_changed = 0
        self._epochs_synced = 0
        self._gathered = bytearray()
        self._undo: list[tuple[int, ProducerEntry | None]] = []
        self._unsynced_closed: list[Segment] = []
        self._names_dirs: set[str] = set()
        self._names_changed = 0
        self._names_synced = 0
        self._settle_at_end()

    def _settle_at_end(self) -> None:
        """Take all offsets and positions from the active segment, of which everything is synced."""
        segment = self._active = self._segments.items[-1]
        self.next_offset = self.written_offset = self.synced_offset = self._notified_offset = segment.next_offset
        self._position = self._written_position = segment.size
        self._synced_point = (segment.base_offset, segment.next_offset, segment.size)
        self._max_timestamp = segment.max_timestamp if segment.size else -1
        # Known now, these need no disk when an append asks for them.
        if segment.size:
            segment.offsets.last()
            segment.times.last()
        self._reader.forget()
        self._reader.mark(self.next_offset, segment, segment.size)
        self._set_limits()

    def _set_limits(self) -> None:
        """What the next append may not pass without :meth:`_prepare`."""
        segment = self._active
        config = self._config
        last = segment.offsets.last() if segment.size else None
        self._index_due = config.index_interval_bytes + (0 if last is None else last[1])
        self._offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
        self._position_max = min(config.segment_bytes, self._written_position + GATHERED_BYTES_MAX)
        if self.failed is not None or self._closed or not self._segments_on_disk():
            self._position_max = -1

    def _segments_on_disk(self) -> bool:
        return self._active.size > 0 or self._active.file is not None

    # Facts.

    @property
    def config(self) -> LogConfig:
        """How it is kept."""
        return self._config

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Its segments, oldest first; the last is the active one."""
        return tuple(self._segments.items)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, with those that are gathered."""
        return sum(segment.size for segment in self._segments.items) + self._position - self._written_position

    # Appending.

    def append(self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int) -> int:
        """Place a checked batch at the end and return its base offset; a known duplicate returns its first one.

        A duplicate's offset is below ``next_offset`` before the call. The offset and epoch are set in ``batch`` itself; small
        batches are copied, large ones are written before this returns. Refused with OUT_OF_ORDER_SEQUENCE or
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
            self._undo.append((producer_id, self.producers.update(header, base_offset, self._clock.now_ms())))
            self._producers_changed = True
        self._max_timestamp = max(self._max_timestamp, header[8])
        self.next_offset = next_offset
        self._position = end
        if position >= self._index_due:
            self._add_index_rows(base_offset, position)
        if length <= APPEND_GATHER_BYTES_MAX:
            self._gathered += batch
        else:
            self._write(batch)
        return base_offset

    def expect(self, header: BatchHeader) -> None:
        """A batch of an idempotent producer is refused for now, and is to come again before those behind it."""
        if self.producers.expect(header, self._clock.now_ms()):
            self._producers_changed = True

    def append_copied(self, batch: Buffer, header: BatchHeader) -> None:
        """Place a batch as its leader did: offset, epoch and producer are the batch's own, and nothing in it is changed.

        Compaction may have left a gap before it. The caller has checked the batch; CORRUPT_RECORDS when it goes back in offsets or
        epochs, which only a leader that is none can send.
        """
        base_offset, length, leader_epoch = header[0], header[1], header[2]
        next_offset = base_offset + header[6] + 1
        if base_offset < self.next_offset or leader_epoch < self._epoch:
            raise PenstockError(
                Reason.CORRUPT_RECORDS,
                f"a batch at offset {base_offset} of epoch {leader_epoch} cannot follow offset {self.next_offset - 1} of epoch "
                f"{self._epoch} in {self.directory}",
            )
        position = self._position
        end = position + length + LENGTH_END
        if end > self._position_max or next_offset > self._offset_max or leader_epoch != self._epoch:
            self._prepare(length + LENGTH_END, next_offset - 1 - self.next_offset, leader_epoch)
            position = self._position
            end = position + length + LENGTH_END
        if header[9] >= 0:
            self._undo.append((header[9], self.producers.update(header, base_offset, self._clock.now_ms())))
            self._producers_changed = True
        self._max_timestamp = max(self._max_timestamp, header[8])
        self.next_offset = next_offset
        self._position = end
        if position >= self._index_due:
            self._add_index_rows(base_offset, position)
        if length <= APPEND_GATHER_BYTES_MAX:
            self._gathered += batch
        else:
            self._write(batch)

    def _add_index_rows(self, base_offset: int, position: int) -> None:
        segment = self._active
        relative = base_offset - segment.base_offset
        segment.offsets.add(relative, position)
        last = segment.times.last()
        if last is None or self._max_timestamp > last[0]:
            segment.times.add(self._max_timestamp, relative)
        self._index_due = position + self._config.index_interval_bytes

    def _prepare(self, size: int, last_offset_delta: int, leader_epoch: int) -> None:
        """What an append needs only now and then: files, a new epoch, a new segment; or the reason to refuse it."""
        self._refuse_when_failed()
        if size > self._config.segment_bytes:
            raise PenstockError(
                Reason.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes is larger than a segment of {self._config.segment_bytes}; "
                "send smaller batches or raise segment.bytes",
            )
        try:
            if not self._segments_on_disk():
                self._create_file(self._active)
            if leader_epoch != self._epoch:
                assert leader_epoch > self._epoch, "an older leader must not append"
                self.epochs.assign(leader_epoch, self.next_offset)
                self._epoch = leader_epoch
                self._epochs_changed += 1
        except OSError as error:
            raise self._refused(error) from error
        if self._position - self._written_position + size > GATHERED_BYTES_MAX:
            self._write()
        if (
            self._position + size > self._config.segment_bytes
            or self.next_offset + last_offset_delta >= self._active.base_offset + RELATIVE_OFFSET_MAX
        ):
            self.roll()
        self._position_max = min(self._config.segment_bytes, self._written_position + GATHERED_BYTES_MAX)

    def _refuse_when_failed(self) -> None:
        if self.failed is not None:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"syncing {self.directory} to the disk failed ({self.failed}); check the disk, then restart the node",
            )
        if self._closed:
            raise PenstockError(Reason.SHUTTING_DOWN, "the log is closed; try again when the node is up")

    def _storage_error(self, error: OSError) -> PenstockError:
        return PenstockError(
            Reason.STORAGE_ERROR,
            f"cannot write to {self.directory}: {error}; free some space or repair the disk, and send again",
        )

    def _refused(self, error: OSError) -> PenstockError:
        """A new file cannot be made: ``on_failed`` knows, as it does of a write that is refused; returns what to raise."""
        refusal = self._storage_error(error)
        if self.on_failed is not None:
            self.on_failed(refusal, self.written_offset)
        return refusal

    def _create_file(self, segment: Segment) -> None:
        """Make the file of a new active segment; its name is synced with the next sync."""
        is_first = segment.base_offset == self.start_offset
        if is_first:
            self._disk.make_dirs(self.directory, sync=False)
        file = segment.file or self._files.open(segment, create=True)
        if file.size():
            file.truncate(0)
        for path in segment.paths():
            # A crash may have left the index of a segment that was never written to.
            if path != segment.log_path:
                self._disk.remove(path)
        segment.new_indexes()
        segment.created_ms = self._clock.now_ms()
        segment.verified_to = 2**63
        self._names_changed += 1
        self._names_dirs.add(self.directory)
        if is_first:
            # The folders may be new, made just now or by someone who failed before their names were synced.
            self._names_dirs.update(folders_above(self.directory))

    def roll(self) -> None:
        """Close the active segment and begin a new one at ``next_offset``. STORAGE_ERROR leaves everything as it was."""
        self._write()
        old = self._active
        if old.size == 0:
            return
        new = Segment(self._disk, self._files, self.directory, self.next_offset, size=0, next_offset=self.next_offset)
        try:
            self._create_file(new)
        except OSError as error:
            raise self._refused(error) from error
        self._finish_segment(old)
        self._snapshot_at_roll()
        if old.is_dirty:
            self._unsynced_closed.append(old)
        self._segments.push(new)
        self._active = new
        self._position = self._written_position = 0
        self._max_timestamp = -1
        self._reader.mark(self.next_offset, new, 0)
        self._set_limits()

    def _snapshot_at_roll(self) -> None:
        """The producers at the start of each segment: where a replay begins when the log is cut, or the older ones are gone."""
        if len(self.producers):
            try:
                write_snapshot(self._disk, snapshot_path(self.directory, self.next_offset), self.producers.encode())
            except OSError:
                # Without it a replay begins earlier.
                return
            self.snapshot_offset = self.next_offset
            self._producers_changed = False

    def _finish_segment(self, segment: Segment) -> None:
        """Bring the indexes of a segment that grows no more to disk; without room for them they are rebuilt when needed."""
        segment.max_timestamp = self._max_timestamp
        segment.end_times()
        try:
            segment.offsets.flush()
            segment.times.flush()
        except OSError as error:
            self._report(f"{segment.stem}: the index could not be written ({error}); it will be rebuilt")
        segment.offsets.forget_tail()
        segment.times.forget_tail()
        # Closed files are not trusted unread: damage on disk must be found.
        segment.verified_from = segment.verified_to = 0

    # Writing.

    def write_pending(self) -> None:
        """Hand gathered appends to the OS. STORAGE_ERROR when it refuses; then they are undone and ``on_failed`` knows."""
        if self._gathered:
            self._write()
        if self.written_offset != self._notified_offset:
            self._notified_offset = self.written_offset
            if self.on_written is not None:
                self.on_written()

    def _write(self, large: Buffer | None = None) -> None:
        """One write of what is gathered, and of ``large`` behind it."""
        gathered = self._gathered
        if large is None:
            if not gathered:
                return
            buffers: tuple[Buffer, ...] = (gathered,)
        else:
            buffers = (gathered, large) if gathered else (large,)
        segment = self._active
        segment.used = True
        try:
            if self._cut_due:
                self._cut_back()
            (segment.file or self._files.open(segment)).pwritev(buffers, self._written_position)
        except OSError as error:
            raise self._undo_unwritten(error) from error
        if gathered:
            self._gathered = bytearray()
        if self._undo:
            self._undo.clear()
        offset, position = self.next_offset, self._position
        self.written_offset = segment.next_offset = offset
        self._written_position = segment.size = position
        segment.max_timestamp = self._max_timestamp
        limit = position + GATHERED_BYTES_MAX
        segment_bytes = self._config.segment_bytes
        self._position_max = min(segment_bytes, limit)
        self._reader.mark(offset, segment, position)
        if segment.offsets.unflushed_rows > INDEX_ROWS_UNFLUSHED_MAX:
            self._flush_index(segment)

    def _flush_index(self, segment: Segment) -> None:
        try:
            segment.offsets.flush()
            segment.times.flush()
        except OSError:
            # No room: the rows stay in memory, and the batches themselves will say so when they find none either.
            return

    def _undo_unwritten(self, error: OSError) -> PenstockError:
        """Forget every append behind ``written_offset``, as if none had been asked for; returns what to raise."""
        self._cut_due = True
        self._forget_unwritten()
        refusal = self._storage_error(error)
        if self.on_failed is not None:
            self.on_failed(refusal, self.written_offset)
        return refusal

    def _forget_unwritten(self) -> None:
        segment = self._active
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

    def _cut_back(self) -> None:
        """Remove from the file what a failed write left behind ``written_offset``.

        Synced, though the loop waits for it: what was refused must not come back when the power fails.
        """
        file = self._active.opened()
        if file.size() > self._written_position:
            file.truncate(self._written_position)
            try:
                file.sync()
            except OSError as error:
                # It was to sync what others wait for, too, and the next sync would not tell that it is lost.
                self._fail(error)
                raise
        self._cut_due = False

    # Syncing.

    def begin_sync(self) -> LogSyncTask | None:
        """What must be synced for all that is written so far; None when nothing is."""
        if self.failed is not None or self._closed:
            return None
        names, epochs = self._names_changed, self._epochs_changed
        if self.written_offset == self.synced_offset and names == self._names_synced:
            return None
        active = self._active
        segments = [*self._unsynced_closed, active] if active.is_dirty else list(self._unsynced_closed)
        pinned: list[tuple[Segment, File]] = []
        try:
            for segment in segments:
                file = segment.pin()
                pinned.append((segment, file))
        except OSError as error:
            for segment, _ in pinned:
                segment.unpin()
            self._fail(error)
            return None
        return LogSyncTask(
            disk=self._disk,
            pinned=pinned,
            sizes=[segment.size for segment in segments],
            paths=tuple(self._paths_to_sync()),
            epochs_changed=epochs,
            directories=() if names == self._names_synced else tuple(sorted(self._names_dirs, key=len)),
            names_changed=names,
            point=(active.base_offset, self.written_offset, active.size),
            generation=self._generation,
        )

    def _paths_to_sync(self) -> Iterator[str]:
        if self._epochs_changed != self._epochs_synced:
            yield f"{self.directory}/{LEADER_EPOCHS}"
        for segment in self._unsynced_closed:
            # Retention believes the time index of a closed segment, so it must be as durable as the segment.
            yield from (path for path in segment.paths() if path != segment.log_path)

    def end_sync(self, task: SyncTask, error: OSError | None) -> None:
        """The task ran."""
        assert isinstance(task, LogSyncTask)
        for segment, _ in task.pinned:
            segment.unpin()
        if task.generation != self._generation:
            # The log was cut meanwhile, and synced by that.
            return
        if error is not None:
            self._fail(error)
            return
        for (segment, _), size in zip(task.pinned, task.sizes, strict=True):
            segment.synced_size = max(segment.synced_size, size)
            if not segment.is_dirty and segment in self._unsynced_closed:
                self._unsynced_closed.remove(segment)
        self._epochs_synced = max(self._epochs_synced, task.epochs_changed)
        self._names_synced = max(self._names_synced, task.names_changed)
        if self._names_synced == self._names_changed:
            self._names_dirs.clear()
        if task.point[1] > self.synced_offset:
            self.synced_offset = task.point[1]
            self._synced_point = task.point
            if self.on_synced is not None:
                self.on_synced()

    def _fail(self, error: OSError) -> None:
        """A sync failed: what was written may be gone from memory and disk alike, and no later sync would tell."""
        if self.failed is not None:
            return
        self.failed = error
        self._position_max = -1
        self._report(f"{self.directory}: syncing to the disk failed ({error}); no more appends until the node restarts")
        if self.on_failed is not None:
            self.on_failed(
                PenstockError(Reason.STORAGE_ERROR, f"syncing {self.directory} to the disk failed: {error}"),
                self.synced_offset,
            )
