"""Committed offsets: who may commit, when it counts, and when it is forgotten."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.core.groups.commits import EXPIRY_CHECK_INTERVAL_MS, OFFSET_MAX
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import CommitOffsets, GroupState, MemberProtocol, OffsetToCommit
from penstock.settings import GroupSettings
from penstock.types import GroupId, PartitionKey, TopicName
from tests.unit.core.groups.world import GROUP, TOPIC, Box, World, answered, subscription

OTHER = TopicName("other")
DAY_MS = 24 * 60 * 60 * 1000
RETENTION_MS = 7 * DAY_MS


@pytest.fixture
def world():
    return World()


class TestCommitting:
    def test_a_consumer_without_membership_commits_to_a_group_that_nobody_made(self, world) -> None:
        assert world.commit_code(7, metadata="note", leader_epoch=3) is None
        committed = world.committed()
        assert (committed.offset, committed.metadata, committed.leader_epoch) == (7, "note", 3)
        assert world.state() is GroupState.EMPTY

    def test_any_offset_is_taken_as_it_was_sent(self, world) -> None:
        world.commit(10**12)
        assert world.committed().offset == 10**12
        world.commit(1)
        assert world.committed().offset == 1

    def test_a_member_commits_in_its_generation_and_that_keeps_it_alive(self, world) -> None:
        (only,) = world.stable(1)
        for offset in range(5):
            world.advance(9_000)
            assert world.commit_code(offset, member=only) is None
        assert world.heartbeat(only) is None
        assert world.committed().offset == 4

    def test_a_commit_without_membership_is_refused_while_the_group_has_members(self, world) -> None:
        world.stable(1)
        assert world.commit_code() is Reason.UNKNOWN_MEMBER_ID
        assert world.committed() is None

    def test_a_commit_from_another_generation_or_member_is_refused(self, world) -> None:
        (only,) = world.stable(1)
        assert world.commit_code(group=GroupId("nobody"), member=only) is Reason.ILLEGAL_GENERATION
        assert world.commit_code(member=world_member(only, generation=9)) is Reason.ILLEGAL_GENERATION
        assert world.commit_code(member=world_member(only, member_id="stranger")) is Reason.UNKNOWN_MEMBER_ID
        world.leave(only.member_id)
        assert world.commit_code(member=only) is Reason.UNKNOWN_MEMBER_ID

    def test_members_may_still_commit_while_the_group_prepares_but_not_before_they_have_partitions(self, world) -> None:
        (only,) = world.stable(1)
        world.join()
        assert world.commit_code(3, member=only) is None
        again = world.join(only.member_id).answer
        assert world.commit_code(4, member=again) is Reason.REBALANCE_IN_PROGRESS
        assert world.commit_code(4, member=only) is Reason.ILLEGAL_GENERATION
        assert world.committed().offset == 3

    def test_each_partition_has_its_own_answer(self, world) -> None:
        items = (
            OffsetToCommit(PartitionKey(TOPIC, 0), 1),
            OffsetToCommit(PartitionKey(TOPIC, 99), 1),
            OffsetToCommit(PartitionKey(TopicName("nowhere"), 0), 1),
            OffsetToCommit(PartitionKey(TOPIC, 1), 1, metadata="ä" * 2049),
            OffsetToCommit(PartitionKey(TOPIC, 2), 1, metadata="ä" * 2048),
        )
        answers = answered(lambda done: world.groups.commit_offsets(CommitOffsets(GROUP, items), done))
        assert list(answers.values()) == [
            None,
            Reason.UNKNOWN_TOPIC_OR_PARTITION,
            Reason.UNKNOWN_TOPIC_OR_PARTITION,
            Reason.OFFSET_METADATA_TOO_LARGE,
            None,
        ]
        assert set(world.groups.fetch_offsets(GROUP, None)) == {PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 2)}

    def test_a_commit_of_which_nothing_is_taken_leaves_no_group_behind(self, world) -> None:
        assert world.commit_code(topic=TopicName("nowhere")) is Reason.UNKNOWN_TOPIC_OR_PARTITION
        assert world.groups.list_groups() == []

    def test_a_commit_counts_and_is_answered_once_it_is_durable(self, world) -> None:
        world.commit(1)
        world.log.hold = True
        box = world.commit(2)
        assert box.waits
        assert world.committed().offset == 1
        world.log.settle()
        assert list(box.answer.values()) == [None]
        assert world.committed().offset == 2

    @pytest.mark.parametrize("at_once", [True, False])
    def test_a_commit_that_cannot_be_stored_is_refused_and_changes_nothing(self, world, at_once) -> None:
        world.commit(1)
        world.log.hold = True
        world.log.refuse_append = Reason.STORAGE_ERROR if at_once else None
        box = world.commit(2)
        new = world.commit(2, group=GroupId("new"))
        if not at_once:
            world.log.lose()
        assert list(box.answer.values()) == list(new.answer.values()) == [Reason.COORDINATOR_NOT_AVAILABLE]
        assert world.committed().offset == 1
        assert [group.group_id for group in world.groups.list_groups()] == [GROUP]

    def test_a_commit_larger_than_the_log_takes_says_so(self, world) -> None:
        world.log.refuse_append = Reason.RECORDS_TOO_LARGE
        assert world.commit_code() is Reason.INVALID_COMMIT_OFFSET_SIZE

    def test_an_unknown_group_has_no_offsets_and_that_is_no_error(self, world) -> None:
        assert world.groups.fetch_offsets(GroupId("nobody"), [PartitionKey(TOPIC, 0)]) == {}
        assert world.groups.fetch_offsets(GroupId("nobody"), None) == {}


def world_member(joined, **changes):
    return replace(joined, **changes)


class TestCommitWithoutMembership:
    def commit(self, world, offset, partition=0, topic=TOPIC, group=GROUP):
        item = OffsetToCommit(PartitionKey(topic, partition), offset)
        box: Box[Reason | None] = Box()
        world.groups.commit_offset(group, item, box)
        return box

    @pytest.mark.parametrize("offset", [0, 57, 100, OFFSET_MAX])
    def test_any_offset_from_0_on_is_accepted_and_survives_a_restart(self, world, offset) -> None:
        assert self.commit(world, 80).answer is None
        assert self.commit(world, offset).answer is None
        assert world.committed().offset == offset
        world.restart()
        assert world.committed().offset == offset

    @pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1])
    def test_an_offset_that_cannot_exist_is_refused_and_nothing_changes(self, world, offset) -> None:
        self.commit(world, 80)
        with pytest.raises(PenstockError, match=f"Offset {offset} cannot be committed") as refused:
            self.commit(world, offset)
        assert refused.value.reason is Reason.OFFSET_OUT_OF_RANGE
        assert world.committed().offset == 80

    def test_an_unknown_partition_is_refused(self, world) -> None:
        with pytest.raises(PenstockError) as refused:
            self.commit(world, 1, partition=99)
        assert refused.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(PenstockError) as refused:
            self.commit(world, 1, group=GroupId(""))
        assert refused.value.reason is Reason.INVALID_GROUP_ID
        assert world.groups.list_groups() == []

    def test_it_needs_no_membership_since_these_apis_have_none(self, world) -> None:
        world.stable(1)
        assert self.commit(world, 5).answer is None


class TestDeletingOffsets:
    def delete(self, world, *keys, group=GROUP):
        return answered(lambda done: world.groups.delete_offsets(group, list(keys), done))

    def test_offsets_of_an_empty_group_are_deleted_for_good(self, world) -> None:
        world.commit(1)
        world.commit(2, partition=1)
        key = PartitionKey(TOPIC, 0)
        assert self.delete(world, key, PartitionKey(TOPIC, 5), PartitionKey(TopicName("nowhere"), 0)) == {
            key: None,
            PartitionKey(TOPIC, 5): None,
            PartitionKey(TopicName("nowhere"), 0): Reason.UNKNOWN_TOPIC_OR_PARTITION,
        }
        world.restart()
        assert world.committed() is None
        assert world.committed(1).offset == 2

    def test_offsets_that_members_read_by_are_kept(self, world) -> None:
        (only,) = world.stable(1)
        world.commit(1, member=only)
        world.commit(1, member=only, topic=OTHER)
        mine, others = PartitionKey(TOPIC, 0), PartitionKey(OTHER, 0)
        assert self.delete(world, mine, others) == {mine: Reason.GROUP_SUBSCRIBED_TO_TOPIC, others: None}
        assert world.committed().offset == 1
        assert world.committed(topic=OTHER) is None

    def test_a_group_with_members_of_another_kind_is_not_touched(self, world) -> None:
        world.stable(1, protocol_type="connect")
        with pytest.raises(PenstockError) as refused:
            self.delete(world, PartitionKey(TOPIC, 0))
        assert refused.value.reason is Reason.NON_EMPTY_GROUP

    def test_an_unknown_group_is_not_found(self, world) -> None:
        with pytest.raises(PenstockError) as refused:
            self.delete(world, PartitionKey(TOPIC, 0))
        assert refused.value.reason is Reason.GROUP_ID_NOT_FOUND

    def test_a_deletion_covers_commits_that_are_not_durable_yet(self, world) -> None:
        world.log.hold = True
        commit = world.commit(1)
        box: Box[dict[PartitionKey, Reason | None]] = Box()
        world.groups.delete_offsets(GROUP, [PartitionKey(TOPIC, 0)], box)
        world.log.settle()
        assert list(commit.answer.values()) == list(box.answer.values()) == [None]
        assert world.committed() is None
        world.restart()
        assert world.committed() is None

    def test_a_commit_behind_a_deletion_stays(self, world) -> None:
        world.commit(1)
        world.log.hold = True
        world.groups.delete_offsets(GROUP, [PartitionKey(TOPIC, 0)], Box())
        world.commit(2)
        world.log.settle()
        assert world.committed().offset == 2
        world.restart()
        assert world.committed().offset == 2

    def test_a_deletion_that_cannot_be_stored_changes_nothing(self, world) -> None:
        world.commit(1)
        world.log.hold = True
        box: Box[dict[PartitionKey, Reason | None]] = Box()
        world.groups.delete_offsets(GROUP, [PartitionKey(TOPIC, 0)], box)
        world.log.lose()
        assert list(box.answer.values()) == [Reason.COORDINATOR_NOT_AVAILABLE]
        assert world.committed().offset == 1


class TestDeletedTopics:
    def test_the_offsets_of_a_deleted_topic_are_gone_in_every_group_at_once_and_for_good(self, world) -> None:
        groups = [GroupId(f"g{index}") for index in range(5)]
        for group in groups:
            world.commit(1, group=group)
            world.commit(2, group=group, topic=OTHER)
        world.log.hold = True
        world.groups.forget_topic(TOPIC)
        assert [world.committed(group=group) for group in groups] == [None] * 5
        world.log.settle()
        world.restart()
        assert [world.committed(group=group) for group in groups] == [None] * 5
        assert [world.committed(group=group, topic=OTHER).offset for group in groups] == [2] * 5

    def test_offsets_of_a_topic_that_went_while_nothing_could_be_stored_are_dropped_at_the_next_start(
        self, world
    ) -> None:
        world.commit(1)
        world.log.refuse_append = Reason.STORAGE_ERROR
        world.groups.forget_topic(TOPIC)
        assert world.committed() is None
        count = world.topics.counts.pop(TOPIC)
        world.log.refuse_append = None
        world.restart()
        world.topics.counts[TOPIC] = count
        assert world.committed() is None
        world.restart()
        assert world.committed() is None

    def test_offsets_of_a_topic_that_had_the_name_before_are_dropped_at_the_next_load(self, world) -> None:
        world.commit(1)
        world.commit(2, topic=OTHER)
        world.topics.ids[TOPIC] = UUID(int=9)
        world.restart()
        assert world.committed() is None
        assert world.committed(topic=OTHER).offset == 2
        world.commit(3)
        world.restart()
        assert world.committed().offset == 3


class TestExpiry:
    def test_offsets_of_a_consumer_without_membership_expire_by_their_last_commit(self, world) -> None:
        world.commit(1)
        world.advance(RETENTION_MS - DAY_MS)
        world.commit(2, partition=1)
        world.advance(DAY_MS + 10 * 60_000)
        assert world.committed() is None
        assert world.committed(1).offset == 2
        world.restart()
        assert world.committed() is None
        assert world.committed(1).offset == 2

    def test_a_group_without_members_and_offsets_is_forgotten_for_good(self, world) -> None:
        (only,) = world.stable(1)
        world.commit(1, member=only)
        world.leave(only.member_id)
        world.advance(RETENTION_MS + 10 * 60_000)
        assert world.groups.list_groups() == []
        assert set(world.log.compacted(world.log.partition_for(GROUP)).values()) == {None}

    def test_a_group_that_never_committed_is_forgotten_soon_after_its_last_member_left(self, world) -> None:
        (only,) = world.stable(1)
        world.leave(only.member_id)
        world.advance(EXPIRY_CHECK_INTERVAL_MS)
        assert world.groups.list_groups() == []
        world.restart()
        assert world.groups.list_groups() == []

    def test_members_keep_the_offsets_of_their_topics_alive_however_old_they_are(self, world) -> None:
        (only,) = world.stable(1, session_timeout_ms=1_800_000)
        world.commit(1, member=only)
        world.commit(1, member=only, topic=OTHER)
        for _ in range(8 * 72):
            world.advance(DAY_MS // 72)
            assert world.heartbeat(only) is None
        assert world.committed().offset == 1
        assert world.committed(topic=OTHER) is None
        world.leave(only.member_id)
        world.advance(RETENTION_MS - 20 * 60_000)
        assert world.committed().offset == 1
        world.advance(40 * 60_000)
        assert world.committed() is None

    def test_offsets_of_members_whose_topics_cannot_be_known_are_kept(self, world) -> None:
        opaque = (MemberProtocol("range", b"?"),)
        (only,) = world.stable(1, session_timeout_ms=1_800_000, protocols=opaque)
        world.commit(1, member=only)
        for _ in range(8 * 72):
            world.advance(DAY_MS // 72)
            assert world.heartbeat(only) is None
        assert world.committed().offset == 1

    def test_a_client_that_says_how_long_to_keep_its_offsets_is_heeded(self, world) -> None:
        world.commit(1, retention_ms=DAY_MS)
        world.restart()
        world.advance(DAY_MS - 20 * 60_000)
        assert world.committed().offset == 1
        world.advance(40 * 60_000)
        assert world.committed() is None

    def test_a_commit_on_its_way_is_not_taken_away_by_the_expiry_of_the_one_before(self, world) -> None:
        world.commit(1)
        world.log.hold = True
        world.advance(RETENTION_MS - 1_000)
        world.commit(2)
        world.advance(30 * 60_000)
        world.log.settle()
        assert world.committed().offset == 2
        world.restart()
        assert world.committed().offset == 2

    def test_a_tick_looks_at_a_bounded_number_of_groups(self) -> None:
        world = World(settings=GroupSettings(offsets_retention_minutes=1))
        for index in range(1_000):
            world.commit(1, group=GroupId(f"g{index}"))
        world.clock.move(EXPIRY_CHECK_INTERVAL_MS)
        left = []
        while world.groups.next_deadline_ms() <= world.clock.monotonic:
            world.groups.tick(world.clock.monotonic)
            left.append(len(world.groups.list_groups()))
        assert left[0] == 800
        assert left[-1] == 0
        assert len(left) == 6


def test_subscriptions_decide_only_for_the_topics_they_name(world) -> None:
    both = (MemberProtocol("range", subscription(TOPIC, OTHER)),)
    (only,) = world.stable(1, protocols=both)
    world.commit(1, member=only, topic=OTHER)
    key = PartitionKey(OTHER, 0)
    assert answered(lambda done: world.groups.delete_offsets(GROUP, [key], done)) == {
        key: Reason.GROUP_SUBSCRIBED_TO_TOPIC
    }


class TestFirstOffsets:
    def start(self, world, topic=TOPIC, group=GROUP):
        box: Box[Reason | None] = Box()
        world.groups.start_offsets(group, topic, box)
        return box

    def offsets(self, world):
        return {key.partition: found.offset for key, found in world.groups.fetch_offsets(GROUP, None).items()}

    def test_a_group_starts_at_0_in_each_partition(self, world) -> None:
        assert self.start(world).answer is None
        assert self.offsets(world) == dict.fromkeys(range(8), 0)
        world.restart()
        assert self.offsets(world) == dict.fromkeys(range(8), 0)

    def test_offsets_that_the_group_has_stay(self, world) -> None:
        world.commit(5, partition=3)
        assert self.start(world).answer is None
        assert self.start(world).answer is None
        assert self.offsets(world) == {**dict.fromkeys(range(8), 0), 3: 5}

    def test_a_commit_on_its_way_stays(self, world) -> None:
        world.log.hold = True
        box: Box[Reason | None] = Box()
        world.groups.commit_offset(GROUP, OffsetToCommit(PartitionKey(TOPIC, 3), 5), box)
        started = self.start(world)
        world.log.settle()
        assert (box.answer, started.answer) == (None, None)
        assert self.offsets(world) == {**dict.fromkeys(range(8), 0), 3: 5}

    def test_a_topic_of_many_partitions_is_stored_in_several_batches(self, world) -> None:
        world.topics.counts[TOPIC] = 2500
        assert self.start(world).answer is None
        assert len(self.offsets(world)) == 2500

    def test_a_failure_is_told(self, world) -> None:
        world.log.refuse_append = Reason.STORAGE_ERROR
        assert self.start(world).answer is Reason.COORDINATOR_NOT_AVAILABLE
        assert world.groups.list_groups() == []

    def test_a_group_needs_a_name(self, world) -> None:
        with pytest.raises(PenstockError) as refused:
            self.start(world, group=GroupId(""))
        assert refused.value.reason is Reason.INVALID_GROUP_ID
        assert world.groups.list_groups() == []
