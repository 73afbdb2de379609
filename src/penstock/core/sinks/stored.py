"""The format of the internal topic ``__sinks``: one record per sink, with its name as the key and JSON as the value.

A record is always replaced as a whole, so its fields are consistent: an intent is stored together with the producer epoch of its
batches, and removed by the record that has its batch id as the last one.
"""

from typing import Final
from uuid import UUID

import msgspec

from penstock.types import NO_PRODUCER_ID, Buffer

VERSION: Final = 1
PARTITION: Final = 0
"""The only partition of ``__sinks``."""
STAGING_PARTITION: Final = 0
"""The only partition of a staging topic: one event loop would write all partitions to one disk anyway."""

Range = tuple[int, int]
"""Staged offsets: the first, and the one after the last. They are whole batches without gaps."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The staged records that go to one partition, in this order."""

    topic: str
    topic_id: UUID
    partition: int
    end_offset: int
    """The partition's high watermark when the intent was made: no record of the intent is below it."""
    staged: list[Range]

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(end - start for start, end in self.staged)


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is being appended."""

    batch_id: int
    targets: list[Target]


class StoredSink(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a sink."""

    version: int = VERSION
    since_ms: int
    staging_id: UUID | None = None
    """The staging topic of ``staged_from``; another one of the same name starts at 0."""
    staged_from: int = 0
    """Everything staged below this offset is committed or dropped."""
    last_batch_id: int | None = None
    committed_ms: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    """The epoch of the last intent. Each intent has its own, which distinguishes its batches from all others."""
    intent: Intent | None = None
    remember_ms: int | None = None
    """As requested when the sink was opened; None for the default."""
    used_ms: int | None = None
    """The last use other than a commit, stored from time to time."""

    @property
    def last_used_ms(self) -> int:
        """The last stored use."""
        return max(self.since_ms, self.committed_ms or 0, self.used_ms or 0)


def encode_key(sink: str) -> bytes:
    """A sink's key."""
    return sink.encode()


def encode(stored: StoredSink) -> bytes:
    """A sink's value."""
    return msgspec.json.encode(stored)


def decode(key: Buffer, value: Buffer) -> tuple[str, StoredSink] | None:
    """The name and the state of a sink; None if this version cannot read it."""
    try:
        stored = msgspec.json.decode(value, type=StoredSink)
        name = bytes(key).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return (name, stored) if stored.version == VERSION else None


def merged(ranges: list[Range]) -> list[Range]:
    """The same ranges in the same order, with adjacent ones joined."""
    found: list[Range] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
