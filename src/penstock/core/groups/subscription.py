"""The little these rules read of a member's own bytes: which topics a consumer subscribed to, and which partitions it was given.

A member's metadata is opaque. Where the protocol type is ``consumer`` it starts, in every version, with an int16 version and
an array of topic names. Knowing them lets offsets of topics that nobody reads any more expire, keeps an administrator from
deleting offsets in use, and tells a static member that came back with other topics from one that did not change.
"""

from struct import Struct, error, unpack_from
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_COUNT: Final = Struct(">i")
_LENGTH: Final = Struct(">h")
_COUNT_AT: Final = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription; None when the bytes are something else."""
    try:
        (count,) = _COUNT.unpack_from(metadata, _COUNT_AT)
        at = _COUNT_AT + _COUNT.size
        if count < 0 or count * _LENGTH.size > len(metadata) - at:
            return None
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(metadata):
                return None
            topics.append(metadata[at : at + length].decode())
            at += length
    except (error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The partitions that a consumer was given, by topic; nothing when the bytes are something else.

    In every version an int16 version, then an array of topics with an array of partitions each.
    """
    found: list[tuple[str, tuple[int, ...]]] = []
    try:
        (topics,) = _COUNT.unpack_from(assignment, _COUNT_AT)
        at = _COUNT_AT + _COUNT.size
        if topics < 0 or topics * (_LENGTH.size + _COUNT.size) > len(assignment) - at:
            return ()
        for _ in range(topics):
            (length,) = _LENGTH.unpack_from(assignment, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(assignment):
                return ()
            name = assignment[at : at + length].decode()
            at += length
            (count,) = _COUNT.unpack_from(assignment, at)
            at += _COUNT.size
            if count < 0 or count * _COUNT.size > len(assignment) - at:
                return ()
            found.append((name, unpack_from(f">{count}i", assignment, at)))
            at += count * _COUNT.size
    except (error, UnicodeDecodeError):
        return ()
    return tuple(found)
