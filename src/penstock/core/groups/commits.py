"""Committed offsets: commit, fetch, delete and expiry.

A commit is confirmed, and can be read, once its record is committed in the offsets topic. The records of a group are ordered, so
a fetch always returns what a replay of the log would give.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final

from penstock.core.coordinators.jobs import AllOf
from penstock.core.coordinators.topic import StoredDone
from penstock.core.groups.directory import TOO_LARGE, Directory, Partitions
from penstock.core.groups.group import Group
from penstock.core.groups.requests import CommitDone, CommittedOffset
from penstock.core.groups.stored import offset_record, tombstones
from penstock.errors import PenstockError, Reason
from penstock.limits import OFFSET_METADATA_BYTES_MAX
from penstock.operations.groups import CommitOffsets, GroupState, OffsetToCommit
from penstock.types import NO_TIMESTAMP, GroupId, PartitionKey, TopicName

SWEEP_GROUPS_MAX: Final = 200
"""Groups looked at for expired offsets in one tick: about a millisecond."""
EXPIRY_CHECK_INTERVAL_MS: Final = 10 * 60 * 1000
"""How often all groups are checked for expired offsets."""
_START_PIECE: Final = 1_000
"""Partitions per batch when a group gets its first offsets."""

OFFSET_MAX: Final = 2**63 - 1
"""The largest offset that can be stored."""

DeleteDone = Callable[[dict[PartitionKey, Reason | None]], None]
OnCommitted = Callable[[GroupId, PartitionKey, int], None]
"""Called with each committed offset, through whichever API it came."""
OnForgotten = Callable[[GroupId, PartitionKey], None]
"""Called when a group no longer has an offset in a partition."""
Needs = Callable[[GroupId], bool]
"""Returns whether a group without members and offsets is still needed."""
Keeps = Callable[[GroupId, PartitionKey], bool]
"""Returns whether an offset of a group must be kept, however old its commit is."""


class Commits:
    """The rules of committed offsets, for all groups of a directory."""

    def __init__(self, directory: Directory, partitions: Partitions) -> None:
        self._directory = directory
        self._settings = directory.settings
        self._clock = directory.clock
        self._partitions = partitions
        self.on_committed: Final[list[OnCommitted]] = []
        self.on_forgotten: Final[list[OnForgotten]] = []
        self.needed_by: Final[list[Needs]] = []
        self.kept_by: Final[list[Keeps]] = []
        self._sweep: Iterator[Group] | None = None
        self._sweep_due_ms = self._clock.monotonic_ms() + EXPIRY_CHECK_INTERVAL_MS

    # -- commit

    def commit(self, request: CommitOffsets, done: CommitDone) -> None:
        """Store offsets of a member; ``done`` gets the result of each partition once it is durable."""
        try:
            group = self._group_for_commit(request)
        except PenstockError as error:
            done({item.key: error.reason for item in request.offsets})
            return
        answers: dict[PartitionKey, Reason | None] = {}
        accepted: dict[PartitionKey, CommittedOffset] = {}
        now_ms = self._clock.now_ms()
        expire_ms = NO_TIMESTAMP if request.retention_ms < 0 else now_ms + request.retention_ms
        for item in request.offsets:
            reason = self._check_offset(item)
            answers[item.key] = reason
            if reason is None:
                topic_id = self._partitions.topic_id(item.key.topic)
                accepted[item.key] = CommittedOffset(
                    item.offset, item.leader_epoch, item.metadata, now_ms, expire_ms, topic_id
                )
        if not accepted:
            self._directory.forget_if_unused(group)
            done(answers)
            return
        self._store(group, accepted, partial(_answer_commit, answers, accepted, done))

    def commit_one(self, group_id: GroupId, item: OffsetToCommit, done: StoredDone) -> None:
        """Store an offset from an API without membership. With PenstockError nothing has changed.

        The offset may be past the end of the partition: the group reads from there once the partition reaches it.
        """
        reason = self._check_offset(item)
        if reason is not None:
            raise PenstockError(reason)
        if not 0 <= item.offset <= OFFSET_MAX:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"Offset {item.offset} cannot be committed; use an offset from 0 to {OFFSET_MAX}",
            )
        group = self._named(group_id)
        topic_id = self._partitions.topic_id(item.key.topic)
        committed = CommittedOffset(
            item.offset, item.leader_epoch, item.metadata, self._clock.now_ms(), topic_id=topic_id
        )
        self._store(group, {item.key: committed}, done)

    def start(self, group_id: GroupId, topic: TopicName, done: StoredDone) -> None:
        """Store offset 0 for the partitions of a topic in which the group has no offset. With PenstockError nothing was begun."""
        group = self._named(group_id)
        keys = [PartitionKey(topic, index) for index in range(self._partitions.partition_count(topic))]
        # A commit in flight also sets the start.
        lacking = [key for key in keys if not group.offsets.is_in_log(key)]
        first = CommittedOffset(0, commit_ms=self._clock.now_ms(), topic_id=self._partitions.topic_id(topic))
        pieces = [lacking[at : at + _START_PIECE] for at in range(0, len(lacking), _START_PIECE)]
        if not pieces:
            self._directory.forget_if_unused(group)
        answer = AllOf(done)
        for piece in pieces:
            self._store(group, dict.fromkeys(piece, first), answer.expect())
        answer.close()

    def _named(self, group_id: GroupId) -> Group:
        """The group, created if it does not exist, for an API without membership."""
        if not group_id:
            raise PenstockError(Reason.INVALID_GROUP_ID, "A group needs a name")
        return self._directory.find_or_create_alive(group_id)

    def _group_for_commit(self, request: CommitOffsets) -> Group:
        group = self._directory.find(request.group)
        if group is None:
            if request.generation >= 0:
                raise PenstockError(Reason.ILLEGAL_GENERATION, "The group has a different generation; join it again")
            return self._directory.find_or_create(request.group)
        reason = group.check_commit(request.member_id, request.generation, request.instance_id)
        if reason is not None:
            raise PenstockError(reason)
        member = group.members.get(request.member_id)
        if member is not None:
            self._directory.keep_alive(member)
        return group

    def _check_offset(self, item: OffsetToCommit) -> Reason | None:
        if not self._partitions.exists(*item.key):
            return Reason.UNKNOWN_TOPIC_OR_PARTITION
        if len(item.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
            return Reason.OFFSET_METADATA_TOO_LARGE
        return None

    def _store(self, group: Group, offsets: dict[PartitionKey, CommittedOffset], done: StoredDone) -> None:
        group.offsets.sent(offsets)
        records = [offset_record(group.group_id, key, committed) for key, committed in offsets.items()]
        self._directory.store(group.partition, records, partial(self._stored, group, offsets, done))

    def _stored(
        self, group: Group, offsets: dict[PartitionKey, CommittedOffset], done: StoredDone, reason: Reason | None
    ) -> None:
        group.offsets.settled(offsets)
        if reason is None:
            for key, committed in offsets.items():
                group.offsets.set(key, committed)
                for on_committed in self.on_committed:
                    on_committed(group.group_id, key, committed.offset)
        else:
            self._directory.forget_if_unused(group)
        done(Reason.INVALID_COMMIT_OFFSET_SIZE if reason in TOO_LARGE else reason)

    # -- fetch

    def least(self, key: PartitionKey) -> int | None:
        """The lowest offset that any group has committed in a partition, if any. Looks at every group."""
        found = (group.offsets.get(key) for group in self._directory.groups.values())
        return min((committed.offset for committed in found if committed is not None), default=None)

    def fetch(self, group_id: GroupId, keys: Sequence[PartitionKey] | None) -> dict[PartitionKey, CommittedOffset]:
        """The offsets of these partitions, or of all; those without a commit are left out. PenstockError if this node has none of them."""
        group = self._directory.find(group_id)
        if group is None:
            return {}
        if keys is None:
            return dict(group.offsets.items())
        found = ((key, group.offsets.get(key)) for key in keys)
        return {key: committed for key, committed in found if committed is not None}

    # -- delete

    def delete(self, group_id: GroupId, keys: Sequence[PartitionKey], done: DeleteDone) -> None:
        """Delete offsets that no member uses; PenstockError if the whole request is refused."""
        group = self._directory.find(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise PenstockError(
                Reason.GROUP_ID_NOT_FOUND, f"There is no group {group_id}; list the groups to find its name"
            )
        has_members = group.state is not GroupState.EMPTY
        if has_members and not group.uses_consumer_protocol:
            raise PenstockError(Reason.NON_EMPTY_GROUP, f"Group {group_id} has members; stop them first")
        answers: dict[PartitionKey, Reason | None] = {}
        deleted: list[PartitionKey] = []
        for key in keys:
            answers[key] = None
            if not self._partitions.exists(*key):
                answers[key] = Reason.UNKNOWN_TOPIC_OR_PARTITION
            elif has_members and (group.subscribed is None or key.topic in group.subscribed):
                answers[key] = Reason.GROUP_SUBSCRIBED_TO_TOPIC
            elif group.offsets.is_in_log(key):
                deleted.append(key)
        if deleted:
            self._delete(group, deleted, partial(_answer_delete, answers, deleted, done))
        else:
            done(answers)

    def forget_topic(self, topic: TopicName) -> None:
        """A topic was deleted: a new topic of that name has no offsets."""
        for group in list(self._directory.groups.values()):
            keys = group.offsets.keys_in_log(topic)
            if keys:
                # From memory at once: a topic of the same name may be created before the tombstones are durable.
                group.offsets.remove(keys)
                self._delete(group, keys, _ignore)

    def forget_missing_topics(self, group: Group, deleted: Collection[TopicName] = ()) -> None:
        """Drop offsets of topics that were deleted while their tombstones could not be written.

        Topics of the same names may exist by now: those in ``deleted``, and those whose id is not the one in the offset.
        """
        for topic in group.offsets.topics():
            if topic in deleted or not self._partitions.exists(topic, 0):
                keys = group.offsets.keys_in_log(topic)
            else:
                keys = group.offsets.of_others(topic, self._partitions.topic_id(topic))
            if keys:
                group.offsets.remove(keys)
                self._delete(group, keys, _ignore)

    def _delete(self, group: Group, keys: list[PartitionKey], done: StoredDone) -> None:
        self._directory.store(
            group.partition, tombstones(group.group_id, keys), partial(self._deleted, group, keys, done)
        )

    def _deleted(self, group: Group, keys: list[PartitionKey], done: StoredDone, reason: Reason | None) -> None:
        if reason is None:
            group.offsets.remove(keys)
            for key in keys:
                for on_forgotten in self.on_forgotten:
                    on_forgotten(group.group_id, key)
        done(reason)

    # -- expiry

    def next_deadline_ms(self) -> int:
        """Monotonic time of the next piece of work."""
        return self._sweep_due_ms

    def tick(self, now_ms: int) -> None:
        """Check some groups for expired offsets; a complete round takes as many ticks as it needs."""
        if now_ms < self._sweep_due_ms:
            return
        if self._sweep is None:
            self._sweep = iter(list(self._directory.groups.values()))
        for _ in range(SWEEP_GROUPS_MAX):
            group = next(self._sweep, None)
            if group is None:
                self._sweep = None
                self._sweep_due_ms = now_ms + EXPIRY_CHECK_INTERVAL_MS
                return
            if self._directory.groups.get(group.group_id) is group:
                self._expire(group)

    def _expire(self, group: Group) -> None:
        expired = self._expired(group)
        if expired:
            self._delete(group, expired, partial(self._expiry_stored, group))
        elif self._is_useless(group):
            self._directory.delete(group, _ignore)

    def _expiry_stored(self, group: Group, reason: Reason | None) -> None:
        if reason is None and self._is_useless(group) and self._directory.groups.get(group.group_id) is group:
            self._directory.delete(group, _ignore)

    def _is_useless(self, group: Group) -> bool:
        return group.is_void and not any(needs(group.group_id) for needs in self.needed_by)

    def _expired(self, group: Group) -> list[PartitionKey]:
        if group.state is GroupState.DEAD:
            return []
        now_ms = self._clock.now_ms()
        retention_ms = self._settings.offsets_retention_ms
        return [
            key
            for key, committed in group.offsets.items()
            # A tombstone would also remove a commit in flight.
            if not group.offsets.is_in_flight(key)
            and _is_expired(group, key, committed, now_ms, retention_ms)
            and not any(keeps(group.group_id, key) for keeps in self.kept_by)
        ]


def _is_expired(group: Group, key: PartitionKey, committed: CommittedOffset, now_ms: int, retention_ms: int) -> bool:
    if group.state is GroupState.EMPTY:
        if committed.expire_ms != NO_TIMESTAMP:
            return now_ms >= committed.expire_ms
        # Members kept the offsets alive until they left; without members each commit expires by itself.
        had_members = group.protocol_type is not None
        since_ms = max(group.state_since_ms, committed.commit_ms) if had_members else committed.commit_ms
        return now_ms - since_ms >= retention_ms
    if group.state is GroupState.STABLE and group.subscribed is not None and key.topic not in group.subscribed:
        return now_ms - committed.commit_ms >= retention_ms
    return False


def _answer_commit(
    answers: dict[PartitionKey, Reason | None],
    accepted: dict[PartitionKey, CommittedOffset],
    done: CommitDone,
    reason: Reason | None,
) -> None:
    done({key: reason if key in accepted else answer for key, answer in answers.items()})


def _answer_delete(
    answers: dict[PartitionKey, Reason | None], deleted: list[PartitionKey], done: DeleteDone, reason: Reason | None
) -> None:
    if reason is not None:
        answers.update(dict.fromkeys(deleted, reason))
    done(answers)


def _ignore(_: Reason | None) -> None:
    """No caller waits."""
