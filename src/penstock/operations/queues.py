"""Queues: take records by leases, settle them, and look at what is in a queue."""

from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.operations.operation import (
    EVERY_NODE,
    Action,
    Operation,
    Repeat,
    Resource,
    Stream,
    coordinator,
    listing,
    on_cluster,
    on_group,
    on_topic,
)
from penstock.records.records import Headers
from penstock.types import TopicName

_WORK = (on_topic(Action.READ), on_group(Action.READ))
_LOOK = (on_topic(Action.DESCRIBE), on_group(Action.DESCRIBE))


class Delivery(NamedTuple):
    """A record leased to a worker. ``attempts`` counts its deliveries, including this one."""

    topic: TopicName
    partition: int
    offset: int
    attempts: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    last_error: str | None
    lease_until_ms: int


class Lease(Operation[tuple[Delivery, ...]], frozen=True):
    """Lease records once, and wait at most ``wait_ms`` for the first one. The leases outlive the connection."""

    topic: str
    group: str
    owner: str
    max_records: int
    lease_ms: int
    wait_ms: int = 0

    rights = _WORK
    belongs_to = coordinator()

    def wait_ms_max(self) -> int:
        """As long as it waits for the first record."""
        return self.wait_ms


class Consume(Stream[Delivery], frozen=True):
    """Work on a queue: records are leased to the worker as they come, as far as its credit and ``in_flight_max`` allow.

    0 leaves ``in_flight_max`` to the configuration. Leases outlive the stream, unless ``release_on_disconnect``.
    """

    topic: str
    group: str
    owner: str
    lease_ms: int
    in_flight_max: int = 0
    release_on_disconnect: bool = False

    rights = _WORK
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class Ack(Operation[None], frozen=True, gc=False):
    """Finish records that the worker holds, all of them or none."""

    topic: str
    group: str
    owner: str
    partition: int
    offsets: list[int]

    rights = _WORK
    belongs_to = coordinator()


class AckUpTo(Operation[None], frozen=True, gc=False):
    """Finish every record of a partition that the worker holds, up to this one."""

    topic: str
    group: str
    owner: str
    partition: int
    offset: int

    rights = _WORK
    belongs_to = coordinator()


class Nack(Operation[None], frozen=True, gc=False):
    """Return records that failed: each is delivered again after its backoff, or becomes a dead letter."""

    topic: str
    group: str
    owner: str
    partition: int
    offsets: list[int]
    reason: str = ""

    rights = _WORK
    belongs_to = coordinator()


class Extend(Operation[None], frozen=True, gc=False):
    """Keep records for ``lease_ms`` from now."""

    topic: str
    group: str
    owner: str
    partition: int
    offsets: list[int]
    lease_ms: int

    rights = _WORK
    belongs_to = coordinator()


# Looking.


class RecordState(Enum):
    """The state of a record of a queue."""

    UNTOUCHED = "untouched"
    FINISHED = "finished"
    LEASED = "leased"
    WAITING = "waiting"
    READY = "ready"
    MOVING = "moving"


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition of a queue. ``lag`` counts the unfinished records from the floor to the end."""

    partition: int
    floor: int
    end: int
    leased: int
    waiting: int
    ready: int
    moving: int
    finished_above_floor: int
    lag: int


class OwnerStatus(msgspec.Struct, frozen=True):
    """A worker, with the number of its records and of the connections through which it waits for more."""

    owner: str
    leased: int
    workers: int


class QueueStatus(msgspec.Struct, frozen=True):
    """A topic worked by a group. ``lag`` counts its unfinished records, ``in_flight`` those that are leased."""

    topic: str
    group: str
    lag: int
    in_flight: int
    in_flight_max: int
    partitions: tuple[PartitionStatus, ...]
    owners: tuple[OwnerStatus, ...]


class ListQueues(Operation[tuple[QueueStatus, ...]], frozen=True):
    """All queues that the caller may describe, by name."""

    rights = (listing(Resource.TOPIC), listing(Resource.GROUP))
    belongs_to = EVERY_NODE
    repeat = Repeat.ALWAYS


class DescribeQueue(Operation[QueueStatus], frozen=True):
    """One queue."""

    topic: str
    group: str

    rights = _LOOK
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class PeekedRecord(NamedTuple):
    """An unfinished record. ``until_ms`` is when its lease or its wait ends, and 0 if it has none."""

    topic: TopicName
    partition: int
    offset: int
    state: RecordState
    owner: str | None
    until_ms: int
    attempts: int
    last_error: str | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class PeekQueue(Operation[tuple[PeekedRecord, ...]], frozen=True):
    """The next unfinished records of each partition; nothing changes."""

    topic: str
    group: str
    max_records: int

    rights = (*_LOOK, on_topic(Action.READ))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class TouchedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an unfinished record. ``until_ms`` is when its lease or its wait ends."""

    offset: int
    state: RecordState
    attempts: int
    last_error: str
    owner: str | None = None
    until_ms: int | None = None


class KnownStates(msgspec.Struct, frozen=True):
    """The state of the records of one partition. Below ``floor`` all are finished, and so are the runs in ``finished`` (each
    from an offset up to, and without, the second); what is in neither list, below ``next_offset`` or ``end``, is untouched.
    """

    topic: str
    group: str
    partition: int
    floor: int
    end: int
    records: tuple[TouchedRecord, ...]
    finished: tuple[tuple[int, int], ...]
    next_offset: int | None


class DescribeStates(Operation[KnownStates], frozen=True):
    """The states of the records of a partition from an offset on, as many as fit one answer, without the records."""

    topic: str
    group: str
    partition: int
    offset: int = 0

    rights = _LOOK
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class WhyState(Enum):
    """Why a record is not being delivered, in one word."""

    NO_SUCH_TOPIC = "no_such_topic"
    NO_SUCH_PARTITION = "no_such_partition"
    NO_SUCH_GROUP = "no_such_group"
    NO_RECORD = "no_record"
    BEYOND_END = "beyond_end"
    NOT_COMMITTED = "not_committed"
    EXPIRED_BY_RETENTION = "expired_by_retention"
    FINISHED = "finished"
    LEASED = "leased"
    BACKING_OFF = "backing_off"
    DELAYED = "delayed"
    READY = "ready"
    MOVING = "moving"
    DEADLINE_PASSED = "deadline_passed"
    DUPLICATE = "duplicate"
    DEAD_LETTER = "dead_letter"
    FOR_ANOTHER_GROUP = "for_another_group"
    DAMAGED = "damaged"
    NOT_ALLOWED = "not_allowed"


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a record is not being delivered: a word for programs, a sentence for people, and the facts in it."""

    state: WhyState
    sentence: str
    owner: str | None = None
    until_ms: int | None = None
    attempts: int | None = None
    last_error: str | None = None


class ExplainRecord(Operation[Why], frozen=True):
    """Why a record is not being delivered to a group, or to a principal that works in it."""

    topic: str
    partition: int
    offset: int
    group: str
    principal: str | None = None

    rights = (*_LOOK, on_cluster(Action.DESCRIBE, "principal"))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS
