"""Which leader epoch began at which offset of one partition.

With it a replica or a consumer that followed an older leader finds where its history parts from this one
(OffsetForLeaderEpoch), and what it must cut.

Invariant: epochs and start offsets both grow strictly from entry to entry, and an epoch that got no record leaves no entry
behind once the next one begins at the same offset. The file and the memory say the same whenever a call has returned.

On disk (``leader-epochs``), text, replaced as a whole::

    penstock-epochs 1 <CRC-32C of the lines below, 8 hex digits>
    <epoch> <start offset>
    ...

The file only saves time: every batch header carries its epoch, so :meth:`EpochHistory.rebuild` can make it again.
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
    """The epochs of one partition, oldest first. ``latest`` is the newest one's number, -1 when there is none."""

    __slots__ = ("_disk", "_entries", "_path", "latest")

    def __init__(self, disk: Disk, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._disk = disk
        self._path = path
        self._entries = list(entries)
        self.latest: int = self._entries[-1][0] if self._entries else NO_EPOCH

    @classmethod
    def load(cls, disk: Disk, path: str) -> "EpochHistory":
        """The history in the file, empty when there is no file; ValueError when it is damaged: then :meth:`rebuild`."""
        if not disk.exists(path):
            return cls(disk, path)
        return cls(disk, path, _decode(disk.read_bytes(path)))

    @classmethod
    def rebuild(cls, disk: Disk, path: str, batches: Iterable[tuple[int, int]]) -> "EpochHistory":
        """The history told by the (leader epoch, base offset) of all batches in log order; it replaces the file."""
        entries: list[tuple[int, int]] = []
        latest = NO_EPOCH
        for epoch, base_offset in batches:
            if epoch > latest:
                entries.append((epoch, base_offset))
                latest = epoch
        history = cls(disk, path, entries)
        history._save()
        return history

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, start offset), oldest first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """``epoch`` begins at ``start_offset``. An epoch that is not newer changes nothing.

        The file is written but not synced, for the event loop must not wait: the log's next sync takes it along, and until
        then the batches themselves say their epoch.
        """
        if epoch <= self.latest:
            return
        assert start_offset >= 0
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)], sync=False)

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The greatest known epoch up to ``epoch``, and the offset behind its last record; (-1, -1) when ``epoch`` is newer
        than any known one. Of an epoch before all known ones the records are gone: it ends where the first known one begins.
        """
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end
        above = bisect_right(self._entries, epoch, key=_epoch_of)
        end_offset = self._entries[above][1]
        return (self._entries[above - 1][0] if above else epoch), end_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the record at ``offset`` was written; -1 when it is before the first known one."""
        above = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[above - 1][0] if above else NO_EPOCH

    def begins_at_or_above(self, offset: int) -> bool:
        """Whether the latest epoch began at ``offset`` or later."""
        return bool(self._entries) and self._entries[-1][1] >= offset

    def truncate_from_end(self, offset: int) -> None:
        """The log was cut to end at ``offset``: forget epochs that began there or later."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        if len(kept) != len(self._entries):
            self._replace(kept, sync=True)

    def truncate_from_start(self, offset: int) -> None:
        """The log now starts at ``offset``: forget epochs that ended before it; the one it falls into starts there."""
        above = bisect_right(self._entries, offset, key=_start_of)
        if above == 0 or (above == 1 and self._entries[0][1] == offset):
            return
        self._replace([(self._entries[above - 1][0], offset), *self._entries[above:]], sync=False)

    def _replace(self, entries: list[tuple[int, int]], *, sync: bool) -> None:
        # The file first: when the disk refuses, the memory still says what the file says.
        self._disk.write_atomic(self._path, _encode(entries), sync=sync)
        self._entries = entries
        self.latest = entries[-1][0] if entries else NO_EPOCH

    def _save(self) -> None:
        self._disk.write_atomic(self._path, _encode(self._entries))


def _encode(entries: Iterable[tuple[int, int]]) -> bytes:
    body = "".join(f"{epoch} {start_offset}\n" for epoch, start_offset in entries).encode()
    return f"{_TITLE} {crc32c(body):08x}\n".encode() + body


def _decode(data: bytes) -> list[tuple[int, int]]:
    head, line_end, body = data.partition(b"\n")
    if not line_end or head != f"{_TITLE} {crc32c(body):08x}".encode():
        raise ValueError("the leader epoch file is damaged")
    entries: list[tuple[int, int]] = []
    for line in body.splitlines():
        epoch, start_offset = line.split()
        entry = int(epoch), int(start_offset)
        if entries and (entry[0] <= entries[-1][0] or entry[1] <= entries[-1][1]):
            raise ValueError(f"the leader epoch file is out of order at epoch {entry[0]}")
        entries.append(entry)
    return entries
