"""Snapshots of the producers, and the state of the producers when a log is opened.

On disk: ``<offset>.snapshot``, the state before that offset (:mod:`penstock.log.producer_state`). The state is a function of
the log, so a snapshot is written without a sync, checked when it is read, and replaced by a replay of the batch headers if it
is missing or damaged. There is one for the start of each segment, because a truncated log needs an older one, and a few that
checkpoints made. A snapshot is synced only before old segments are dropped, because these cannot be replayed any more.

Invariant: no snapshot has an offset above the end of the log. Otherwise it would later be used for other records.
"""

from contextlib import closing
from typing import Final

from penstock.log.checkpoint import NO_PRODUCERS, RecoveryPoint
from penstock.log.names import SNAPSHOT, offset_of, segment_stem
from penstock.log.producer_state import ProducerStates
from penstock.log.segment import Segment, Segments
from penstock.ports import Disk

SNAPSHOTS_KEPT: Final = 2


def snapshot_path(directory: str, offset: int) -> str:
    """Where the snapshot for ``offset`` is."""
    return segment_stem(directory, offset) + SNAPSHOT


def write_snapshot(disk: Disk, path: str, data: bytes) -> None:
    """Write a snapshot. A crash may leave a part of it, which its checksum shows."""
    disk.write_atomic(path, data, sync=False)


def load_snapshot(disk: Disk, path: str) -> ProducerStates:
    """The producers in a snapshot; ValueError when it is damaged."""
    return ProducerStates.decode(disk.read_bytes(path))


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """The offsets of the snapshots on disk, in order."""
    return [offset for name in disk.listdir(directory) if (offset := offset_of(name, SNAPSHOT)) is not None]


def sync_snapshot(disk: Disk, directory: str, offset: int) -> bool:
    """Make the snapshot for ``offset`` durable; False if there is no sound one."""
    path = snapshot_path(directory, offset)
    try:
        load_snapshot(disk, path)
    except (FileNotFoundError, ValueError):
        return False
    with closing(disk.open(path)) as file:
        file.sync()
    disk.sync_dir(directory)
    return True


def keep_producers(disk: Disk, directory: str, items: list[Segment], count: int, now_ms: int) -> int:
    """Before the first ``count`` segments are dropped, their producers must be in a durable snapshot.

    Returns how many may be dropped: fewer if there is no space for a new snapshot and an older one exists.
    """
    offset = items[count].base_offset
    if sync_snapshot(disk, directory, offset):
        return count
    # A power failure lost the one that was made when the segment was closed, or the disk was full then.
    states = load_producers(disk, directory, Segments(items[:count]), None, offset, now_ms)
    try:
        disk.write_atomic(snapshot_path(directory, offset), states.encode())
    except OSError:
        for fewer in range(count - 1, 0, -1):
            if sync_snapshot(disk, directory, items[fewer].base_offset):
                return fewer
        raise
    return count


def drop_old_snapshots(disk: Disk, directory: str, needed: frozenset[int]) -> None:
    """Keep the snapshots at ``needed`` offsets, and the newest few of the others."""
    others = [offset for offset in snapshot_offsets(disk, directory) if offset not in needed]
    for offset in others[:-SNAPSHOTS_KEPT]:
        disk.remove(snapshot_path(directory, offset))


def drop_snapshots_below(disk: Disk, directory: str, offset: int) -> None:
    """The log starts at ``offset`` or later: remove older snapshots."""
    for found in snapshot_offsets(disk, directory):
        if found < offset:
            disk.remove(snapshot_path(directory, found))


def drop_snapshots_above(disk: Disk, directory: str, offset: int) -> None:
    """The log ends at ``offset``: later snapshots must not be found again, not even after a power failure."""
    wrong = [found for found in snapshot_offsets(disk, directory) if found > offset]
    for found in wrong:
        disk.remove(snapshot_path(directory, found))
    if wrong:
        disk.sync_dir(directory)


def load_producers(
    disk: Disk, directory: str, segments: Segments, point: RecoveryPoint | None, next_offset: int, now_ms: int
) -> ProducerStates:
    """The producers at ``next_offset``."""
    states, replay_from, snapshot_offset = _start_of_replay(disk, directory, point, next_offset)
    states.snapshot_offset = snapshot_offset
    if replay_from is None:
        replay_from = segments.items[0].base_offset
    for header in segments.headers_from(replay_from):
        if header.producer_id >= 0:
            states.update(header, header.base_offset, now_ms)
    return states


def _start_of_replay(
    disk: Disk, directory: str, point: RecoveryPoint | None, next_offset: int
) -> tuple[ProducerStates, int | None, int]:
    """A state to start from, the first offset to replay (None: the first one on disk), and the offset of its snapshot."""
    known_to = -1 if point is None or point.offset > next_offset else point.offset
    for offset in reversed(snapshot_offsets(disk, directory)):
        if offset > next_offset:
            continue
        if point is not None and offset <= known_to and point.snapshot_offset == NO_PRODUCERS:
            # Older than the point at which no producer was known.
            break
        try:
            states = load_snapshot(disk, snapshot_path(directory, offset))
        except (OSError, ValueError):
            continue
        if point is not None and offset == point.snapshot_offset:
            return states, max(offset, known_to), offset
        return states, offset, offset
    if point is not None and known_to >= 0 and point.snapshot_offset == NO_PRODUCERS:
        return ProducerStates(), known_to, NO_PRODUCERS
    return ProducerStates(), None, NO_PRODUCERS
