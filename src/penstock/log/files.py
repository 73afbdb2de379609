"""A bound on the descriptors that all logs of a node hold together.

A segment opens its file when it is used and keeps it open until others need the descriptor. Which file is closed is decided
by the clock algorithm: a file that was used since the hand passed is skipped once, one that has bytes to sync twice (closing
it is safe, but its next sync must open it again). A file in a running sync is never closed.
"""

from collections import deque
from typing import TYPE_CHECKING

from penstock.ports import Disk, File

if TYPE_CHECKING:
    from penstock.log.segment import Segment


class FilePool:
    """Opens files for segments, and closes others to stay within ``open_max`` (pinned files may exceed it)."""

    __slots__ = ("_disk", "_holders", "open_max")

    def __init__(self, disk: Disk, open_max: int) -> None:
        assert open_max > 0
        self._disk = disk
        self._holders: deque[Segment] = deque()
        self.open_max = open_max

    def __len__(self) -> int:
        return sum(holder.file is not None for holder in self._holders)

    def open(self, holder: "Segment", *, create: bool = False) -> File:
        """The segment's file, opened; raises OSError."""
        assert holder.file is None
        if len(self._holders) >= self.open_max:
            self._make_room()
        file = holder.file = self._disk.open(holder.log_path, create=create)
        holder.used = True
        self._holders.append(holder)
        return file

    def _make_room(self) -> None:
        holders = self._holders
        # Several at once, so that the hand does not make a full round for each file when most are skipped.
        target = self.open_max - max(self.open_max // 8, 1)
        for turn in range(3 * len(holders)):
            holder = holders.popleft()
            if holder.file is None:
                # It has closed its file itself.
                pass
            elif holder.pins or holder.used or (holder.is_dirty and turn < 2 * len(holders)):
                holder.used = False
                holders.append(holder)
                continue
            else:
                holder.release()
            if len(holders) <= target:
                return
