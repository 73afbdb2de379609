"""Which groups exist, and whether this node may speak for them.

A group is served once its partition of the offsets topic is loaded; until then the answer is that it is loading, or that
another node has it. Everything that is stored goes through :meth:`Directory.store`.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial

from penstock.core.groups.deadlines import Deadlines
from penstock.core.groups.group import Group, Member
from penstock.core.groups.requests import GroupState
from penstock.core.groups.storage import OffsetsLog, StoredDone
from penstock.core.groups.stored import Record, group_record, tombstones
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX
from penstock.ports import Clock, Report
from penstock.settings import GroupSettings
from penstock.types import GroupId

_TOO_LARGE = frozenset({Reason.RECORDS_TOO_LARGE, Reason.RECORD_LIST_TOO_LARGE})


class Loaded(Enum):
    """How far a partition of the offsets topic is."""

    LOADING = "loading"
    ACTIVE = "active"


class Directory:
    """The groups of this node."""

    def __init__(self, settings: GroupSettings, log: OffsetsLog, clock: Clock, report: Report) -> None:
        self.settings = settings
        self.clock = clock
        self.deadlines = Deadlines()
        self.report = report
        self.groups: dict[GroupId, Group] = {}
        self.partitions: dict[int, Loaded] = {}
        self.on_deleted: list[Callable[[GroupId], None]] = []
        """Told of a group once it and its offsets are gone for good."""
        self._log = log

    def find(self, group_id: GroupId) -> Group | None:
        """The group, if it exists. PenstockError when this node cannot know."""
        group = self.groups.get(group_id)
        if group is None:
            self._check_served(group_id)
        return group

    def find_or_create(self, group_id: GroupId) -> Group:
        """The group, made when it does not exist."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if len(group_id) > GROUP_ID_CHARS_MAX:
            raise PenstockError(
                Reason.INVALID_GROUP_ID, f"a group id has at most {GROUP_ID_CHARS_MAX} characters; choose a shorter one"
            )
        partition = self._check_served(group_id)
        if len(self.groups) >= GROUPS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"there are {len(self.groups)} groups, which is the limit; delete groups that are not used",
            )
        group = self.new_group(group_id, partition)
        self.groups[group_id] = group
        return group

    def new_group(self, group_id: GroupId, partition: int) -> Group:
        """An empty group that is not listed yet."""
        return Group(group_id, partition, self.clock.now_ms())

    def _check_served(self, group_id: GroupId) -> int:
        partition = self._log.partition_for(group_id)
        self.check_served(partition)
        return partition

    def check_served(self, partition: int) -> None:
        """NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS, when this node does not speak for the groups of a partition."""
        loaded = self.partitions.get(partition)
        if loaded is None:
            raise PenstockError(
                Reason.NOT_COORDINATOR, "this node does not coordinate the group; ask for its coordinator again"
            )
        if loaded is Loaded.LOADING:
            raise PenstockError(Reason.COORDINATOR_LOAD_IN_PROGRESS, "the group is being loaded; try again in a moment")

    def keep_alive(self, member: Member) -> None:
        """The member showed itself: its session starts anew."""
        self.deadlines.set(member.session, self.clock.monotonic_ms() + member.session_timeout_ms)

    def of_partition(self, partition: int) -> list[Group]:
        """The groups whose records are in ``partition``."""
        return [group for group in self.groups.values() if group.partition == partition]

    def can_store(self, group_id: GroupId) -> bool:
        """Whether enough replicas are in sync to store something of this group."""
        return self._log.can_store(self._log.partition_for(group_id))

    def store(self, partition: int, records: Sequence[Record], done: StoredDone) -> None:
        """Append ``records`` and tell ``done`` once they are committed, or why not, in words for a member of a group."""
        try:
            next_offset = self._log.append(partition, records)
        except PenstockError as error:
            self.report(f"group records were not stored: {error.text}")
            done(_in_coordinator_words(error.reason))
            return
        self._log.when_committed(partition, next_offset, partial(self._stored, done))

    def _stored(self, done: StoredDone, reason: Reason | None) -> None:
        if reason is None:
            done(None)
            return
        self.report(f"group records were not stored: {reason.value}")
        done(_in_coordinator_words(reason))

    def delete(self, group: Group, done: StoredDone) -> None:
        """Remove an empty group with its offsets. Until that is stored the group is dead, and who asks for it is told to try again."""
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
            self.forget([group])
            for tell in self.on_deleted:
                tell(group.group_id)
        else:
            group.enter(GroupState.EMPTY, since_ms)
        done(reason)

    def forget(self, groups: Iterable[Group]) -> None:
        """Drop groups from memory, with their timers. Whoever waits must have been answered."""
        for group in groups:
            if self.groups.get(group.group_id) is group:
                del self.groups[group.group_id]
            for timer in (group.rebalance, group.sync, *group.pending.values()):
                self.deadlines.cancel(timer)
            for member in group.members.values():
                self.deadlines.cancel(member.session)
            for reader in group.shared.members.values():
                self.deadlines.cancel(reader.session)


def _in_coordinator_words(reason: Reason) -> Reason:
    """A failure of the log, said so that clients of groups do the right thing: look for the coordinator and try again."""
    if reason in _TOO_LARGE:
        return reason
    if reason is Reason.NOT_LEADER_OR_FOLLOWER:
        return Reason.NOT_COORDINATOR
    return Reason.COORDINATOR_NOT_AVAILABLE
