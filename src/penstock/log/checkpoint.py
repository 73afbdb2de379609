"""Up to where every log is known to be sound and synced, so that a start need not scan all data.

On disk (``recovery.checkpoint`` in the data folder), text, replaced as a whole::

    penstock-checkpoint 1 <clean|running> <CRC-32C of the lines below, 8 hex digits>
    <topic id, 32 hex digits> <partition> <segment base> <offset> <position> <snapshot offset>
    ...

It is ``clean`` only between an orderly stop and the next start. A checkpoint saves time: without it every log is scanned
from its beginning. It also says what was synced for certain, so that recovery can tell an unfinished write from damage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from penstock.ports import Disk

NO_PRODUCERS: Final = -1
"""Instead of a snapshot's offset: no producer was known at the recovery point."""
SNAPSHOT_UNKNOWN: Final = -2
"""Instead of a snapshot's offset: look for the newest sound snapshot."""

_TITLE: Final = "penstock-checkpoint 1"
_STATES: Final = {"clean": True, "running": False}


class LogKey(NamedTuple):
    """A topic and a partition."""

    topic_id: UUID
    partition: int


class RecoveryPoint(NamedTuple):
    """Everything before ``offset`` is sound and synced; ``offset`` is at ``position`` of the segment ``segment_base``."""

    segment_base: int
    offset: int
    position: int
    snapshot_offset: int
    """Which snapshot has the producers at ``offset``; if the snapshot is newer, replay starts there."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the checkpoint file."""

    points: Mapping[LogKey, RecoveryPoint]
    clean: bool


def save_checkpoint(disk: Disk, path: str, checkpoint: Checkpoint) -> None:
    """Replace the file. It is durable when this returns."""
    lines = [
        f"{key.topic_id.hex} {key.partition} {point[0]} {point[1]} {point[2]} {point[3]}\n"
        for key, point in checkpoint.points.items()
    ]
    body = "".join(lines).encode()
    state = "clean" if checkpoint.clean else "running"
    disk.write_atomic(path, f"{_TITLE} {state} {crc32c(body):08x}\n".encode() + body)


def load_checkpoint(disk: Disk, path: str) -> Checkpoint:
    """Read the file; without a file, no points and not clean. Raises ValueError if it is damaged."""
    if not disk.exists(path):
        return Checkpoint({}, clean=False)
    head, line_end, body = disk.read_bytes(path).partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if not line_end or len(words) != 4 or " ".join(words[:2]) != _TITLE or words[2] not in _STATES:
        raise ValueError("This is not a checkpoint file")
    if words[3] != f"{crc32c(body):08x}":
        raise ValueError("The checksum does not match")
    points: dict[LogKey, RecoveryPoint] = {}
    for line in body.decode("ascii").splitlines():
        topic_id, partition, base, offset, position, snapshot_offset = line.split(" ")
        key = LogKey(UUID(hex=topic_id), int(partition))
        points[key] = RecoveryPoint(int(base), int(offset), int(position), int(snapshot_offset))
    return Checkpoint(points, clean=_STATES[words[2]])
