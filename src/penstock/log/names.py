"""The names of the files of one partition.

The names of a segment's files contain its first offset in twenty digits, so that names sort as offsets do. An additional
suffix marks work that a crash may have interrupted; :mod:`penstock.log.recovery` completes or removes it.
"""

from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX)

DELETED: Final = ".deleted"
"""Dropped by retention, with all segments before it; removed when that is durable."""
CLEANED: Final = ".cleaned"
"""Being written by compaction: worthless until it is renamed."""
SWAP: Final = ".swap"
"""Whole and synced, about to replace the segments it was made from: ``<base offset>-<next offset>.swap``."""
TEMPORARY: Final = ".tmp"
"""Being written by :meth:`penstock.ports.Disk.write_atomic`."""

LEADER_EPOCHS: Final = "leader-epochs"
START_OFFSET: Final = "start-offset"
START_OFFSET_TITLE: Final = "penstock-start-offset"
CUT: Final = "cut"
"""The log was truncated below its checkpoint; recovery must start no later than it says."""
CUT_TITLE: Final = "penstock-cut"
CLEAN_OFFSET: Final = "clean-offset"
"""Up to where the log is compacted."""
CLEAN_OFFSET_TITLE: Final = "penstock-clean-offset"

OFFSET_DIGITS: Final = 20
FOLDER_DEPTH: Final = 3
"""data/topics/<topic>/<partition>: how many folders above a log may have been made with it."""


def folders_above(directory: str) -> list[str]:
    """The folders whose names must be durable before anything in ``directory`` is, highest first."""
    above: list[str] = []
    for _ in range(FOLDER_DEPTH):
        directory = directory.rpartition("/")[0]
        if directory:
            above.insert(0, directory)
    return above


def segment_stem(directory: str, base_offset: int) -> str:
    """The path of a segment without suffix."""
    return f"{directory}/{base_offset:020d}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file name that ends with ``suffix``; None for any other name."""
    digits = name[: -len(suffix)]
    if name.endswith(suffix) and len(digits) == OFFSET_DIGITS and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def swap_path(directory: str, base_offset: int, next_offset: int) -> str:
    """The name of a cleaned segment that replaces everything from ``base_offset`` to ``next_offset`` (excluded)."""
    return f"{directory}/{base_offset:020d}-{next_offset:020d}{SWAP}"


def swap_range(name: str) -> tuple[int, int] | None:
    """The offsets in such a name; None for any other name."""
    first, dash, rest = name.partition("-")
    base_offset, next_offset = offset_of(first + LOG, LOG), offset_of(rest, SWAP)
    if not dash or base_offset is None or next_offset is None:
        return None
    return base_offset, next_offset
