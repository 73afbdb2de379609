"""The topics and partitions in a consumer's metadata.

The metadata of a member is opaque. If the protocol type is ``consumer`` it starts, in every version, with an int16 version and an
array of topics. With these, offsets of topics that are no longer read can expire, offsets in use cannot be deleted, and a
restarted static member keeps its assignment only if its topics have not changed.
"""

from typing import Final

from penstock.core.coordinators.topic import UnreadableRecord
from penstock.core.groups.stored import Reader

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_NAME_BYTES_MIN: Final = 2
_TOPIC_BYTES_MIN: Final = 6
_PARTITION_BYTES: Final = 4


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription; None if it is not one."""
    reader = Reader(metadata)
    try:
        reader.int16()
        return frozenset(_name(reader) for _ in range(reader.count(_NAME_BYTES_MIN)))
    except UnreadableRecord:
        return None


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The partitions in a consumer's assignment, by topic; empty if it is not one."""
    reader = Reader(assignment)
    try:
        reader.int16()
        return tuple(
            (_name(reader), tuple(reader.int32() for _ in range(reader.count(_PARTITION_BYTES))))
            for _ in range(reader.count(_TOPIC_BYTES_MIN))
        )
    except UnreadableRecord:
        return ()


def _name(reader: Reader) -> str:
    name = reader.nullable_string()
    if name is None:
        raise UnreadableRecord("A topic has no name")
    return name
