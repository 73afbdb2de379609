"""Observers: copies of partitions on nodes that are not replicas. Their logs have ids of their own, so they are never taken for replicas.

A replica has all records of its leader. An observer begins at the offset that its first reader needs, so its log may lack older records.
Ids of topics are UUIDs of version 4; those of observers' logs are derived from them, with version 8. They are removed at each start.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

_VERSION_SHIFT: Final = 76
_VERSION_MASK: Final = 0xF << _VERSION_SHIFT
_OBSERVED: Final = 8 << _VERSION_SHIFT


def observed_id(topic_id: UUID) -> UUID:
    """The id of an observer's logs of a topic."""
    return UUID(int=(topic_id.int & ~_VERSION_MASK) | _OBSERVED)


def is_observed_id(topic_id: UUID) -> bool:
    """Whether this is the id of an observer's log."""
    return topic_id.int & _VERSION_MASK == _OBSERVED


@dataclass(slots=True)
class Observed:
    """One partition that this node observes."""

    from_offset: int
    """Readers here need records from this offset on."""
    asked_ms: int
    """The monotonic time of the last read request."""
    has_begun: bool = False
