"""A bound on the descriptors that all logs of a node hold together.

A segment opens its file when it is used and keeps it until others need the room. The choice of whom to close is a clock
hand: one round of grace for a file that was used since the hand passed, two for one that has bytes to sync (closing it is
safe, but its next sync must open it again). A file in a running sync is never closed.
"""

from collections import deque
from typing import Protocol

from penstock.ports import Disk, File


class FileHolder(Protocol):
    """Someone who can do without its descriptor for a while."""

    log_path: str
    file: File | None
    used: bool
    pins: int

    @property
    def is_dirty(self) -> bool:
        """Whether the file has bytes that are not synced."""
        ...

    def release(self) -> None:
        """Close the file and drop what was cached of it."""
        ...


class FilePool:
    """Opens files for their holders, and closes others to stay within ``open_max`` (pinned files may exceed it)."""

    __slots__ = ("_disk", "_holders", "open_max")

    def __init__(self, disk: Disk, open_max: int) -> None:
        assert open_max > 0
        self._disk = disk
        self._holders: deque[FileHolder] = deque()
        self.open_max = open_max

    def __len__(self) -> int:
        return sum(holder.file is not None for holder in self._holders)

    def open(self, holder: FileHolder, *, create: bool = False) -> File:
        """The holder's file, opened; raises OSError."""
        assert holder.file is None
        if len(self._holders) >= self.open_max:
            self._make_room()
        file = holder.file = self._disk.open(holder.log_path, create=create)
        holder.used = True
        self._holders.append(holder)
        return file

    def _make_room(self) -> None:
        holders = self._holders
        # Several at once, so that the hand does not go all the way round for each file when most have a grace.
        target = self.open_max - max(self.open_max // 8, 1)
        for turn in range(3 * len(holders)):
            holder = holders.popleft()
            if holder.file is None:
                # It closed its file by itself since.
                pass
            elif holder.pins or holder.used or (holder.is_dirty and turn < 2 * len(holders)):
                holder.used = False
                holders.append(holder)
                continue
            else:
                holder.release()
            if len(holders) <= target:
                return
