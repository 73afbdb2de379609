"""Small durable facts about one log, each a line of numbers in a separate file, with a checksum.

The line: ``<title> 1 <CRC-32C of the numbers, 8 hex digits> <number> ...``
"""

from crc32c import crc32c

from penstock.ports import Disk


def write_note(disk: Disk, path: str, title: str, *numbers: int, sync: bool = True) -> None:
    """Replace the note. Durable when this returns, unless ``sync`` is false: a power failure may leave the old one, or none."""
    body = " ".join(map(str, numbers))
    disk.write_atomic(path, f"{title} 1 {crc32c(body.encode()):08x} {body}\n".encode(), sync=sync)


def read_note(disk: Disk, path: str, title: str, count: int) -> tuple[int, ...] | None:
    """The ``count`` numbers in it; None if there is no note or it is damaged."""
    if not disk.exists(path):
        return None
    words = disk.read_bytes(path).decode("ascii", "replace").rstrip("\n").split(" ")
    body = " ".join(words[3:])
    if len(words) != 3 + count or words[:3] != [title, "1", f"{crc32c(body.encode()):08x}"]:
        return None
    return tuple(int(word) for word in words[3:])
