"""How a sink lies in the internal topic ``__sinks``: one record a sink, its name as the key, JSON as the value.

The record is replaced as a whole, so what was intended, what is committed and what is staged always fit together: an intent
appears with the epoch under which its batches are appended, and goes with the record that names its batch id as the last.
"""

from typing import Final
from uuid import UUID

import msgspec

from penstock.types import NO_PRODUCER_ID, Buffer

VERSION: Final = 1
PARTITION: Final = 0
"""The only one of ``__sinks``."""
STAGING_PARTITION: Final = 0
"""The only one of a staging topic: all partitions would be written by one event loop to one disk."""

Range = tuple[int, int]
"""Staged offsets: the first, and the one behind the last. Whole batches, back to back."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to one partition: the records of the ranges, in this order."""

    topic: str
    topic_id: UUID
    partition: int
    end_offset: int
    """The partition's high watermark when this was intended: nothing of it lies before."""
    staged: list[Range]

    @property
    def record_count(self) -> int:
        """How many records."""
        return sum(end - start for start, end in self.staged)


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is being appended."""

    batch_id: int
    targets: list[Target]


class StoredSink(msgspec.Struct, frozen=True, kw_only=True):
    """All that outlives the process."""

    version: int = VERSION
    since_ms: int
    staging_id: UUID | None = None
    """The staging topic that ``staged_from`` speaks of; another one of its name starts at 0."""
    staged_from: int = 0
    """Everything staged before is committed or dropped."""
    last_batch_id: int | None = None
    committed_ms: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    """Of the last intent: each has its own, so that its batches are told from those of all others."""
    intent: Intent | None = None
    remember_ms: int | None = None
    """What its opener asked for; None: as long as the settings say."""
    used_ms: int | None = None
    """A use that was no commit, stored now and then."""

    @property
    def last_used_ms(self) -> int:
        """The last use that is stored."""
        return max(self.since_ms, self.committed_ms or 0, self.used_ms or 0)


def encode_key(sink: str) -> bytes:
    """A sink's key."""
    return sink.encode()


def encode(stored: StoredSink) -> bytes:
    """A sink's value."""
    return msgspec.json.encode(stored)


def decode(key: Buffer, value: Buffer) -> tuple[str, StoredSink] | None:
    """A sink and its name; None for one that this version cannot read."""
    try:
        stored = msgspec.json.decode(value, type=StoredSink)
        name = bytes(key).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return (name, stored) if stored.version == VERSION else None


def merged(ranges: list[Range]) -> list[Range]:
    """The same ranges, those that touch made one. Their order stays."""
    found: list[Range] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
