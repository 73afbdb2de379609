"""Consumer groups: offsets, registrations, members whose partitions the broker assigns, and statistics."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.groups.requests import NOTHING_COMMITTED, CommittedOffset
from penstock.core.operations.handling import (
    Done,
    OnEnd,
    OnItems,
    OpenStream,
    answers,
    awaited,
    begins,
    in_order,
    merges,
    streams,
    with_reason,
    works,
)
from penstock.core.operations.memberships import OpenMembership
from penstock.core.operations.rights import may, may_describe_group, may_describe_topic
from penstock.core.security.access import Caller
from penstock.core.stats import group_status
from penstock.errors import PenstockError, Reason
from penstock.operations import groups
from penstock.operations.groups import OffsetToCommit
from penstock.operations.operation import Action, Resource
from penstock.types import GroupId, PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@begins(groups.CommitOffset)
def commit_offset(broker: "Broker", asked: groups.CommitOffset, _: Caller, done: Done[None]) -> None:
    """Reported once it is durable."""
    topic = broker.topics.require(asked.topic)
    broker.topics.partition(topic, asked.partition)
    item = OffsetToCommit(PartitionKey(topic.name, asked.partition), asked.offset)
    broker.groups.commit_offset(GroupId(asked.group), item, with_reason(done))


@begins(groups.CommitOffsets)
def commit_offsets(
    broker: "Broker", asked: groups.CommitOffsets, _: Caller, done: Done[tuple[Reason | None, ...]]
) -> None:
    """Reported once they are durable."""
    broker.groups.commit_offsets(asked, in_order([item.key for item in asked.offsets], done))


@answers(groups.FetchOffsets)
def fetch_offsets(broker: "Broker", asked: groups.FetchOffsets, caller: Caller) -> tuple[groups.GroupOffset, ...]:
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
        _group_offset(key, committed)
        for key, committed in sorted(found.items())
        if keys is not None or may_describe_topic(broker, caller, key.topic)
    )


@answers(groups.FetchOffsetsOf)
def fetch_offsets_of(
    broker: "Broker", asked: groups.FetchOffsetsOf, _: Caller
) -> tuple[groups.GroupOffset | Reason, ...]:
    """One for each partition, whether or not the partition exists."""
    found = broker.groups.fetch_offsets(GroupId(asked.group), asked.partitions)
    return tuple([_group_offset(key, found.get(key, NOTHING_COMMITTED)) for key in asked.partitions])


def _group_offset(key: PartitionKey, committed: CommittedOffset) -> groups.GroupOffset:
    return groups.GroupOffset(
        key.topic, key.partition, committed.offset, committed.commit_ms, committed.leader_epoch, committed.metadata
    )


@begins(groups.DeleteOffsets)
def delete_offsets(
    broker: "Broker", asked: groups.DeleteOffsets, _: Caller, done: Done[tuple[Reason | None, ...]]
) -> None:
    """Reported once the deletion is durable."""
    broker.groups.delete_offsets(asked.group, asked.partitions, in_order(asked.partitions, done))


@works(groups.RegisterGroup)
async def register_group(broker: "Broker", asked: groups.RegisterGroup, _: Caller) -> groups.Registration:
    """Returns once the group has an offset in each partition; a topic that does not exist has no partitions yet."""
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
    """Its partitions are assigned to the other members."""
    broker.groups.shared.leave(GroupId(asked.group), asked.consumer_id)


@streams(groups.Membership)
def membership(
    broker: "Broker",
    asked: groups.Membership,
    caller: Caller,
    on_items: OnItems[groups.MemberAssignment],
    on_end: OnEnd,
) -> OpenStream:
    """The caller is a member while the stream is open."""
    return OpenMembership(broker, asked, caller, on_items, on_end)


@begins(groups.JoinClassicGroup)
def join_classic_group(
    broker: "Broker", asked: groups.JoinClassicGroup, _: Caller, done: Done[groups.JoinResult]
) -> None:
    """Reported when the generation begins. A refusal is a result, because it may name the member."""
    broker.groups.join(asked, done)


@begins(groups.SyncClassicGroup)
def sync_classic_group(
    broker: "Broker", asked: groups.SyncClassicGroup, _: Caller, done: Done[groups.SyncResult]
) -> None:
    """Reported once the leader's assignments are durable."""
    broker.groups.sync(asked, done)


@answers(groups.ClassicHeartbeat)
def classic_heartbeat(broker: "Broker", asked: groups.ClassicHeartbeat, _: Caller) -> None:
    """A member that has to join again is refused."""
    reason = broker.groups.heartbeat(asked.group, asked.member_id, asked.generation, asked.instance_id)
    if reason is not None:
        raise PenstockError(reason)


@answers(groups.LeaveClassicGroup)
def leave_classic_group(broker: "Broker", asked: groups.LeaveClassicGroup, _: Caller) -> tuple[Reason | None, ...]:
    """Their partitions are assigned to the others in the next generation."""
    return tuple(broker.groups.leave(asked.group, asked.members))


@answers(groups.ConsumerGroupHeartbeat)
def consumer_group_heartbeat(_: "Broker", __: groups.ConsumerGroupHeartbeat, ___: Caller) -> None:
    """Refused, as by a Kafka broker whose feature group.version is 0."""
    raise PenstockError(
        Reason.UNSUPPORTED_VERSION,
        "This broker does not support the consumer group protocol of KIP-848. Set group.protocol=classic",
    )


@answers(groups.DescribeMembers)
def describe_members(broker: "Broker", asked: groups.DescribeMembers, _: Caller) -> groups.GroupDescription:
    """From the coordinator's state."""
    found = broker.groups.describe(asked.group)
    if found.reason is not None:
        raise PenstockError(found.reason)
    return found


@begins(groups.DeleteGroups)
def delete_groups(
    broker: "Broker", asked: groups.DeleteGroups, _: Caller, done: Done[tuple[Reason | None, ...]]
) -> None:
    """Reported once all deletions are durable."""
    broker.groups.delete_groups(asked.groups, in_order(asked.groups, done))


@answers(groups.FindCoordinator)
def find_coordinator(broker: "Broker", asked: groups.FindCoordinator, _: Caller) -> int:
    """From the metadata that every node has."""
    return broker.cluster.coordinators.node_of(asked.group)


@answers(groups.ListGroups)
def list_groups(broker: "Broker", _: groups.ListGroups, caller: Caller) -> tuple[groups.GroupListing, ...]:
    """Those that this node coordinates: all of them for a caller that may describe the cluster."""
    sees_all = may(broker, caller, Action.DESCRIBE, Resource.CLUSTER)
    return tuple(
        groups.GroupListing(found.group_id, found.state.value, found.protocol_type)
        for found in sorted(broker.groups.list_groups(), key=lambda each: each.group_id)
        if sees_all or may_describe_group(broker, caller, found.group_id)
    )


@merges(groups.ListGroups)
def merge_groups(_: "Broker", by_node: dict[int, tuple[groups.GroupListing, ...]]) -> tuple[groups.GroupListing, ...]:
    """Those of all nodes, by name."""
    return tuple(sorted((group for found in by_node.values() for group in found), key=lambda each: each.group))


@answers(groups.DescribeGroup)
def describe_group(broker: "Broker", asked: groups.DescribeGroup, _: Caller) -> groups.GroupStatus:
    """From the coordinator's state."""
    return group_status(broker, asked.group)
