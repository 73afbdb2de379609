"""All logs of one node: opened on first use, recovered before that if necessary, checkpointed together.

On disk: ``topics/<topic id in hex>/<partition>/`` per log, and ``recovery.checkpoint`` (:mod:`penstock.log.checkpoint`). An
unused log costs a line in the checkpoint and an entry in a dict.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final
from uuid import UUID

from penstock.limits import OPEN_SEGMENTS_MAX
from penstock.log.checkpoint import Checkpoint, LogKey, RecoveryPoint, load_checkpoint, save_checkpoint
from penstock.log.config import LogConfig
from penstock.log.environment import LogEnvironment
from penstock.log.files import FilePool
from penstock.log.log import Log
from penstock.log.names import DELETED
from penstock.log.recovery import matches, open_log, recover
from penstock.log.retention import RemovalTask
from penstock.log.snapshots import drop_old_snapshots, write_snapshot
from penstock.ports import Clock, Disk, Report

CHECKPOINT: Final = "recovery.checkpoint"
TOPICS: Final = "topics"
MANY_LOGS: Final = 64
PROGRESS_MS: Final = 1000
"""How often a long recovery reports its progress."""


def partitions(disk: Disk, data_dir: str) -> Iterator[tuple[UUID, int, str]]:
    """Topic id, partition and directory of every log."""
    for topic, topic_id in _topic_directories(disk, f"{data_dir}/{TOPICS}"):
        numbers = [int(name) for name in disk.listdir(topic) if name.isascii() and name.isdigit()]
        for number in sorted(numbers):
            yield topic_id, number, f"{topic}/{number}"


def _topic_directories(disk: Disk, topics_dir: str) -> Iterator[tuple[str, UUID]]:
    for name in disk.listdir(topics_dir):
        try:
            yield f"{topics_dir}/{name}", UUID(hex=name)
        except ValueError:
            continue


@dataclass(frozen=True, slots=True)
class _Snapshot:
    log: Log
    generation: int
    path: str
    data: bytes
    needed: frozenset[int]
    """Offsets whose snapshots must be kept."""


@dataclass(slots=True)
class CheckpointTask:
    """A checkpoint about to be written. Created on the event loop, run in a thread."""

    disk: Disk
    path: str
    points: Mapping[LogKey, RecoveryPoint]
    snapshots: list[_Snapshot]
    cuts: list[tuple[Log, int]]
    done: bool = field(default=False, init=False)

    def run(self) -> None:
        """Write the snapshots of the producers, then the checkpoint that refers to them. OSError leaves the old one."""
        for snapshot in self.snapshots:
            try:
                write_snapshot(self.disk, snapshot.path, snapshot.data)
            except FileNotFoundError:
                # The topic was deleted in the meantime; the other logs must have their checkpoint.
                continue
            drop_old_snapshots(self.disk, snapshot.log.directory, snapshot.needed)
        save_checkpoint(self.disk, self.path, Checkpoint(self.points, clean=False))
        self.done = True


class LogManager:
    """The logs of one data directory. All calls are made on the event loop, except ``run`` of the tasks that it returns."""

    def __init__(
        self, disk: Disk, data_dir: str, clock: Clock, report: Report, *, open_segments_max: int = OPEN_SEGMENTS_MAX
    ) -> None:
        self.disk = disk
        self.data_dir: Final = data_dir
        self._topics_dir = f"{data_dir}/{TOPICS}"
        self._checkpoint_path = f"{data_dir}/{CHECKPOINT}"
        self._clock = clock
        self._report = report
        self._environment = LogEnvironment(disk, FilePool(disk, open_segments_max), clock, report)
        self._logs: dict[LogKey, Log] = {}
        self._points: dict[LogKey, RecoveryPoint] = {}
        self._last_task: CheckpointTask | None = None

    # Starting.

    def open_all(self) -> None:
        """Read the checkpoint, and recover every log that differs from it; after an orderly stop there is none."""
        has_checkpoint = self.disk.exists(self._checkpoint_path)
        try:
            checkpoint = load_checkpoint(self.disk, self._checkpoint_path)
        except ValueError as error:
            self._report(f"{self._checkpoint_path}: {error}; every log is scanned from its start")
            checkpoint = Checkpoint({}, clean=False)
            has_checkpoint = False
        self._environment = replace(self._environment, has_checkpoint=has_checkpoint)
        self._points = dict(checkpoint.points)
        if not checkpoint.clean:
            self._recover_all()
        # Even without a point: so a checkpoint that is missing at the next start was removed.
        self._save_running()

    def _recover_all(self) -> None:
        there = [LogKey(topic_id, partition) for topic_id, partition, _ in partitions(self.disk, self.data_dir)]
        # A crash between the removal of a topic and the next checkpoint leaves points that are never used again.
        self._points = {key: self._points[key] for key in there if key in self._points}
        due = [key for key in there if not matches(self.disk, self._directory(key), self._points.get(key))]
        # One by one, the syncs of many logs would take longer than everything else.
        synced = len(due) >= MANY_LOGS and self.disk.sync_all(self._topics_dir)
        started_ms = said_ms = self._clock.monotonic_ms()
        for number, key in enumerate(due):
            interval_bytes = LogConfig().index_interval_bytes
            self._points[key] = recover(
                self._environment, self._directory(key), interval_bytes, self._points.get(key), synced=synced
            )
            now_ms = self._clock.monotonic_ms()
            if now_ms - said_ms >= PROGRESS_MS:
                said_ms = now_ms
                self._report(f"recovery: {number + 1} of {len(due)} logs after {(now_ms - started_ms) / 1000:.1f} s")

    def _save_running(self) -> None:
        """Mark the logs as running: if the process ends without a stop, the next start recovers them."""
        try:
            save_checkpoint(self.disk, self._checkpoint_path, Checkpoint(self._points, clean=False))
        except OSError as error:
            # Reads must continue with a full disk. Each log is compared with its point when it is opened anyway.
            self._report(f"{self._checkpoint_path}: could not be written ({error})")

    def _directory(self, key: LogKey) -> str:
        return f"{self._topics_dir}/{key.topic_id.hex}/{key.partition}"

    # Using.

    def log(self, topic_id: UUID, partition: int, config: LogConfig) -> Log:
        """The log of a partition, opened on first use; OSError when that fails."""
        key = LogKey(topic_id, partition)
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = open_log(self._environment, self._directory(key), config, self._points.get(key))
        return log

    def has_records(self, topic_id: UUID, partition: int) -> bool:
        """Whether a log was ever written to, without opening it."""
        key = LogKey(topic_id, partition)
        return key in self._points or key in self._logs

    def topic_ids(self) -> list[UUID]:
        """The topics that have a directory, so that those of deleted topics can be found.

        Even an empty one: a power failure can restore the directory of a deleted topic without its contents.
        """
        return sorted({topic_id for _, topic_id in _topic_directories(self.disk, self._topics_dir)})

    def leftovers(self) -> RemovalTask:
        """What an interrupted removal of topics has left on disk."""
        folders = [
            f"{self._topics_dir}/{name}" for name in self.disk.listdir(self._topics_dir) if name.endswith(DELETED)
        ]
        for topic, _ in _topic_directories(self.disk, self._topics_dir):
            folders += (f"{topic}/{name}" for name in self.disk.listdir(topic) if name.endswith(DELETED))
        return RemovalTask(self.disk, folders=tuple(folders))

    def forget(self, topic_id: UUID) -> RemovalTask:
        """A topic is deleted: close its logs and rename its directory. The task removes it, off the event loop."""
        for key in [key for key in self._logs if key.topic_id == topic_id]:
            self._logs.pop(key).close(clean=False)
        for key in [key for key in self._points if key.topic_id == topic_id]:
            del self._points[key]
        folder = f"{self._topics_dir}/{topic_id.hex}"
        if not self.disk.exists(folder):
            return RemovalTask(self.disk)
        self.disk.rename(folder, folder + DELETED)
        return RemovalTask(self.disk, folders=(folder + DELETED,))

    def forget_partition(self, topic_id: UUID, partition: int) -> RemovalTask:
        """One partition has moved to other nodes: close and remove its log, as :meth:`forget` does."""
        key = LogKey(topic_id, partition)
        log = self._logs.pop(key, None)
        if log is not None:
            log.close(clean=False)
        self._points.pop(key, None)
        folder = self._directory(key)
        if not self.disk.exists(folder):
            return RemovalTask(self.disk)
        # It may have been on this node before, and that removal may not be complete.
        aside = next(name for n in count() if not self.disk.exists(name := f"{folder}.{n}{DELETED}"))
        self.disk.rename(folder, aside)
        return RemovalTask(self.disk, folders=(aside,))

    # Checkpoints.

    def prepare_checkpoint(self) -> CheckpointTask:
        """The state of every log now, to be written off the event loop. One task at a time."""
        self._settle_last()
        snapshots: list[_Snapshot] = []
        cuts: list[tuple[Log, int]] = []
        for key, log in self._logs.items():
            snapshot = log.take_snapshot()
            if snapshot is not None:
                snapshots.append(
                    _Snapshot(log, log.generation, *snapshot, frozenset(each.base_offset for each in log.segments))
                )
            if log.cut_note.is_there:
                cuts.append((log, log.generation))
            if log.next_offset or key in self._points:
                self._points[key] = log.recovery_point()
        task = CheckpointTask(self.disk, self._checkpoint_path, dict(self._points), snapshots, cuts)
        self._last_task = task
        return task

    def _settle_last(self) -> None:
        """Remove what the last checkpoint has made obsolete, if it was written."""
        task, self._last_task = self._last_task, None
        if task is None or not task.done:
            return
        for snapshot in task.snapshots:
            if snapshot.generation != snapshot.log.generation:
                # The log was truncated in the meantime: the snapshot describes records that are gone.
                self.disk.remove(snapshot.path)
        for log, generation in task.cuts:
            if log.generation == generation:
                log.cut_note.remove()

    def close(self) -> None:
        """Sync and close every log, and mark the stop as clean unless a log failed."""
        clean = True
        if sum(log.written_offset > log.synced_offset for log in self._logs.values()) >= MANY_LOGS:
            # One by one would take a disk write each. Each log still syncs itself, and then has nothing left to write.
            with contextlib.suppress(OSError):
                self.disk.sync_all(self._topics_dir)
        self._settle_last()
        for key, log in self._logs.items():
            if log.failed is not None:
                clean = False
            try:
                log.close(clean=True)
            except Exception as error:  # noqa: BLE001 - the other logs must still be closed
                clean = False
                self._report(f"{log.directory}: could not be closed: {error}")
            if log.next_offset or key in self._points:
                self._points[key] = log.recovery_point()
        try:
            save_checkpoint(self.disk, self._checkpoint_path, Checkpoint(self._points, clean))
        except OSError as error:
            self._report(f"{self._checkpoint_path}: could not be written ({error})")
            return
        for log in self._logs.values():
            log.cut_note.remove()
        self._logs.clear()
