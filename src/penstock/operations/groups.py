"""Consumer groups: their offsets, their members, and their statistics. Kafka's own group calls have their own types in the core."""

from uuid import UUID

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
    on_group,
    on_topic,
)
from penstock.operations.queues import QueueStatus


class CommitOffset(Operation[None], frozen=True):
    """Set the offset that a group reads next in a partition. It may go back, and it may be past the end."""

    group: str
    topic: str
    partition: int
    offset: int

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()


class GroupOffset(msgspec.Struct, frozen=True):
    """The offset that a group reads next in a partition, and when it was committed."""

    topic: str
    partition: int
    offset: int
    commit_ms: int


class FetchOffsets(Operation[tuple[GroupOffset, ...]], frozen=True):
    """The committed offsets of a group by topic and partition: all, of one topic, or of one partition."""

    group: str
    topic: str | None = None
    partition: int | None = None

    rights = (on_group(Action.DESCRIBE), on_topic(Action.DESCRIBE))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class Registration(msgspec.Struct, frozen=True):
    """A group that is registered for a topic."""

    group_id: UUID
    created_ms: int


class RegisterGroup(Operation[Registration], frozen=True):
    """Give a group offset 0 in each partition of a topic in which it has no offset. The topic need not exist yet."""

    group: str
    topic: str

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


# Members whose partitions the broker assigns.


class JoinGroup(Operation[tuple[int, ...]], frozen=True):
    """Join a group, or stay in it; the partitions of the topic that the member gets are returned."""

    group: str
    topic: str
    consumer_id: str
    session_timeout_ms: int

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class Heartbeat(Operation[tuple[int, ...] | None], frozen=True):
    """Keep a member in its group. Its partitions are returned if a topic is given."""

    group: str
    consumer_id: str
    topic: str | None = None

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class LeaveGroup(Operation[None], frozen=True):
    """Give a member's partitions to the others."""

    group: str
    consumer_id: str

    rights = (on_group(Action.READ),)
    belongs_to = coordinator()


class Assignment(msgspec.Struct, frozen=True):
    """The partitions of a member, with the offset that the group has committed in each, if any."""

    partitions: tuple[int, ...]
    offsets: dict[int, int] = msgspec.field(default_factory=dict)


class Membership(Stream[Assignment], frozen=True):
    """Be a member of a group for as long as the stream is open. An item is sent at once and whenever the partitions change.

    A newer stream with the same consumer id takes the place of this one, which ends with FENCED_INSTANCE_ID.
    """

    group: str
    topic: str
    consumer_id: str

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


# Statistics.


class GroupListing(msgspec.Struct, frozen=True):
    """A group in a list."""

    group: str
    state: str
    protocol_type: str


class ListGroups(Operation[tuple[GroupListing, ...]], frozen=True):
    """All groups that the caller may describe, by name."""

    rights = (listing(Resource.GROUP),)
    belongs_to = EVERY_NODE
    repeat = Repeat.ALWAYS


class MemberStatus(msgspec.Struct, frozen=True):
    """One member of a group. ``assignment`` has its partitions by topic, if the group's protocol is the consumers'."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[tuple[str, tuple[int, ...]], ...]


class GroupPartitionStatus(msgspec.Struct, frozen=True):
    """The position of a group in one partition. ``lag`` counts the records from the committed offset, or the start, to the end;
    ``lag_ms`` is the age of the next unread record, and 0 when all are read.
    """

    topic: str
    partition: int
    committed: int | None
    committed_ms: int | None
    start_offset: int | None
    end_offset: int | None
    lag: int | None
    lag_ms: int | None
    member_id: str | None


class GroupStatus(msgspec.Struct, frozen=True):
    """A group in numbers. ``lag_ms`` is the age of the oldest record that the group has not finished."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    lag: int
    lag_ms: int | None
    members: tuple[MemberStatus, ...]
    members_left_out: int
    partitions: tuple[GroupPartitionStatus, ...]
    queues: tuple[QueueStatus, ...]


class DescribeGroup(Operation[GroupStatus], frozen=True):
    """Members, offsets, lag and queues of a group."""

    group: str

    rights = (on_group(Action.DESCRIBE),)
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS
