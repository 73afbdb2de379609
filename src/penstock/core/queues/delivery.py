"""What queues tell: the records they hand out, how they stand, and what a person may ask of one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.errors import Reason
from penstock.records.records import Headers
from penstock.types import GroupId, TopicName

Done = Callable[[Reason | None], None]
"""Told None once what was asked for is durable, else why it did not happen."""
Cancel = Callable[[], None]
"""Nobody wants the answer any more; fine after it has come."""

ACK_TIMEOUT = "ack_timeout"
OWNER_DISCONNECTED = "owner_disconnected"
DEADLINE_EXCEEDED = "deadline_exceeded"


class Delivery(NamedTuple):
    """A record leased to a worker. ``attempts`` counts its deliveries, this one too."""

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


class RecordState(Enum):
    """Where a record of a queue stands; the values are words for people."""

    UNTOUCHED = "untouched"
    FINISHED = "finished"
    LEASED = "leased"
    WAITING = "waiting"
    READY = "ready"
    MOVING = "moving"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of a queue. ``lag`` are the records from the floor to the end that are not finished."""

    partition: int
    floor: int
    end: int
    leased: int
    waiting: int
    ready: int
    moving: int
    finished_above_floor: int
    lag: int


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """Who works a queue: how many records it holds, and through how many connections it waits for more."""

    owner: str
    leased: int
    workers: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue."""

    topic: TopicName
    group: GroupId
    partitions: tuple[PartitionStatus, ...]
    owners: tuple[OwnerStatus, ...]
    in_flight_max: int

    @property
    def in_flight(self) -> int:
        """Leased records of all partitions."""
        return sum(partition.leased for partition in self.partitions)

    @property
    def lag(self) -> int:
        """Of all partitions."""
        return sum(partition.lag for partition in self.partitions)


class PeekedRecord(NamedTuple):
    """An unfinished record, looked at and left as it is. ``until_ms`` is 0 where nothing is waited for."""

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


class TouchedRecord(NamedTuple):
    """What a queue knows of an unfinished record that something happened to. ``until_ms`` is 0 where nothing is waited for."""

    offset: int
    state: RecordState
    owner: str | None
    until_ms: int
    attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class KnownStates:
    """What a queue knows of the records of one partition, without the records: what is not told here is untouched.

    All below ``floor`` is finished. ``finished`` are runs of offsets above it, each with the offset behind its last. What is told goes up
    to ``next_offset``, or with None to the end.
    """

    partition: int
    floor: int
    end: int
    touched: tuple[TouchedRecord, ...]
    finished: tuple[tuple[int, int], ...]
    next_offset: int | None


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


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to "why is this record not delivered?": a word for programs, a sentence for people."""

    state: WhyState
    sentence: str
    owner: str | None = None
    until_ms: int | None = None
    attempts: int | None = None
    last_error: str | None = None
