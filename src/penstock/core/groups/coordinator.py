"""The groups of a node, as gateways use them.

Nothing here waits. A call whose result takes time has a ``done``, which is called exactly once, perhaps before the call returns.
All calls are made on the event loop. Call :meth:`GroupCoordinator.tick` at :meth:`GroupCoordinator.next_deadline_ms`.

A node coordinates the groups of those partitions of the offsets topic that ``family`` has loaded.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.core.coordinators.runtime import Family
from penstock.core.coordinators.topic import InternalTopic
from penstock.core.groups.commits import Commits, DeleteDone
from penstock.core.groups.directory import Directory, Partitions
from penstock.core.groups.group import Group
from penstock.core.groups.loading import GroupsShard
from penstock.core.groups.rebalance import Rebalancer
from penstock.core.groups.requests import GroupListing
from penstock.core.groups.shared import SharedGroups
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import GroupDescription, GroupState, MemberDescription
from penstock.ports import Clock, Entropy, Report
from penstock.settings import GroupSettings
from penstock.types import GroupId, PartitionKey, TopicName

DeleteGroupsDone = Callable[[dict[GroupId, Reason | None]], None]


class GroupCoordinator:
    """All groups of this node."""

    def __init__(
        self,
        settings: GroupSettings,
        log: InternalTopic,
        partitions: Partitions,
        clock: Clock,
        entropy: Entropy,
        report: Report,
    ) -> None:
        self.family: Final = Family(log, self._shard, "the group")
        self._directory = Directory(settings, self.family, clock, report)
        self._rebalancer = Rebalancer(self._directory, entropy)
        self._commits = Commits(self._directory, partitions)
        self.shared: Final = SharedGroups(self._directory, partitions)
        """Members whose partitions the broker assigns."""

        members, commits = self._rebalancer, self._commits
        self.join: Final = members.join
        self.sync: Final = members.sync
        self.heartbeat: Final = members.heartbeat
        self.leave: Final = members.leave
        self.commit_offsets: Final = commits.commit
        self.commit_offset: Final = commits.commit_one
        self.start_offsets: Final = commits.start
        self.fetch_offsets: Final = commits.fetch
        self.least_committed: Final = commits.least
        self.can_store: Final = self._directory.can_store
        self.topic_changed: Final = self.shared.topic_changed
        self.deadlines: Final = self._directory.deadlines
        """The timers of members and rebalances."""
        self.on_committed: Final = commits.on_committed
        self.on_forgotten: Final = commits.on_forgotten
        self.on_deleted: Final = self._directory.on_deleted
        self.needed_by: Final = commits.needed_by
        self.kept_by: Final = commits.kept_by

    def _shard(self, partition: int) -> GroupsShard:
        return GroupsShard(self._directory, self._rebalancer, self._commits, self.shared, partition)

    def close(self) -> None:
        """The broker stops: every waiting client looks for a coordinator again."""
        self.family.close(Reason.COORDINATOR_NOT_AVAILABLE)

    # -- offsets

    def committed(self, partition: int, group_id: GroupId, key: PartitionKey) -> list[int]:
        """For other nodes: the committed offset of a group, if any; without a group, the lowest of all groups.

        PenstockError if this node does not coordinate that partition of the offsets topic.
        """
        self.family.served(partition)
        if not group_id:
            offset = self.least_committed(key)
        else:
            found = self._commits.fetch(group_id, [key]).get(key)
            offset = None if found is None else found.offset
        return [] if offset is None else [offset]

    def delete_offsets(self, group_id: GroupId, keys: Sequence[PartitionKey], done: DeleteDone) -> None:
        """Delete offsets that no member uses; PenstockError if the whole request is refused."""
        self._end_sessions()
        self._commits.delete(group_id, keys, done)

    def forget_topic(self, topic: TopicName) -> None:
        """A topic was deleted, and with it its offsets in every group."""
        for shard in self.family.shards.values():
            if not shard.is_served:
                shard.deleted_topics.add(topic)
        self._commits.forget_topic(topic)
        self.shared.topic_changed(topic)

    # -- administration

    def describe(self, group_id: GroupId) -> GroupDescription:
        """A group with its members; an unknown group is dead. A group that this node does not coordinate has a reason."""
        self._end_sessions()
        try:
            group = self._directory.find(group_id)
        except PenstockError as error:
            return GroupDescription(group_id, GroupState.DEAD, reason=error.reason)
        if group is None:
            return GroupDescription(group_id, GroupState.DEAD)
        return _description(group, self.shared.describe(group))

    def list_groups(self) -> list[GroupListing]:
        """The groups of this node. PenstockError while some are being loaded."""
        self._end_sessions()
        for partition in self.family.shards:
            self.family.served(partition)
        return [
            GroupListing(group.group_id, group.protocol_type or "", group.state)
            for group in self._directory.groups.values()
        ]

    def delete_groups(self, group_ids: Sequence[GroupId], done: DeleteGroupsDone) -> None:
        """Delete groups without members, and their offsets; ``done`` gets all results once they are durable."""
        self._end_sessions()
        answers: dict[GroupId, Reason | None] = {}
        deleting: dict[GroupId, Group] = {}
        for group_id in group_ids:
            try:
                group = self._directory.find(group_id)
            except PenstockError as error:
                answers[group_id] = error.reason
                continue
            if group is None or group.state is GroupState.DEAD:
                answers[group_id] = Reason.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                answers[group_id] = Reason.NON_EMPTY_GROUP
            else:
                deleting[group_id] = group
        waiting = set(deleting)
        if not waiting:
            done(answers)
        for group_id, group in deleting.items():
            self._directory.delete(group, partial(_one_deleted, group_id, answers, waiting, done))

    # -- time

    def _end_sessions(self) -> None:
        """End expired sessions before the next tick does: expired members must not be listed or counted."""
        self._directory.deadlines.expire(self._directory.clock.monotonic_ms())

    def next_deadline_ms(self) -> int:
        """Monotonic time of the next call of :meth:`tick`, which may find nothing to do."""
        if self.family.loading is not None:
            return self._directory.clock.monotonic_ms()
        sweep_ms = self._commits.next_deadline_ms()
        timer_ms = self._directory.deadlines.next_ms()
        return sweep_ms if timer_ms is None else min(sweep_ms, timer_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic), a bounded amount of work per call."""
        self._directory.deadlines.expire(now_ms)
        if (partition := self.family.loading) is not None:
            self.family.load_some(partition)
        self._commits.tick(now_ms)


def _one_deleted(
    group_id: GroupId,
    answers: dict[GroupId, Reason | None],
    waiting: set[GroupId],
    done: DeleteGroupsDone,
    reason: Reason | None,
) -> None:
    answers[group_id] = reason
    waiting.discard(group_id)
    if not waiting:
        done(answers)


def _description(group: Group, shared: tuple[MemberDescription, ...]) -> GroupDescription:
    # Between generations, subscriptions and assignments are about to change, so they are left out.
    stable = group.state is GroupState.STABLE
    return GroupDescription(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol=group.protocol or "" if stable else "",
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata_for(group.protocol) if stable else b"",
                assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        )
        + shared,
    )
