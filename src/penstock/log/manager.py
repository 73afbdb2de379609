"""All logs of one node: opened when they are first asked for, recovered first when they need it, checkpointed together.

On disk: ``topics/<topic id in hex>/<partition>/`` per log, and ``recovery.checkpoint`` (:mod:`penstock.log.checkpoint`). A log that
nobody touches costs a line in the checkpoint and an entry in a dict.
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
"""A recovery that takes longer says how far it is, this often."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    log: Log
    generation: int
    path: str
    data: bytes
    needed: frozenset[int]
    """Offsets whose snapshots must stay."""


@dataclass(slots=True)
class CheckpointTask:
    """A checkpoint about to be written. Made on the event loop, run off it."""

    disk: Disk
    path: str
    points: Mapping[LogKey, RecoveryPoint]
    snapshots: list[_Snapshot]
    cuts: list[tuple[Log, int]]
    done: bool = field(default=False, init=False)

    def run(self) -> None:
        """Write the snapshots of the producers, then the checkpoint that counts on them. OSError leaves the old one."""
        for snapshot in self.snapshots:
            try:
                write_snapshot(self.disk, snapshot.path, snapshot.data)
            except FileNotFoundError:
                # The topic was deleted meanwhile, and its folder is gone; the other logs must have their checkpoint.
                continue
            drop_old_snapshots(self.disk, snapshot.log.directory, snapshot.needed)
        save_checkpoint(self.disk, self.path, Checkpoint(self.points, clean=False))
        self.done = True


class LogManager:
    """The logs of one data folder. All calls are made on the event loop, except ``run`` of the tasks it hands out."""

    def __init__(
        self, disk: Disk, data_dir: str, clock: Clock, report: Report, *, open_segments_max: int = OPEN_SEGMENTS_MAX
    ) -> None:
        self._disk = self.disk = disk
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
        """Read the checkpoint, and recover every log that is not as it says; after an orderly stop there is none."""
        has_checkpoint = self._disk.exists(self._checkpoint_path)
        try:
            checkpoint = load_checkpoint(self._disk, self._checkpoint_path)
        except ValueError as error:
            self._report(f"{self._checkpoint_path}: {error}; every log is scanned from its start")
            checkpoint = Checkpoint({}, clean=False)
            has_checkpoint = False
        self._environment = replace(self._environment, has_checkpoint=has_checkpoint)
        self._points = dict(checkpoint.points)
        if not checkpoint.clean:
            self._recover_all()
        # Even without a point: a checkpoint that is missing at the next start was removed, and is not just yet to be written.
        self._save_running()

    def _recover_all(self) -> None:
        there = list(self._on_disk())
        # A crash between the removal of a topic and the next checkpoint leaves points that nobody asks for again.
        self._points = {key: self._points[key] for key in there if key in self._points}
        due = [key for key in there if not matches(self._disk, self._directory(key), self._points.get(key))]
        # One after the other, the syncs of many logs would take longer than all the rest.
        synced = len(due) >= MANY_LOGS and self._disk.sync_all(self._topics_dir)
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
        """From here on an end without a stop is a crash."""
        try:
            save_checkpoint(self._disk, self._checkpoint_path, Checkpoint(self._points, clean=False))
        except OSError as error:
            # Reads must go on with a full disk. Each log is compared with its point when it is opened all the same.
            self._report(f"{self._checkpoint_path}: could not be written ({error})")

    def _on_disk(self) -> Iterator[LogKey]:
        for topic, topic_id in self._topic_folders():
            for partition in self._disk.listdir(f"{self._topics_dir}/{topic}"):
                if partition.isascii() and partition.isdigit():
                    yield LogKey(topic_id, int(partition))

    def _topic_folders(self) -> Iterator[tuple[str, UUID]]:
        for name in self._disk.listdir(self._topics_dir):
            try:
                yield name, UUID(hex=name)
            except ValueError:
                continue

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
        """Whether a log was ever written to; it is not opened for that."""
        key = LogKey(topic_id, partition)
        return key in self._points or key in self._logs

    def topic_ids(self) -> list[UUID]:
        """The topics that have a folder, so that those of deleted topics can be found.

        Without a partition in it, too: a loss of power can bring back the folder of a deleted topic and nothing in it.
        """
        return sorted({topic_id for _, topic_id in self._topic_folders()})

    def leftovers(self) -> RemovalTask:
        """What the removal of topics has left behind, at a start after a crash."""
        folders = [
            f"{self._topics_dir}/{name}" for name in self._disk.listdir(self._topics_dir) if name.endswith(DELETED)
        ]
        for topic, _ in self._topic_folders():
            folder = f"{self._topics_dir}/{topic}"
            folders += (f"{folder}/{name}" for name in self._disk.listdir(folder) if name.endswith(DELETED))
        return RemovalTask(self._disk, folders=tuple(folders))

    def forget(self, topic_id: UUID) -> RemovalTask:
        """A topic is gone: let go of its logs and put its folder aside. The task removes it, off the event loop."""
        for key in [key for key in self._logs if key.topic_id == topic_id]:
            self._logs.pop(key).close(clean=False)
        for key in [key for key in self._points if key.topic_id == topic_id]:
            del self._points[key]
        folder = f"{self._topics_dir}/{topic_id.hex}"
        if not self._disk.exists(folder):
            return RemovalTask(self._disk)
        self._disk.rename(folder, folder + DELETED)
        return RemovalTask(self._disk, folders=(folder + DELETED,))

    def forget_partition(self, topic_id: UUID, partition: int) -> RemovalTask:
        """One partition has moved to other nodes: let go of its log, as :meth:`forget` does."""
        key = LogKey(topic_id, partition)
        log = self._logs.pop(key, None)
        if log is not None:
            log.close(clean=False)
        self._points.pop(key, None)
        folder = self._directory(key)
        if not self._disk.exists(folder):
            return RemovalTask(self._disk)
        # It may have been here before, and the removal of that may not be over.
        aside = next(name for n in count() if not self._disk.exists(name := f"{folder}.{n}{DELETED}"))
        self._disk.rename(folder, aside)
        return RemovalTask(self._disk, folders=(aside,))

    def delete(self, topic_id: UUID) -> None:
        """:meth:`forget` a topic and remove its files at once; blocks while large files go."""
        self.forget(topic_id).run()

    # Checkpoints.

    def prepare_checkpoint(self) -> CheckpointTask:
        """What is known of every log now, to be written off the event loop. One task at a time."""
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
        task = CheckpointTask(self._disk, self._checkpoint_path, dict(self._points), snapshots, cuts)
        self._last_task = task
        return task

    def _settle_last(self) -> None:
        """Follow up the last checkpoint, if it was written."""
        task, self._last_task = self._last_task, None
        if task is None or not task.done:
            return
        for snapshot in task.snapshots:
            if snapshot.generation != snapshot.log.generation:
                # The log was cut under it: it speaks of records that are gone.
                self._disk.remove(snapshot.path)
        for log, generation in task.cuts:
            if log.generation == generation:
                log.cut_note.remove()

    def close(self) -> None:
        """Sync and close every log, and leave the mark of an orderly stop; a log that fails to close denies it."""
        clean = True
        if sum(log.written_offset > log.synced_offset for log in self._logs.values()) >= MANY_LOGS:
            # One after the other would take a turn of the disk each. Each still syncs for itself, and finds nothing left to do.
            with contextlib.suppress(OSError):
                self._disk.sync_all(self._topics_dir)
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
            save_checkpoint(self._disk, self._checkpoint_path, Checkpoint(self._points, clean))
        except OSError as error:
            self._report(f"{self._checkpoint_path}: could not be written ({error})")
            return
        for log in self._logs.values():
            log.cut_note.remove()
        self._logs.clear()
