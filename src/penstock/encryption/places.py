"""What each path of a data directory is, and what its content is bound to.

A segment is bound to its topic, partition and base offset, whatever suffix says what happens to it; a small file to its path.
"""

from typing import Final

from penstock.log.names import CLEANED, DELETED, LOG, OFFSET_DIGITS, SWAP

_SEGMENT_SUFFIXES: Final = (LOG, LOG + CLEANED, LOG + DELETED, SWAP)


def is_segment(path: str) -> bool:
    """Whether the file has batches, so that it is encrypted position by position."""
    return path.endswith(_SEGMENT_SUFFIXES)


def segment_place(path: str) -> bytes:
    """Topic, partition and base offset of a segment, the same under all its names."""
    directory, _, name = path.rpartition("/")
    return "/".join([*directory.split("/")[-2:], name[:OFFSET_DIGITS]]).encode()


def small_place(path: str, root: str) -> bytes:
    """What a small file is bound to: its path in the data directory."""
    return path.removeprefix(root).lstrip("/").encode()
