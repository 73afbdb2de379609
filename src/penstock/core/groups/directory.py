"""The groups that exist, and whether this node coordinates them.

A group is served once its partition of the offsets topic is loaded. Everything that is stored goes through :meth:`Directory.store`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from penstock.core.coordinators.deadlines import Deadlines
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import StateRecord, StoredDone
from penstock.core.groups.group import Group, Member
from penstock.core.groups.stored import group_record, tombstones
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX
from penstock.operations.groups import GroupState
from penstock.ports import Clock, Report
from penstock.settings import GroupSettings
from penstock.types import GroupId, TopicId, TopicName

TOO_LARGE: Final = frozenset({Reason.RECORDS_TOO_LARGE, Reason.RECORD_LIST_TOO_LARGE})


class Partitions(Protocol):
    """What the group rules need to know of topics."""

    def exists(self, topic: TopicName, partition: int) -> bool:
        """Whether the partition exists."""
        ...

    def topic_id(self, topic: TopicName) -> TopicId | None:
        """The id of the topic that has this name now."""
        ...

    def partition_count(self, topic: TopicName) -> int:
        """The number of partitions of a topic; 0 if it does not exist."""
        ...


class Directory:
    """The groups of this node."""

    def __init__(self, settings: GroupSettings, family: Family[Shard], clock: Clock, report: Report) -> None:
        self.settings = settings
        self.clock = clock
        self.deadlines = Deadlines()
        self.report = report
        self.groups: dict[GroupId, Group] = {}
        self.on_deleted: list[Callable[[GroupId], None]] = []
        """Called with a group once the deletion of it and its offsets is durable."""
        self._family = family

    def find(self, group_id: GroupId) -> Group | None:
        """The group, if it exists. PenstockError if this node does not coordinate it."""
        group = self.groups.get(group_id)
        if group is None:
            self.partition_for(group_id)
        return group

    def find_or_create(self, group_id: GroupId) -> Group:
        """The group, created if it does not exist."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if len(group_id) > GROUP_ID_CHARS_MAX:
            raise PenstockError(
                Reason.INVALID_GROUP_ID, f"A group id has at most {GROUP_ID_CHARS_MAX} characters; choose a shorter one"
            )
        partition = self.partition_for(group_id)
        if len(self.groups) >= GROUPS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"There are {len(self.groups)} groups, which is the limit; delete groups that are not used",
            )
        group = self.new_group(group_id, partition)
        self.groups[group_id] = group
        return group

    def find_or_create_alive(self, group_id: GroupId) -> Group:
        """The same. COORDINATOR_NOT_AVAILABLE while it is being deleted."""
        group = self.find_or_create(group_id)
        check_alive(group)
        return group

    def new_group(self, group_id: GroupId, partition: int) -> Group:
        """An empty group that is not listed yet."""
        return Group(group_id, partition, self.clock.now_ms())

    def partition_for(self, group_id: GroupId) -> int:
        """The partition that has the group's records; PenstockError if this node does not serve it."""
        partition = self._family.topic.partition_for(group_id)
        self._family.served(partition)
        return partition

    def keep_alive(self, member: Member) -> None:
        """Restart the session of a member."""
        self.deadlines.set(member.session, self.clock.monotonic_ms() + member.session_timeout_ms)

    def of_partition(self, partition: int) -> list[Group]:
        """The groups whose records are in ``partition``."""
        return [group for group in self.groups.values() if group.partition == partition]

    def can_store(self, group_id: GroupId) -> bool:
        """Whether enough replicas are in sync to store something of this group."""
        topic = self._family.topic
        return topic.can_store(topic.partition_for(group_id))

    def store(self, partition: int, records: Sequence[StateRecord], done: StoredDone) -> None:
        """Append records and call ``done`` once they are committed, or with the reason why not, as members of groups expect it."""
        try:
            self._family.append(partition, records, partial(self._stored, done))
        except PenstockError as error:
            self.report(f"group records were not stored: {error.text}")
            done(_reason_for_members(error.reason))

    def _stored(self, done: StoredDone, reason: Reason | None) -> None:
        if reason is None:
            done(None)
            return
        self.report(f"group records were not stored: {reason.value}")
        done(_reason_for_members(reason))

    def delete(self, group: Group, done: StoredDone) -> None:
        """Delete an empty group with its offsets. Until that is stored, the group is dead and requests for it are refused."""
        assert group.state is GroupState.EMPTY
        records = tombstones(group.group_id, group.offsets.keys_in_log())
        if group.generation > 0:
            records.append(group_record(group.group_id, None))
        since_ms = group.state_since_ms
        group.enter(GroupState.DEAD, since_ms)
        if records:
            self.store(group.partition, records, partial(self._deleted, group, since_ms, done))
        else:
            self._deleted(group, since_ms, done, None)

    def _deleted(self, group: Group, since_ms: int, done: StoredDone, reason: Reason | None) -> None:
        if reason is None:
            self.forget(group)
            for deleted in self.on_deleted:
                deleted(group.group_id)
        else:
            group.enter(GroupState.EMPTY, since_ms)
        done(reason)

    def forget(self, group: Group) -> None:
        """Drop a group and its timers from memory. All waiting requests must be answered before."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        sessions = [member.session for member in group.members.values()]
        sessions += [member.session for member in group.shared.members.values()]
        for timer in (group.rebalance, group.sync, *group.pending.values(), *sessions):
            self.deadlines.cancel(timer)

    def forget_if_unused(self, group: Group) -> None:
        """Drop a group that has nothing and never had a generation: the log has no record of it."""
        if group.is_void and group.generation == 0:
            self.forget(group)


def check_alive(group: Group) -> None:
    """COORDINATOR_NOT_AVAILABLE while a group is being deleted."""
    if group.state is GroupState.DEAD:
        raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, "The group is being deleted; try again in a moment")


def _reason_for_members(reason: Reason) -> Reason:
    """The reason for which clients do the right thing after a failure of the log: look for the coordinator and try again."""
    if reason in TOO_LARGE:
        return reason
    if reason in (Reason.NOT_LEADER_OR_FOLLOWER, Reason.NOT_COORDINATOR):
        return Reason.NOT_COORDINATOR
    return Reason.COORDINATOR_NOT_AVAILABLE
