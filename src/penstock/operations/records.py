"""Records: publish one exactly once by its key, and read them from an offset on."""

import msgspec

from penstock.operations.operation import ANY_NODE, Action, Operation, Repeat, keys_coordinator, leader, on_topic
from penstock.operations.topics import TopicDescription
from penstock.records.records import Headers, Record


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
