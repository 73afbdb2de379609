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
    epochs_path: str | None
    """The file of leader epochs, when it changed."""
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
        if self.epochs_path is not None:
            epochs = self.disk.open(self.epochs_path)
            try:
                epochs.sync()
            finally:
                epochs.close()
        for directory in self.directories:
            self.disk.sync_dir(directory)
