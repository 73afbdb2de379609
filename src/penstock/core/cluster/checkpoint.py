"""The high watermarks of a node over a restart. Without them, readers would see fewer records than before until all followers have fetched.

On disk (``high-watermarks.checkpoint`` in the data folder), text, replaced as a whole::

    penstock-high-watermarks 1 <CRC-32C of the lines below, 8 hex digits>
    <topic id, 32 hex digits> <partition> <offset>
    ...

The file may be outdated or missing: every offset in it was committed when it was written. If a log ends earlier, the log counts.
"""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from crc32c import crc32c

from penstock.core.cluster.replicas import TopicIdPartition
from penstock.ports import Disk, Report

FILE: Final = "high-watermarks.checkpoint"
_TITLE: Final = "penstock-high-watermarks 1"


def save(disk: Disk, path: str, marks: Mapping[TopicIdPartition, int]) -> None:
    """Replace the file, durably. After an OSError, the old one is still there."""
    lines = "".join(f"{place.topic_id.hex} {place.partition} {offset}\n" for place, offset in marks.items()).encode()
    disk.write_atomic(path, f"{_TITLE} {crc32c(lines):08x}\n".encode() + lines)


def load(disk: Disk, path: str, report: Report) -> dict[TopicIdPartition, int]:
    """The saved high watermarks; none, with a report, if the file is damaged."""
    if not disk.exists(path):
        return {}
    try:
        title, lines = bytes(disk.read_bytes(path)).split(b"\n", 1)
        if title.decode() != f"{_TITLE} {crc32c(lines):08x}":
            raise ValueError("The checksum does not match")
        found = (line.split() for line in lines.decode().splitlines())
        return {
            TopicIdPartition(UUID(hex=topic_id), int(partition)): int(offset) for topic_id, partition, offset in found
        }
    except (OSError, ValueError) as error:
        report(f"{path}: {error}; the high watermarks are taken from the other nodes")
        return {}
