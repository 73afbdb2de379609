"""Loads the groups of one partition of the offsets topic.

The last record of a key is the state. A group with stored members is stable again, in the same generation, and each member has a
new session: consumers do not rebalance because a broker restarts.
"""

from collections.abc import Iterator
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.coordinators.runtime import Shard
from penstock.core.coordinators.topic import UnreadableRecord
from penstock.core.groups.commits import Commits
from penstock.core.groups.directory import Directory
from penstock.core.groups.group import Group, Member
from penstock.core.groups.rebalance import Rebalancer
from penstock.core.groups.requests import CommittedOffset
from penstock.core.groups.shared import SharedGroups
from penstock.core.groups.stored import (
    GroupRecordKey,
    StoredGroup,
    read_group,
    read_key,
    read_offset,
)
from penstock.errors import Reason
from penstock.operations.groups import GroupState, MemberProtocol
from penstock.types import Buffer, GroupId, PartitionKey, TopicName

_OPEN_BYTES: Final = 512
"""The cost of decoding a record or creating a group."""


class GroupsShard(Shard):
    """The groups of one partition."""

    def __init__(
        self, directory: Directory, rebalancer: Rebalancer, commits: Commits, shared: SharedGroups, index: int
    ) -> None:
        self._directory = directory
        self._rebalancer = rebalancer
        self._commits = commits
        self._shared = shared
        self._index = index
        self.deleted_topics: Final[set[TopicName]] = set()
        """Topics that were deleted during the load: a topic of that name that exists now is another one."""
        self._latest: dict[bytes, Buffer | None] = {}

    def replay(self, key: Buffer, value: Buffer | None, _: int) -> None:
        self._latest[bytes(key)] = value

    def loaded(self) -> Iterator[int]:
        latest, self._latest = self._latest, {}
        groups: dict[GroupId, StoredGroup] = {}
        offsets: dict[GroupId, dict[PartitionKey, CommittedOffset]] = {}
        unreadable: list[UnreadableRecord] = []
        # Only the last record of a key is decoded: most records are offsets that a later commit has replaced.
        for key_data, value in latest.items():
            if value is not None:
                try:
                    _open(key_data, value, groups, offsets)
                except UnreadableRecord as error:
                    unreadable.append(error)
            yield _OPEN_BYTES
        if unreadable:
            self._directory.report(
                f"{len(unreadable)} records in partition {self._index} of the offsets topic cannot be read and are skipped, "
                f"the first because {unreadable[0]}"
            )
        made: list[Group] = []
        for group_id in groups | offsets:
            group = self._directory.new_group(group_id, self._index)
            if (stored := groups.get(group_id)) is not None:
                _restore(group, stored)
            for key, committed in offsets.get(group_id, {}).items():
                group.offsets.set(key, committed)
            made.append(group)
            yield _OPEN_BYTES
        for group in made:
            self._directory.groups[group.group_id] = group
            for member in group.members.values():
                self._rebalancer.watch(group, member)
                self._directory.keep_alive(member)
            self._commits.forget_missing_topics(group, self.deleted_topics)

    def unloaded(self, reason: Reason) -> None:
        for group in self._directory.of_partition(self._index):
            self._rebalancer.abandon(group, reason)
            self._shared.abandon(group)


def _open(
    key_data: bytes,
    value: Buffer,
    groups: dict[GroupId, StoredGroup],
    offsets: dict[GroupId, dict[PartitionKey, CommittedOffset]],
) -> None:
    key = read_key(key_data)
    if isinstance(key, GroupRecordKey):
        groups[key.group_id] = read_group(value)
    else:
        offsets.setdefault(key.group_id, {})[key.key] = read_offset(value)


def _restore(group: Group, stored: StoredGroup) -> None:
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    for each in stored.members:
        if each.member_id in group.members or each.instance_id in group.static_members or stored.protocol is None:
            continue
        member = Member(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            session_timeout_ms=each.session_timeout_ms,
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            protocols=(MemberProtocol(stored.protocol, each.subscription),),
            session=Timer(),
            assignment=each.assignment,
        )
        group.add(member, stored.protocol_type, None)
    if group.members:
        group.protocol = stored.protocol
        if stored.leader_id in group.members:
            group.leader_id = stored.leader_id
    group.enter(GroupState.STABLE if group.members else GroupState.EMPTY, stored.state_since_ms)
    group.note_subscriptions()
