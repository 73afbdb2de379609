"""Which leader epoch began at which offset of one partition.

A replica or a consumer that followed an older leader uses it to find where its history diverges from this one
(OffsetForLeaderEpoch), and what it must truncate.

Invariant: epochs and start offsets both increase strictly from entry to entry; the entry of an epoch without records is
replaced once the next epoch begins at the same offset. File and memory are equal whenever a call has returned.

On disk (``leader-epochs``), text, replaced as a whole::

    penstock-epochs 1 <CRC-32C of the lines below, 8 hex digits>
    <epoch> <start offset>
    ...

The file only saves time: every batch header contains its epoch, so :meth:`EpochHistory.rebuild` can restore it.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from crc32c import crc32c

from penstock.ports import Disk
from penstock.types import NO_EPOCH, NO_OFFSET

_TITLE: Final = "penstock-epochs 1"
_epoch_of: Final = itemgetter(0)
_start_of: Final = itemgetter(1)


class EpochHistory:
    """The epochs of one partition, oldest first. ``latest`` is the number of the newest one, -1 if there is none."""

    __slots__ = ("_disk", "_entries", "_path", "latest")

    def __init__(self, disk: Disk, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._disk = disk
        self._path = path
        self._entries = list(entries)
        self.latest: int = self._entries[-1][0] if self._entries else NO_EPOCH

    @classmethod
    def load(cls, disk: Disk, path: str) -> "EpochHistory":
        """The history in the file, empty if there is no file; ValueError if it is damaged: then :meth:`rebuild`."""
        if not disk.exists(path):
            return cls(disk, path)
        return cls(disk, path, _decode(disk.read_bytes(path)))

    @classmethod
    def rebuild(cls, disk: Disk, path: str, batches: Iterable[tuple[int, int]]) -> "EpochHistory":
        """The history from the (leader epoch, base offset) of all batches in log order; it replaces the file."""
        entries: list[tuple[int, int]] = []
        latest = NO_EPOCH
        for epoch, base_offset in batches:
            if epoch > latest:
                entries.append((epoch, base_offset))
                latest = epoch
        history = cls(disk, path)
        history._replace(entries, sync=True)
        return history

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, start offset), oldest first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """``epoch`` begins at ``start_offset``. An epoch that is not newer changes nothing.

        The file is written but not synced, because the event loop must not wait: the log's next sync includes it, and until
        then the batches contain their epoch.
        """
        if epoch <= self.latest:
            return
        assert start_offset >= 0
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)], sync=False)

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The greatest known epoch up to ``epoch``, and the offset after its last record; (-1, -1) if ``epoch`` is newer
        than any known one. An epoch before all known ones has no records left: it ends where the first known one begins.
        """
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end
        above = bisect_right(self._entries, epoch, key=_epoch_of)
        end_offset = self._entries[above][1]
        return (self._entries[above - 1][0] if above else epoch), end_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the record at ``offset`` was written; -1 if it is before the first known one."""
        above = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[above - 1][0] if above else NO_EPOCH

    def begins_at_or_above(self, offset: int) -> bool:
        """Whether the latest epoch began at ``offset`` or later."""
        return bool(self._entries) and self._entries[-1][1] >= offset

    def truncate_from_end(self, offset: int) -> None:
        """The log was truncated to end at ``offset``: forget epochs that began there or later."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        if len(kept) != len(self._entries):
            self._replace(kept, sync=True)

    def truncate_from_start(self, offset: int) -> None:
        """The log now starts at ``offset``: forget epochs that ended before it; the epoch of ``offset`` starts there."""
        above = bisect_right(self._entries, offset, key=_start_of)
        if above == 0 or (above == 1 and self._entries[0][1] == offset):
            return
        self._replace([(self._entries[above - 1][0], offset), *self._entries[above:]], sync=False)

    def _replace(self, entries: list[tuple[int, int]], *, sync: bool) -> None:
        # The file first: if the write fails, memory and file are still equal.
        self._disk.write_atomic(self._path, _encode(entries), sync=sync)
        self._entries = entries
        self.latest = entries[-1][0] if entries else NO_EPOCH


def _encode(entries: Iterable[tuple[int, int]]) -> bytes:
    body = "".join(f"{epoch} {start_offset}\n" for epoch, start_offset in entries).encode()
    return f"{_TITLE} {crc32c(body):08x}\n".encode() + body


def _decode(data: bytes) -> list[tuple[int, int]]:
    head, line_end, body = data.partition(b"\n")
    if not line_end or head != f"{_TITLE} {crc32c(body):08x}".encode():
        raise ValueError("The leader epoch file is damaged")
    entries: list[tuple[int, int]] = []
    for line in body.splitlines():
        epoch, start_offset = line.split()
        entry = int(epoch), int(start_offset)
        if entries and (entry[0] <= entries[-1][0] or entry[1] <= entries[-1][1]):
            raise ValueError(f"The leader epoch file is out of order at epoch {entry[0]}")
        entries.append(entry)
    return entries
