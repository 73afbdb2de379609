"""Records: publish one exactly once by its key, read them from an offset on, find them by time, and delete them."""

from typing import Final

import msgspec

from penstock.errors import Reason
from penstock.operations.operation import (
    ANY_NODE,
    Action,
    Operation,
    Repeat,
    keys_coordinator,
    leader,
    on_any_topic,
    on_each_topic,
    on_topic,
)
from penstock.operations.topics import TopicDescription
from penstock.records.records import Headers, Record
from penstock.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
"""What can be found instead of a time; the numbers are Kafka's."""
TO_HIGH_WATERMARK: Final = -1
"""Delete all records."""


class PublishedOnce(msgspec.Struct, frozen=True):
    """Where the record is; ``duplicate`` when it was there before."""

    partition: int
    offset: int
    timestamp_ms: int
    duplicate: bool = False


class PublishOnce(Operation[PublishedOnce], frozen=True):
    """Append a record unless one with the same idempotency key of the tenant was appended to the topic within the window."""

    topic: str
    idempotency_key: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    tenant: str = ""

    rights = (on_topic(Action.WRITE),)
    belongs_to = keys_coordinator()
    repeat = Repeat.ALWAYS


class FollowTopic(Operation[TopicDescription], frozen=True):
    """Read a topic from now on: the node that was asked reads its own copies of the partitions, and copies those that it lacks."""

    topic: str

    rights = (on_topic(Action.READ),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ReadRecords(Operation[tuple[Record, ...]], frozen=True):
    """Committed records from an offset on, at most so many and about so many bytes.

    Acknowledged records are waited for. At the end nothing is read, and an offset before the first record reads from the first one on
    if ``from_start``; otherwise it is refused.
    """

    topic: str
    partition: int
    offset: int
    max_records: int
    max_bytes: int
    from_start: bool = True

    rights = (on_topic(Action.READ),)
    belongs_to = leader()
    repeat = Repeat.ALWAYS


class OffsetQuery(msgspec.Struct, frozen=True):
    """What to find in one partition: the first record that is not older than a time, or one of the places from LATEST on."""

    topic: str
    partition: int
    timestamp_ms: int
    leader_epoch: int = NO_EPOCH
    """The leader epoch that the caller knows."""


class FoundOffset(msgspec.Struct, frozen=True):
    """An offset, with the time of its record and its leader epoch; all are negative if there is no such record."""

    offset: int = NO_OFFSET
    timestamp_ms: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class FindOffsets(Operation[tuple[FoundOffset | Reason, ...]], frozen=True):
    """Find offsets in partitions that this node leads. Acknowledged records count, even if their commit has to be waited for."""

    queries: tuple[OffsetQuery, ...]
    committed_only: bool = False

    rights = (on_each_topic(Action.DESCRIBE, "queries"),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class EpochQuery(msgspec.Struct, frozen=True):
    """A leader epoch of a partition."""

    topic: str
    partition: int
    epoch: int
    leader_epoch: int = NO_EPOCH
    """The leader epoch that the caller knows."""


class EpochEnd(msgspec.Struct, frozen=True):
    """The nearest epoch at or before the wanted one, and where its records end; both are negative for a later epoch."""

    epoch: int
    end_offset: int


class FindEpochEnds(Operation[tuple[EpochEnd | Reason, ...]], frozen=True):
    """Find where leader epochs end, in partitions that this node leads: a reader learns by it whether records were cut off."""

    queries: tuple[EpochQuery, ...]

    rights = (on_each_topic(Action.DESCRIBE, "queries", or_cluster=Action.CLUSTER_ACTION),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class DeletedRecords(msgspec.Struct, frozen=True):
    """The first offset that any replica that may lead still has, and why it is not known that all of them deleted the records."""

    low_watermark: int
    reason: Reason | None = None


class DeleteRecords(Operation[DeletedRecords], frozen=True):
    """Delete the records before an offset, and wait until every replica that may lead has done it."""

    topic: str
    partition: int
    offset: int
    timeout_ms: int

    rights = (on_topic(Action.DELETE),)
    belongs_to = leader()
    repeat = Repeat.ALWAYS

    def wait_ms_max(self) -> int:
        """As long as the caller has."""
        return self.timeout_ms


class TakeProducerId(Operation[int], frozen=True):
    """An id for an idempotent producer, which no producer had before."""

    rights = (on_any_topic(Action.WRITE, or_cluster=Action.IDEMPOTENT_WRITE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS
