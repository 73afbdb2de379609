"""Topics: list, create, describe and delete them, and their statistics."""

from uuid import UUID

import msgspec

from penstock.operations.operation import (
    ANY_NODE,
    EVERY_NODE,
    Action,
    Operation,
    Repeat,
    Resource,
    leader,
    listing,
    on_topic,
)


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic."""

    name: str
    topic_id: UUID
    partition_count: int
    replication_factor: int
    retention_ms: int
    retention_bytes: int
    created_ms: int
    updated_ms: int
    configs: dict[str, str] = {}
    """What was set on the topic itself."""


class PartitionDescription(msgspec.Struct, frozen=True):
    """The leader and the replicas of a partition; a partition without a leader has a negative one."""

    partition: int
    leader: int
    replicas: tuple[int, ...]


class TopicDetails(msgspec.Struct, frozen=True):
    """A topic with its partitions."""

    topic: TopicDescription
    partitions: tuple[PartitionDescription, ...]


class ListTopics(Operation[tuple[TopicDescription, ...]], frozen=True):
    """All topics that the caller may describe, by name; internal topics are left out."""

    rights = (listing(Resource.TOPIC),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ListTopicNames(Operation[tuple[str, ...]], frozen=True):
    """The names of topics that the caller may describe, with the internal ones, from a name on and at most so many."""

    start: str
    count_max: int

    rights = (listing(Resource.TOPIC),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class FindTopic(Operation[UUID], frozen=True):
    """The id of a topic."""

    topic: str

    rights = (on_topic(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class CreateTopic(Operation[TopicDescription], frozen=True):
    """Create a topic. One that exists with everything that is asked for is returned unchanged, unless the topic must be new; anything else
    is a conflict.

    What is None is not asked for: the topic gets it from ``defaults`` when it is created, and it cannot conflict.
    """

    topic: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: dict[str, str | None] = msgspec.field(default_factory=dict)
    default_partitions: int | None = None
    default_replication_factor: int | None = None
    default_configs: dict[str, str | None] = msgspec.field(default_factory=dict)
    assignments: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """The nodes of each partition, instead of both numbers."""
    must_be_new: bool = False
    validate_only: bool = False
    over_quota: bool = False
    """Carry it out even if the caller owes for earlier changes, because its client does not know the refusal: it is slowed down instead."""

    rights = (on_topic(Action.CREATE, or_cluster=Action.CREATE),)
    belongs_to = ANY_NODE


class AddPartitions(Operation[None], frozen=True):
    """Give a topic more partitions, of which it has ``count`` in all then."""

    topic: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None
    """The nodes of each new partition."""
    validate_only: bool = False
    over_quota: bool = False
    """Carry it out even if the caller owes for earlier changes, because its client does not know the refusal: it is slowed down instead."""

    rights = (on_topic(Action.ALTER),)
    belongs_to = ANY_NODE


class DeleteTopic(Operation[str], frozen=True):
    """Delete a topic with its records, offsets and leases; its name is returned."""

    topic: str
    over_quota: bool = False
    """Carry it out even if the caller owes for earlier changes, because its client does not know the refusal: it is slowed down instead."""

    rights = (on_topic(Action.DELETE, or_cluster=Action.DELETE),)
    belongs_to = ANY_NODE


class DescribeTopic(Operation[TopicDetails], frozen=True):
    """A topic and its partitions."""

    topic: str

    rights = (on_topic(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class PartitionOffsets(msgspec.Struct, frozen=True):
    """Offsets from ``start_offset`` up to, and without, ``high_watermark`` can be read."""

    start_offset: int
    high_watermark: int


class DescribePartition(Operation[PartitionOffsets], frozen=True):
    """Where a partition begins and ends. Acknowledged records count, even if their commit has to be waited for."""

    topic: str
    partition: int

    rights = (on_topic(Action.DESCRIBE),)
    belongs_to = leader()
    repeat = Repeat.ALWAYS


# Statistics.


class PartitionStats(msgspec.Struct, frozen=True):
    """One partition. Values that are null are not known, because its log is not open yet."""

    partition: int
    leader: int
    start_offset: int | None
    end_offset: int | None
    records: int | None
    size_bytes: int | None
    segments: int | None
    failed: bool = False


class FlowStats(msgspec.Struct, frozen=True):
    """What went through one gateway since the start."""

    gateway: str
    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int


class TopicStats(msgspec.Struct, frozen=True):
    """A topic in numbers. Sums are over the partitions that are known; flows are counted from the broker's start."""

    topic: str
    topic_id: UUID
    records: int
    size_bytes: int
    segments: int
    partitions_unknown: int
    records_in_per_second: float
    bytes_in_per_second: float
    records_out_per_second: float
    bytes_out_per_second: float
    partitions: tuple[PartitionStats, ...]
    flows: tuple[FlowStats, ...]


class DescribeTopicStats(Operation[TopicStats], frozen=True):
    """Sizes, offsets and rates of a topic."""

    topic: str

    rights = (on_topic(Action.DESCRIBE),)
    belongs_to = EVERY_NODE
    repeat = Repeat.ALWAYS
