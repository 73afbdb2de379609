"""What the files of one partition are called.

A segment's files carry the offset that it starts at, in twenty digits, so that names sort as offsets do. A suffix behind the
usual one marks work that a crash may have interrupted; :mod:`penstock.log.recovery` finishes or removes it.
"""

from typing import Final

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX)

DELETED: Final = ".deleted"
"""On its way out: nobody reads it any more."""
CLEANED: Final = ".cleaned"
"""Being written by compaction: worthless until it is renamed."""
SWAP: Final = ".swap"
"""Whole and synced, about to take the place of the segments it was made from."""

LEADER_EPOCHS: Final = "leader-epochs"
START_OFFSET: Final = "start-offset"
CUT: Final = "cut"
"""The log was cut back below its checkpoint; recovery must start no later than it says."""

OFFSET_DIGITS: Final = 20


def segment_stem(directory: str, base_offset: int) -> str:
    """The path of a segment without suffix."""
    return f"{directory}/{base_offset:020d}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file name that ends in ``suffix``; None for any other name."""
    digits = name[: -len(suffix)]
    if name.endswith(suffix) and len(digits) == OFFSET_DIGITS and digits.isascii() and digits.isdigit():
        return int(digits)
    return None
