"""The door to groups for every gateway: it finds the group and hands on to the rules.

Nothing here waits. A call whose answer takes time has a ``done``, which is called exactly once, perhaps before the call
returns. All calls are made on the event loop. Time comes from the clock that was handed in; :meth:`GroupCoordinator.tick`
must be called at :meth:`GroupCoordinator.next_deadline_ms`.

A node speaks for the groups of those partitions of the offsets topic that it has loaded: call :meth:`GroupCoordinator.load`
(or ``begin_load``) for each partition this node leads, after the topics are known, and ``unload`` when it no longer does. From ``unload`` on
nothing is written for its groups, and what was under way changes nothing here: another node speaks for them.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from penstock.core.groups.commits import Commits, DeleteDone, Keeps, Needs, OnCommitted, OnForgotten
from penstock.core.groups.deadlines import Deadlines
from penstock.core.groups.directory import Directory, Loaded
from penstock.core.groups.group import Group
from penstock.core.groups.loading import Load
from penstock.core.groups.rebalance import Rebalancer
from penstock.core.groups.requests import (
    CommitDone,
    CommitRequest,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupState,
    JoinDone,
    JoinRequest,
    LeavingMember,
    MemberDescription,
    OffsetToCommit,
    PartitionKey,
    SyncDone,
    SyncRequest,
)
from penstock.core.groups.shared import CountedPartitions, SharedGroups
from penstock.core.groups.storage import OffsetsLog, StoredDone
from penstock.errors import PenstockError, Reason
from penstock.ports import Clock, Entropy, Report
from penstock.settings import GroupSettings
from penstock.types import GroupId, MemberId, TopicName

_LOAD_RECORDS_MAX: Final = 2_000
"""Records replayed in one tick: a few milliseconds."""

DeleteGroupsDone = Callable[[dict[GroupId, Reason | None]], None]


class GroupCoordinator:
    """All groups of this node."""

    def __init__(
        self,
        settings: GroupSettings,
        log: OffsetsLog,
        partitions: CountedPartitions,
        clock: Clock,
        entropy: Entropy,
        report: Report,
    ) -> None:
        self._log = log
        self._topics = partitions
        self._directory = Directory(settings, log, clock, report)
        self._rebalancer = Rebalancer(self._directory, entropy)
        self._commits = Commits(self._directory, partitions)
        self.shared: Final = SharedGroups(self._directory, partitions)
        """Members whose partitions the broker assigns."""
        self._loads: dict[int, Load] = {}

    @property
    def deadlines(self) -> Deadlines:
        """The timers of members and rebalances."""
        return self._directory.deadlines

    @property
    def on_forgotten(self) -> list[OnForgotten]:
        """Told of every offset that is deleted or has expired."""
        return self._commits.on_forgotten

    @property
    def needed_by(self) -> list[Needs]:
        """Asked before a group without members and offsets is removed because nobody uses it."""
        return self._commits.needed_by

    @property
    def kept_by(self) -> list[Keeps]:
        """Asked before an offset expires."""
        return self._commits.kept_by

    @property
    def on_deleted(self) -> list[Callable[[GroupId], None]]:
        """Told of every group that is deleted."""
        return self._directory.on_deleted

    # -- which groups this node speaks for

    def load(self, partition: int) -> None:
        """Replay a partition of the offsets topic to its end, and serve its groups."""
        self.begin_load(partition)
        while not self.load_some(partition):
            pass

    def expect(self, partition: int) -> None:
        """This node will speak for the groups of a partition, once it is known what they are; until then they are said to be loading."""
        assert partition not in self._directory.partitions, "unload a partition before it is loaded again"
        self._directory.partitions[partition] = Loaded.LOADING

    def begin_load(self, partition: int) -> None:
        """Replay a partition over the next ticks, or by :meth:`load_some`; its groups are said to be loading until then."""
        assert partition not in self._loads, "it is being loaded"
        if self._directory.partitions.get(partition) is not Loaded.LOADING:
            self.expect(partition)
        self._loads[partition] = Load(self._directory, partition, self._log.replay(partition))

    def load_some(self, partition: int) -> bool:
        """Go on with the replay, for some milliseconds; True when its groups are served, or will not be."""
        load = self._loads.get(partition)
        if load is None:
            return True
        if not load.step(_LOAD_RECORDS_MAX):
            return False
        del self._loads[partition]
        self._directory.partitions[partition] = Loaded.ACTIVE
        for group in load.groups:
            self._directory.groups[group.group_id] = group
            for member in group.members.values():
                self._rebalancer.watch(group, member)
                self._directory.keep_alive(member)
            self._commits.forget_missing_topics(group, load.deleted_topics)
        return True

    def unload(self, partition: int, reason: Reason = Reason.NOT_COORDINATOR) -> None:
        """Stop speaking for the groups of a partition; whoever waits is told ``reason``."""
        self._loads.pop(partition, None)
        self._directory.partitions.pop(partition, None)
        for group in self._directory.of_partition(partition):
            self._rebalancer.abandon(group, reason)
            self.shared.abandon(group)

    def close(self) -> None:
        """The broker stops: whoever waits is told to look for a coordinator again."""
        for partition in list(self._directory.partitions):
            self.unload(partition, Reason.COORDINATOR_NOT_AVAILABLE)

    @property
    def loaded_partitions(self) -> frozenset[int]:
        """The partitions of the offsets topic whose groups are served, or will be when their replay ends."""
        return frozenset(self._directory.partitions)

    # -- membership

    def join(self, request: JoinRequest, done: JoinDone) -> None:
        """Take a member into the next generation; ``done`` is told when that begins, or why it will not."""
        self._rebalancer.join(request, done)

    def sync(self, request: SyncRequest, done: SyncDone) -> None:
        """Give a member its assignment once the leader has brought it and it is stored."""
        self._rebalancer.sync(request, done)

    def heartbeat(
        self, group_id: GroupId, member_id: MemberId, generation: int, instance_id: str | None = None
    ) -> Reason | None:
        """Keep a member alive, and tell it when it must join again."""
        return self._rebalancer.heartbeat(group_id, member_id, instance_id, generation)

    def leave(self, group_id: GroupId, leaving: Sequence[LeavingMember]) -> list[Reason | None]:
        """Remove members at once; one answer each, in order. PenstockError for the whole request."""
        return self._rebalancer.leave(group_id, leaving)

    # -- offsets

    def commit_offsets(self, request: CommitRequest, done: CommitDone) -> None:
        """Store offsets as a member gave them; ``done`` is told of each partition."""
        self._commits.commit(request, done)

    def commit_offset(self, group_id: GroupId, item: OffsetToCommit, done: StoredDone) -> None:
        """Store an offset from an API without membership. PenstockError when it cannot be stored, and then nothing has changed."""
        self._commits.commit_one(group_id, item, done)

    def can_store(self, group_id: GroupId) -> bool:
        """Whether enough replicas are in sync to store something of this group."""
        return self._directory.can_store(group_id)

    def start_offsets(self, group_id: GroupId, topic: TopicName, done: StoredDone) -> None:
        """Store offset 0 for those partitions of a topic that the group has no offset in. PenstockError when nothing was begun."""
        self._commits.start(group_id, topic, self._topics.partition_count(topic), done)

    def fetch_offsets(
        self, group_id: GroupId, keys: Sequence[PartitionKey] | None
    ) -> dict[PartitionKey, CommittedOffset]:
        """The offsets of these partitions, or (None) of all; what was never committed is left out, and so is an unknown group's."""
        return self._commits.fetch(group_id, keys)

    def least_committed(self, key: PartitionKey) -> int | None:
        """The least offset that any group has committed in a partition; None when none has. It looks at every group."""
        return self._commits.least(key)

    def committed(self, partition: int, group_id: GroupId, key: PartitionKey) -> list[int]:
        """For other nodes: the offset that a group has committed, or nothing; without a group, the least of all. PenstockError when this node
        does not speak for that partition of the offsets topic.
        """
        self._directory.check_served(partition)
        if not group_id:
            offset = self.least_committed(key)
        else:
            found = self._commits.fetch(group_id, [key]).get(key)
            offset = None if found is None else found.offset
        return [] if offset is None else [offset]

    @property
    def on_committed(self) -> list[OnCommitted]:
        """Hooks that are told of every commit once it is stored, whoever made it."""
        return self._commits.on_committed

    def delete_offsets(self, group_id: GroupId, keys: Sequence[PartitionKey], done: DeleteDone) -> None:
        """Delete offsets that no member reads by; PenstockError for the whole request."""
        self._end_sessions()
        self._commits.delete(group_id, keys, done)

    def forget_topic(self, topic: TopicName) -> None:
        """A topic was deleted, and with it the offsets that every group had in it."""
        for load in self._loads.values():
            load.deleted_topics.add(topic)
        self._commits.forget_topic(topic)
        self.shared.topic_changed(topic)

    def topic_changed(self, topic: TopicName) -> None:
        """A topic was made or has more partitions than before."""
        self.shared.topic_changed(topic)

    # -- administration

    def describe(self, group_id: GroupId) -> GroupDescription:
        """A group with its members; an unknown one is dead. A group this node does not speak for has a reason."""
        self._end_sessions()
        try:
            group = self._directory.find(group_id)
        except PenstockError as error:
            return GroupDescription(group_id, GroupState.DEAD, reason=error.reason)
        if group is None:
            return GroupDescription(group_id, GroupState.DEAD)
        return _description(group, self.shared.describe(group))

    def list_groups(self, states: Collection[GroupState] = ()) -> list[GroupListing]:
        """The groups of this node, in these states or in any. PenstockError while some are being loaded."""
        self._end_sessions()
        if Loaded.LOADING in self._directory.partitions.values():
            raise PenstockError(Reason.COORDINATOR_LOAD_IN_PROGRESS, "groups are being loaded; try again in a moment")
        return [
            GroupListing(group.group_id, group.protocol_type or "", group.state)
            for group in self._directory.groups.values()
            if not states or group.state in states
        ]

    def delete_groups(self, group_ids: Sequence[GroupId], done: DeleteGroupsDone) -> None:
        """Delete groups without members, with their offsets; ``done`` is told of each once all answers are durable."""
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
        """End what is over, though the clock's turn has not come: members that are gone must not be shown, nor count."""
        self._directory.deadlines.expire(self._directory.clock.monotonic_ms())

    def next_deadline_ms(self) -> int:
        """Monotonic time of the next call of :meth:`tick`; it may find nothing to do."""
        if self._loads:
            return self._directory.clock.monotonic_ms()
        sweep_ms = self._commits.next_deadline_ms()
        timer_ms = self._directory.deadlines.next_ms()
        return sweep_ms if timer_ms is None else min(sweep_ms, timer_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic); each call does a bounded piece of work."""
        self._directory.deadlines.expire(now_ms)
        for partition in list(self._loads)[:1]:
            self.load_some(partition)
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
    # Between generations, subscriptions and assignments are on their way to change, so they are not told.
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
