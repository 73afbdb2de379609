"""What a log has written but not synced, and the blocking part of a sync, which runs in a thread.

The task uses only files that are pinned for it and the names of directories; the event loop applies the result.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from penstock.log.names import LEADER_EPOCHS, folders_above
from penstock.log.segment import Segment
from penstock.ports import Disk, File


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSyncTask:
    """Syncs everything that was written when it was created; see :meth:`penstock.log.log.Log.begin_sync`."""

    disk: Disk
    pinned: list[tuple[Segment, File]]
    sizes: list[int]
    paths: tuple[str, ...]
    """Small files to sync too: the indexes of closed segments, the leader epochs if they changed."""
    epochs_changed: int
    directories: tuple[str, ...]
    names_changed: int
    point: tuple[int, int, int]
    """Base of the active segment, next offset, size of the active segment: what is then synced."""
    generation: int

    def run(self) -> None:
        """Sync everything, older files first."""
        for _, pinned in self.pinned:
            pinned.sync()
        for path in self.paths:
            try:
                file = self.disk.open(path)
            except FileNotFoundError:
                # The log has dropped the segment in the meantime, or had no space for its index.
                continue
            with closing(file):
                file.sync()
        for directory in self.directories:
            self.disk.sync_dir(directory)

    def unpin(self) -> None:
        """Let the files be closed again."""
        for segment, _ in self.pinned:
            segment.unpin()


class Unsynced:
    """The names of files, the leader epochs and the closed segments that a power failure could lose."""

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
        """A file was created. ``with_folders``: the directories above may be new as well."""
        self._names_changed += 1
        self._directories.add(self._directory)
        if with_folders:
            self._directories.update(folders_above(self._directory))

    def add_epoch(self) -> None:
        """The list of leader epochs has changed."""
        self._epochs_changed += 1

    def add_segment(self, segment: Segment) -> None:
        """A segment was closed. The next sync seals it, even if its bytes are synced already."""
        self._segments.append(segment)

    def drop_segment(self, segment: Segment) -> None:
        """A segment needs no sync any more."""
        if segment in self._segments:
            self._segments.remove(segment)

    def task(self, active: Segment, next_offset: int, generation: int) -> LogSyncTask:
        """The task that syncs everything written so far. OSError if a file cannot be opened."""
        segments = [*self._segments, active] if active.is_dirty else list(self._segments)
        pinned: list[tuple[Segment, File]] = []
        try:
            for segment in segments:
                file = segment.pin()
                pinned.append((segment, file))
                if segment is not active:
                    file.seal()
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
            # Retention trusts the time index of a closed segment, so it must be as durable as the segment.
            yield from segment.index_paths()

    def synced(self, task: LogSyncTask) -> None:
        """The task ran without an error."""
        for (segment, _), size in zip(task.pinned, task.sizes, strict=True):
            segment.synced_size = max(segment.synced_size, size)
            # One that was active then may have been closed since: the next sync seals it.
            if not segment.is_dirty and segment.base_offset != task.point[0]:
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
        """Sync those of the closed segments that are ``kept``, and forget the others; blocks."""
        self._segments = [segment for segment in self._segments if segment in kept]
        for segment in self._segments:
            file = segment.opened()
            file.seal()
            file.sync()
            segment.synced_size = segment.size
        self._segments.clear()
