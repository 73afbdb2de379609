"""From records back to groups: the replay of one partition of the offsets topic.

The last record of a key is the state. A group whose members are stored comes back stable, in the same generation, each member
with a fresh session: a restart of the broker is no reason for its consumers to rebalance.
"""

from collections.abc import Iterator

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
from penstock.types import Buffer, GroupId


class Load:
    """One replay, in steps, so that a large partition does not hold everything up."""

    def __init__(self, directory: Directory, partition: int, records: Iterator[tuple[Buffer, Buffer | None]]) -> None:
        self.partition = partition
        self._directory = directory
        self._records = records
        self._groups: dict[GroupId, StoredGroup] = {}
        self._offsets: dict[GroupId, dict[PartitionKey, CommittedOffset]] = {}
        self._unreadable = 0

    def step(self, records_max: int) -> bool:
        """Replay at most so many records; True when there are no more."""
        for _ in range(records_max):
            record = next(self._records, None)
            if record is None:
                return True
            try:
                self._take(*record)
            except UnreadableRecord as error:
                self._unreadable += 1
                if self._unreadable == 1:
                    self._directory.report(
                        f"a record in partition {self.partition} of the offsets topic cannot be read and is passed over: {error}"
                    )
        return False

    def _take(self, key_data: Buffer, value: Buffer | None) -> None:
        key = read_key(key_data)
        if isinstance(key, GroupRecordKey):
            if value is None:
                self._groups.pop(key.group_id, None)
            else:
                self._groups[key.group_id] = read_group(value)
        elif value is None:
            self._offsets.get(key.group_id, {}).pop(key.key, None)
        else:
            self._offsets.setdefault(key.group_id, {})[key.key] = read_offset(value)

    def groups(self) -> list[Group]:
        """The groups as they stood when the last record was written."""
        found: list[Group] = []
        for group_id in self._groups | self._offsets:
            stored = self._groups.get(group_id)
            offsets = self._offsets.get(group_id, {})
            if stored is None and not offsets:
                continue
            group = self._directory.new_group(group_id, self.partition)
            if stored is not None:
                _restore(group, stored)
            for key, committed in offsets.items():
                group.offsets.set(key, committed)
            found.append(group)
        return found


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
