"""What the group rules store and answer, beside the operations on groups, whose structs they use as they are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import Reason
from penstock.operations.groups import (
    GroupState,
    JoinResult,
    SyncResult,
)
from penstock.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, GroupId, PartitionKey, TopicId

JoinDone = Callable[[JoinResult], None]
SyncDone = Callable[[SyncResult], None]
CommitDone = Callable[[dict[PartitionKey, Reason | None]], None]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset from which a group continues to read a partition. Everything but the commit time is as the member sent it."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    """Wall time of the commit."""
    expire_ms: int = NO_TIMESTAMP
    """Wall time at which the member wants it to be deleted; old clients (OffsetCommit 2 to 4) can set it."""
    topic_id: TopicId | None = field(default=None, compare=False)
    """The id that the topic had then; None if it was not stored."""


NOTHING_COMMITTED = CommittedOffset(NO_OFFSET)


class GroupListing(NamedTuple):
    """A group in the list of a coordinator."""

    group_id: GroupId
    protocol_type: str
    state: GroupState
