"""From records back to groups: the replay of one partition of the offsets topic.

The last record of a key is the state. A group whose members are stored comes back stable, in the same generation, each member
with a fresh session: a restart of the broker is no reason for its consumers to rebalance.
"""

from collections.abc import Iterator
from itertools import islice

from penstock.core.groups.deadlines import Timer
from penstock.core.groups.directory import Directory
from penstock.core.groups.group import Group, Member
from penstock.core.groups.requests import CommittedOffset, GroupState, MemberProtocol, PartitionKey
from penstock.core.groups.stored import (
    GroupRecordKey,
    StoredGroup,
    UnreadableRecord,
    read_group,
    read_key,
    read_offset,
)
from penstock.types import Buffer, GroupId, TopicName


class Load:
    """One replay, in steps, so that a large partition does not hold everything up."""

    def __init__(self, directory: Directory, partition: int, records: Iterator[tuple[Buffer, Buffer | None]]) -> None:
        self.partition = partition
        self.groups: list[Group] = []
        """The groups as they stood when the last record was written; all of them after the last step."""
        self.deleted_topics: set[TopicName] = set()
        """Topics that were deleted meanwhile: one of that name that is there by now is another."""
        self._directory = directory
        self._latest: dict[bytes, Buffer | None] = {}
        self._pieces = self._run(records)

    def step(self, pieces_max: int) -> bool:
        """Read, open or make at most so many; True when there are no more."""
        return sum(1 for _ in islice(self._pieces, pieces_max)) < pieces_max

    def _run(self, records: Iterator[tuple[Buffer, Buffer | None]]) -> Iterator[None]:
        latest = self._latest
        for key, value in records:
            latest[bytes(key)] = value
            yield
        groups: dict[GroupId, StoredGroup] = {}
        offsets: dict[GroupId, dict[PartitionKey, CommittedOffset]] = {}
        unreadable: list[UnreadableRecord] = []
        # Only what is left of a key is opened: most records are offsets that a later commit has replaced.
        for key_data, value in latest.items():
            if value is not None:
                try:
                    _open(key_data, value, groups, offsets)
                except UnreadableRecord as error:
                    unreadable.append(error)
            yield
        if unreadable:
            self._directory.report(
                f"{len(unreadable)} records in partition {self.partition} of the offsets topic cannot be read and are skipped, the first because {unreadable[0]}"
            )
        for group_id in groups | offsets:
            self.groups.append(self._group(group_id, groups.get(group_id), offsets.get(group_id, {})))
            yield

    def _group(
        self, group_id: GroupId, stored: StoredGroup | None, offsets: dict[PartitionKey, CommittedOffset]
    ) -> Group:
        group = self._directory.new_group(group_id, self.partition)
        if stored is not None:
            _restore(group, stored)
        for key, committed in offsets.items():
            group.offsets.set(key, committed)
        return group


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
