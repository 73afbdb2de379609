"""What a log has written and not synced yet, and the part of a sync that blocks, and so runs in a thread.

The task touches nothing of the log but files that are pinned for it and the names of directories; the result is taken over on
the event loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.log.names import LEADER_EPOCHS, folders_above
from penstock.log.segment import Segment
from penstock.ports import Disk, File


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSyncTask:
    """Everything that was written when it was made; see :meth:`penstock.log.log.Log.begin_sync`."""

    disk: Disk
    pinned: list[tuple[Segment, File]]
    sizes: list[int]
    paths: tuple[str, ...]
    """Small files to sync too: the indexes of closed segments, the leader epochs when they changed."""
    epochs_changed: int
    directories: tuple[str, ...]
    names_changed: int
    point: tuple[int, int, int]
    """Base of the active segment, next offset, size of the active segment: what is synced afterwards."""
    generation: int

    def run(self) -> None:
        """Block until synced, older files first; OSError when the disk refuses."""
        for _, file in self.pinned:
            file.sync()
        for path in self.paths:
            self._sync_path(path)
        for directory in self.directories:
            self.disk.sync_dir(directory)

    def _sync_path(self, path: str) -> None:
        try:
            file = self.disk.open(path)
        except FileNotFoundError:
            # The log has dropped the segment meanwhile, or never had room for its index.
            return
        try:
            file.sync()
        finally:
            file.close()

    def unpin(self) -> None:
        """It ran: the files may be closed again."""
        for segment, _ in self.pinned:
            segment.unpin()


class Unsynced:
    """The names of files, the leader epochs and the closed segments that a loss of power may take."""

    __slots__ = (
        "_directories",
        "_directory",
        "_disk",
        "_epochs_changed",
        "_epochs_synced",
        "_names_changed",
        "_names_synced",
        "_segments",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._segments: list[Segment] = []
        self._directories: set[str] = set()
        self._names_changed = self._names_synced = 0
        self._epochs_changed = self._epochs_synced = 0

    @property
    def has_names(self) -> bool:
        """Whether there are new files whose names are not durable."""
        return self._names_changed != self._names_synced

    def add_name(self, *, with_folders: bool) -> None:
        """A file was created. ``with_folders``: the folders above may be new as well."""
        self._names_changed += 1
        self._directories.add(self._directory)
        if with_folders:
            self._directories.update(folders_above(self._directory))

    def add_epoch(self) -> None:
        """The list of leader epochs has changed."""
        self._epochs_changed += 1

    def add_segment(self, segment: Segment) -> None:
        """A segment was closed."""
        if segment.is_dirty:
            self._segments.append(segment)

    def drop_segment(self, segment: Segment) -> None:
        """A segment needs no sync; fine when it needed none before."""
        if segment in self._segments:
            self._segments.remove(segment)

    def task(self, active: Segment, next_offset: int, generation: int) -> LogSyncTask:
        """What must be synced for all that is written so far. OSError when a file cannot be opened."""
        segments = [*self._segments, active] if active.is_dirty else list(self._segments)
        pinned: list[tuple[Segment, File]] = []
        try:
            for segment in segments:
                file = segment.pin()
                pinned.append((segment, file))
        except OSError:
            for segment, _ in pinned:
                segment.unpin()
            raise
        return LogSyncTask(
            disk=self._disk,
            pinned=pinned,
            sizes=[segment.size for segment in segments],
            paths=tuple(self._paths()),
            epochs_changed=self._epochs_changed,
            directories=tuple(sorted(self._directories, key=len)) if self.has_names else (),
            names_changed=self._names_changed,
            point=(active.base_offset, next_offset, active.size),
            generation=generation,
        )

    def _paths(self) -> Iterator[str]:
        if self._epochs_changed != self._epochs_synced:
            yield f"{self._directory}/{LEADER_EPOCHS}"
        for segment in self._segments:
            # Retention believes the time index of a closed segment, so it must be as durable as the segment.
            yield from (path for path in segment.paths() if path != segment.log_path)

    def synced(self, task: LogSyncTask) -> None:
        """The task ran without an error."""
        for (segment, _), size in zip(task.pinned, task.sizes, strict=True):
            segment.synced_size = max(segment.synced_size, size)
            if not segment.is_dirty:
                self.drop_segment(segment)
        self._epochs_synced = max(self._epochs_synced, task.epochs_changed)
        self._names_synced = max(self._names_synced, task.names_changed)
        if not self.has_names:
            self._directories.clear()

    def sync_names(self) -> None:
        """Make the names durable now; blocks."""
        for directory in sorted({*self._directories, self._directory}, key=len):
            self._disk.sync_dir(directory)
        self._directories.clear()
        self._names_synced = self._names_changed

    def sync_segments(self, kept: list[Segment]) -> None:
        """Make those of the closed segments that are ``kept`` durable now, and forget the others; blocks."""
        self._segments = [segment for segment in self._segments if segment in kept]
        for segment in self._segments:
            segment.opened().sync()
            segment.synced_size = segment.size
        self._segments.clear()
