"""The part of a sync that blocks, and so runs in a thread.

It touches nothing of the log but files that are pinned for it and the names of directories; the log takes the result over on
the event loop.
"""

from dataclasses import dataclass

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
