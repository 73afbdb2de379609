"""Requests to the group coordinator, and their results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.errors import Reason
from penstock.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, GroupId, MemberId, TopicId, TopicName

NO_MEMBER = MemberId("")
NO_GENERATION = -1
"""The generation in the commits of a consumer that assigns its own partitions."""


class GroupState(Enum):
    """The state of a group; the values are Kafka's names, which clients show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with its subscription, whose bytes only the members understand."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member joins the next generation."""

    group_id: GroupId
    member_id: MemberId
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    instance_id: str | None = None
    require_known_member_id: bool = True
    """The client can get a member id first and then join with it (JoinGroup 4 and later)."""
    can_skip_assignment: bool = False
    """The client can be the leader without assigning (JoinGroup 9 and later)."""


class JoinedMember(NamedTuple):
    """A member, as the leader receives it."""

    member_id: MemberId
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The membership in a generation, or the ``reason`` why not. Only the leader gets ``members``."""

    reason: Reason | None
    member_id: MemberId
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: MemberId = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member requests its assignment; the leader sends all assignments."""

    group_id: GroupId
    member_id: MemberId
    generation: int
    assignments: dict[MemberId, bytes]
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The member's assignment, or the ``reason`` why not."""

    reason: Reason | None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


JoinDone = Callable[[JoinResult], None]
SyncDone = Callable[[SyncResult], None]


class LeavingMember(NamedTuple):
    """The member that leaves, by member id, or a static member by instance id alone (as an administrator removes it)."""

    member_id: MemberId
    instance_id: str | None = None


class PartitionKey(NamedTuple):
    """A partition by its topic's name."""

    topic: TopicName
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset from which a group continues to read a partition. All but the commit time is as the member sent it."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    """Wall time of the commit."""
    expire_ms: int = NO_TIMESTAMP
    """Wall time of the expiry that the member requested, which OffsetCommit 2 to 4 can do."""
    topic_id: TopicId | None = field(default=None, compare=False)
    """The topic that had the name at the commit; None if unknown."""


NOTHING_COMMITTED = CommittedOffset(NO_OFFSET)


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """One partition of a commit."""

    key: PartitionKey
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Offsets from a member, or from a consumer without membership (NO_GENERATION, NO_MEMBER)."""

    group_id: GroupId
    offsets: tuple[OffsetToCommit, ...]
    member_id: MemberId = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None
    retention_ms: int = -1
    """How long to keep the offsets; -1 uses the broker's setting."""


CommitDone = Callable[[dict[PartitionKey, Reason | None]], None]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member, for an administrator."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, for an administrator. An unknown group is DEAD and has no members."""

    group_id: GroupId
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()
    reason: Reason | None = None


class GroupListing(NamedTuple):
    """A group in the list of groups."""

    group_id: GroupId
    protocol_type: str
    state: GroupState
