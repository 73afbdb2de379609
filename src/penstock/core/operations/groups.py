"""Consumer groups: offsets, registrations, members whose partitions the broker assigns, and statistics."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.access import Caller
from penstock.core.groups.requests import OffsetToCommit, PartitionKey
from penstock.core.operations.handling import (
    Cancel,
    Done,
    Flow,
    OnEnd,
    OnItems,
    answers,
    awaited,
    begins,
    merges,
    streams,
    told_reason,
    works,
)
from penstock.core.operations.memberships import OpenMembership
from penstock.core.operations.rights import may_describe_group
from penstock.core.stats import group_status
from penstock.errors import PenstockError
from penstock.operations import groups
from penstock.types import GroupId, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@begins(groups.CommitOffset)
def commit_offset(broker: "Broker", asked: groups.CommitOffset, _: Caller, done: Done[None]) -> Cancel | None:
    """Reported once it is durable."""
    topic = broker.topics.require(asked.topic)
    broker.topics.partition(topic, asked.partition)
    item = OffsetToCommit(PartitionKey(topic.name, asked.partition), asked.offset)
    broker.groups.commit_offset(GroupId(asked.group), item, told_reason(done))
    return None


@answers(groups.FetchOffsets)
def fetch_offsets(broker: "Broker", asked: groups.FetchOffsets, _: Caller) -> tuple[groups.GroupOffset, ...]:
    """In the order of topics and partitions. A topic that does not exist has no offsets."""
    keys: list[PartitionKey] | None = None
    if asked.topic is not None:
        name = TopicName(asked.topic)
        indexes: Sequence[int] = range(broker.partition_count(name))
        if asked.partition is not None:
            indexes = (asked.partition,)
        keys = [PartitionKey(name, index) for index in indexes]
    found = broker.groups.fetch_offsets(GroupId(asked.group), keys)
    return tuple(
        groups.GroupOffset(key.topic, key.partition, committed.offset, committed.commit_ms)
        for key, committed in sorted(found.items())
    )


@works(groups.RegisterGroup)
async def register_group(broker: "Broker", asked: groups.RegisterGroup, _: Caller) -> groups.Registration:
    """Returned once the group has an offset in each partition; of a topic that does not exist it has none yet."""
    name, group = TopicName(asked.topic), GroupId(asked.group)
    if name not in broker.topics:
        registered = await broker.registry.register_for(name, group)
        if name not in broker.topics:
            return groups.Registration(registered.id, registered.created_ms)
    reason = await awaited(partial(broker.groups.start_offsets, group, name))
    if reason is not None:
        raise PenstockError(reason)
    registered = await broker.registry.register(broker.topics.require(name), group)
    return groups.Registration(registered.id, registered.created_ms)


@answers(groups.JoinGroup)
def join_group(broker: "Broker", asked: groups.JoinGroup, caller: Caller) -> tuple[int, ...]:
    """The member's partitions."""
    return broker.groups.shared.join(
        GroupId(asked.group),
        TopicName(asked.topic),
        asked.consumer_id,
        session_timeout_ms=asked.session_timeout_ms,
        client=caller.client,
    )


@answers(groups.Heartbeat)
def heartbeat(broker: "Broker", asked: groups.Heartbeat, _: Caller) -> tuple[int, ...] | None:
    """The member's partitions of the topic, if it names one."""
    shared, group = broker.groups.shared, GroupId(asked.group)
    shared.heartbeat(group, asked.consumer_id)
    if asked.topic is None:
        return None
    return shared.partitions(group, broker.topics.require(asked.topic).name, asked.consumer_id)


@answers(groups.LeaveGroup)
def leave_group(broker: "Broker", asked: groups.LeaveGroup, _: Caller) -> None:
    """The others have its partitions."""
    broker.groups.shared.leave(GroupId(asked.group), asked.consumer_id)


@streams(groups.Membership)
def membership(
    broker: "Broker",
    asked: groups.Membership,
    caller: Caller,
    on_items: OnItems[groups.Assignment],
    on_end: OnEnd,
) -> Flow:
    """A member for as long as the stream is open."""
    return OpenMembership(broker, asked, caller, on_items, on_end)


@answers(groups.ListGroups)
def list_groups(broker: "Broker", _: groups.ListGroups, caller: Caller) -> tuple[groups.GroupListing, ...]:
    """Those that this node coordinates."""
    return tuple(
        groups.GroupListing(found.group_id, found.state.value, found.protocol_type)
        for found in sorted(broker.groups.list_groups(), key=lambda each: each.group_id)
        if may_describe_group(broker, caller, found.group_id)
    )


@merges(groups.ListGroups)
def merge_groups(_: "Broker", by_node: dict[int, tuple[groups.GroupListing, ...]]) -> tuple[groups.GroupListing, ...]:
    """Those of all nodes, by name."""
    return tuple(sorted((group for found in by_node.values() for group in found), key=lambda each: each.group))


@answers(groups.DescribeGroup)
def describe_group(broker: "Broker", asked: groups.DescribeGroup, _: Caller) -> groups.GroupStatus:
    """In numbers."""
    return group_status(broker, asked.group)
