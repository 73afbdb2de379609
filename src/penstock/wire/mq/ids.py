"""The ids of messages: UUIDs, because clients of the mq service parse them as such. A record has the same id each time.

An id is made of the topic's id, the partition and the offset, with no lookup and no hash, since every message has one. It is a UUID of
version 8 (RFC 9562, "custom"). From the left: 60 bits, which are the first 60 free bits of the topic's id plus the partition;
then the offset, in the 62 bits that follow the variant. So an id also tells which record it is of: see :func:`partition_of`.
"""

from typing import Final, NamedTuple
from uuid import RFC_4122, UUID

_PLACE_BITS: Final = 60
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1
_OFFSET_MASK: Final = (1 << 62) - 1
"""No log gets as long as this: at a million records a second it takes 146,000 years."""
USUAL_OFFSETS: Final = 1 << 48
"""Offsets that fit the last group of digits."""
_VARIANT: Final = 1 << 63
_VERSION: Final = 8
_LOW_BITS: Final = 12
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


class MessageIds:
    """The ids of one partition's records."""

    __slots__ = ("_prefix", "usual_prefix")

    def __init__(self, topic_id: UUID, partition: int) -> None:
        place = (_place(topic_id) + partition) & _PLACE_MASK
        high, low = place >> _LOW_BITS, place & _LOW_MASK
        self._prefix = b"%08x-%04x-%x%03x-" % (high >> 16, high & 0xFFFF, _VERSION, low)
        self.usual_prefix: Final = self._prefix + b"8000-"
        """What comes before the last twelve digits, which are the offset if it is below :data:`USUAL_OFFSETS`."""

    def of(self, offset: int) -> bytes:
        """The id of a record as ASCII text, always 36 characters."""
        if offset < USUAL_OFFSETS:
            return b"%b%012x" % (self.usual_prefix, offset)
        digits = b"%016x" % (offset & _OFFSET_MASK | _VARIANT)
        return b"%b%b-%b" % (self._prefix, digits[:4], digits[4:])


class Parsed(NamedTuple):
    """What an id says. ``place`` is compared with topics by :func:`partition_of`."""

    place: int
    offset: int


def parse(text: str) -> Parsed | None:
    """What an id says; None for a text that is no id of ours."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    if found.version != _VERSION or found.variant != RFC_4122:
        return None
    return Parsed(_place(found), found.int & _OFFSET_MASK)


def partition_of(parsed: Parsed, topic_id: UUID, partition_count: int) -> int | None:
    """The partition of a topic that the record is in; None when it is not in this topic."""
    partition = (parsed.place - _place(topic_id)) & _PLACE_MASK
    return partition if partition < partition_count else None


def _place(found: UUID) -> int:
    """The bits before the variant, without the version."""
    return (found.int >> 80) << _LOW_BITS | (found.int >> 64) & _LOW_MASK
