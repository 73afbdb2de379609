"""Consumer groups: their offsets, their members, and their statistics."""

from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from penstock.errors import Reason
from penstock.operations.operation import (
    ANY_NODE,
    EVERY_NODE,
    Action,
    Operation,
    Repeat,
    Resource,
    Stream,
    coordinator,
    listing,
    on_each_group,
    on_each_topic,
    on_group,
    on_topic,
)
from penstock.operations.queues import QueueStatus
from penstock.types import NO_EPOCH, GroupId, MemberId, PartitionKey, TopicName

NO_MEMBER: Final = MemberId("")
NO_GENERATION: Final = -1
"""The generation in commits of a consumer that assigns its own partitions."""


class CommitOffset(Operation[None], frozen=True):
    """Set the offset that a group reads next in a partition. It may go back, and it may be past the end."""

    group: str
    topic: str
    partition: int
    offset: int

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()


class OffsetToCommit(msgspec.Struct, frozen=True):
    """One partition of a commit."""

    key: PartitionKey
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""

    @property
    def topic(self) -> TopicName:
        """The topic that the caller needs a right to."""
        return self.key.topic


class CommitOffsets(Operation[tuple[Reason | None, ...]], frozen=True):
    """Set many offsets of a group, for a member or for a consumer without membership (NO_GENERATION, NO_MEMBER)."""

    group: GroupId
    offsets: tuple[OffsetToCommit, ...]
    member_id: MemberId = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None
    retention_ms: int = -1
    """Delete the offsets after this time; -1 leaves it to the broker."""

    rights = (on_group(Action.READ), on_each_topic(Action.READ, "offsets"))
    belongs_to = coordinator()


class GroupOffset(msgspec.Struct, frozen=True):
    """The offset that a group reads next in a partition, with what was committed beside it. It is negative if none was committed."""

    topic: str
    partition: int
    offset: int
    commit_ms: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


class FetchOffsets(Operation[tuple[GroupOffset, ...]], frozen=True):
    """The committed offsets of a group by topic and partition: of one topic, of one partition, or all that the caller may see."""

    group: str
    topic: str | None = None
    partition: int | None = None

    rights = (on_group(Action.DESCRIBE), on_topic(Action.DESCRIBE))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class FetchOffsetsOf(Operation[tuple[GroupOffset | Reason, ...]], frozen=True):
    """The offsets of a group in these partitions."""

    group: str
    partitions: tuple[PartitionKey, ...]

    rights = (on_group(Action.DESCRIBE), on_each_topic(Action.DESCRIBE, "partitions"))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class DeleteOffsets(Operation[tuple[Reason | None, ...]], frozen=True):
    """Delete the offsets of a group in partitions that none of its members reads."""

    group: GroupId
    partitions: tuple[PartitionKey, ...]

    rights = (on_group(Action.DELETE), on_each_topic(Action.READ, "partitions"))
    belongs_to = coordinator()


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


class MemberAssignment(msgspec.Struct, frozen=True):
    """The partitions of a member, with the offset that the group has committed in each, if any."""

    partitions: tuple[int, ...]
    offsets: dict[int, int] = msgspec.field(default_factory=dict)


class Membership(Stream[MemberAssignment], frozen=True):
    """Be a member of a group for as long as the stream is open. An item is sent at once and whenever the partitions change.

    A newer stream with the same consumer id takes the place of this one, which ends with FENCED_INSTANCE_ID.
    """

    group: str
    topic: str
    consumer_id: str

    rights = (on_group(Action.READ), on_topic(Action.READ))
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


# Members that divide the partitions themselves, by Kafka's classic protocol.


class MemberProtocol(NamedTuple):
    """One way in which a member can divide the work (an assignor), with its subscription. Only members read the bytes."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member, as its leader sees it."""

    member_id: MemberId
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True):
    """A place in a generation, or ``reason`` why not. Only the leader gets ``members``."""

    reason: Reason | None
    member_id: MemberId
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: MemberId = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class JoinClassicGroup(Operation[JoinResult], frozen=True):
    """Become a member of the next generation, and wait until it begins."""

    group: GroupId
    member_id: MemberId
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    instance_id: str | None = None
    require_known_member_id: bool = True
    """The client can take a member id first and join with it (JoinGroup 4 and up)."""
    can_skip_assignment: bool = False
    """The client understands being leader without assigning (JoinGroup 9 and up)."""

    rights = (on_group(Action.READ),)
    belongs_to = coordinator()


class SyncResult(msgspec.Struct, frozen=True):
    """The member's assignment, or ``reason`` why not."""

    reason: Reason | None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class SyncClassicGroup(Operation[SyncResult], frozen=True):
    """Get the assignment of a member; the leader brings the assignments of all members."""

    group: GroupId
    member_id: MemberId
    generation: int
    assignments: dict[MemberId, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None

    rights = (on_group(Action.READ),)
    belongs_to = coordinator()


class ClassicHeartbeat(Operation[None], frozen=True):
    """Keep a member in its generation, until it has to join again."""

    group: GroupId
    member_id: MemberId
    generation: int
    instance_id: str | None = None

    rights = (on_group(Action.READ),)
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class LeavingMember(NamedTuple):
    """A member by its id, or a static member by its instance id alone (as an administrator removes it)."""

    member_id: MemberId
    instance_id: str | None = None


class LeaveClassicGroup(Operation[tuple[Reason | None, ...]], frozen=True):
    """Remove members at once; one result each, in order."""

    group: GroupId
    members: tuple[LeavingMember, ...]

    rights = (on_group(Action.READ),)
    belongs_to = coordinator()


class ConsumerGroupHeartbeat(Operation[None], frozen=True):
    """A heartbeat of the newer consumer protocol (KIP-848), which this broker refuses."""

    group: str

    rights = (on_group(Action.READ),)
    belongs_to = coordinator()


class GroupState(Enum):
    """The state of a group; the values are Kafka's words, which clients show to people."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberDescription(msgspec.Struct, frozen=True):
    """A member, for an administrator."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True):
    """A group, for an administrator. An unknown group is DEAD and has nothing."""

    group_id: GroupId
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()
    reason: Reason | None = None
    """Why this node cannot describe it; an operation that describes it fails."""


class DescribeMembers(Operation[GroupDescription], frozen=True):
    """The state of a group, and its members with what they sent when they joined."""

    group: GroupId

    rights = (on_group(Action.DESCRIBE),)
    belongs_to = coordinator()
    repeat = Repeat.ALWAYS


class DeleteGroups(Operation[tuple[Reason | None, ...]], frozen=True):
    """Delete those of these groups that this node coordinates and that have no members, with their offsets."""

    groups: tuple[GroupId, ...]

    rights = (on_each_group(Action.DELETE, "groups"),)
    belongs_to = ANY_NODE


class FindCoordinator(Operation[int], frozen=True):
    """The node that coordinates a group."""

    group: str

    rights = (on_group(Action.DESCRIBE),)
    belongs_to = ANY_NODE
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
