"""Where the log of an observer lies: under an id of its own, made from the topic's, so that it is never taken for a replica's.

A replica has all that its leader has. An observer begins where its first reader wants to begin, so its log may lack the beginning. Ids of topics
are UUIDs of version 4; those of observers' logs are of version 8. What a process leaves of them is of no use to the next one.
"""

from typing import Final
from uuid import UUID

_VERSION_SHIFT: Final = 76
_VERSION_MASK: Final = 0xF << _VERSION_SHIFT
_OBSERVED: Final = 8 << _VERSION_SHIFT


def observed_id(topic_id: UUID) -> UUID:
    """The id under which an observer keeps what it has of a topic."""
    return UUID(int=(topic_id.int & ~_VERSION_MASK) | _OBSERVED)


def is_observed_id(topic_id: UUID) -> bool:
    """Whether it is one."""
    return topic_id.int & _VERSION_MASK == _OBSERVED


class Observed:
    """One partition that is observed here."""

    __slots__ = ("asked_ms", "from_offset", "has_begun")

    def __init__(self, from_offset: int, asked_ms: int) -> None:
        self.from_offset = from_offset
        """What lies before it nobody here wants to read."""
        self.asked_ms = asked_ms
        """When it was last asked for, in monotonic time."""
        self.has_begun = False
