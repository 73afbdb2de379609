"""The door: which groups a node speaks for, what it keeps over a restart, and what an administrator sees."""

import pytest

from penstock.core.groups.commits import EXPIRY_CHECK_INTERVAL_MS
from penstock.core.groups.coordinator import GroupCoordinator
from penstock.core.groups.stored import StoredGroup, StoredMember, group_record
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import GroupDescription, GroupState, MemberProtocol
from penstock.types import GroupId, MemberId, PartitionKey
from tests.unit.core.groups.world import GROUP, TOPIC, Box, World, answered, subscription


@pytest.fixture
def world():
    return World()


def test_a_session_that_is_over_is_over_for_an_administrator_though_its_timer_has_not_run(world) -> None:
    world.stable(1)
    world.clock.move(10_000)
    assert world.groups.describe(GROUP).state is GroupState.EMPTY
    box = Box()
    world.groups.delete_groups([GROUP], box)
    assert box.answer == {GROUP: None}


class TestLoading:
    def test_a_restart_is_no_reason_to_rebalance(self, world) -> None:
        first, second = world.stable(2)
        world.commit(42, member=first, metadata="note", leader_epoch=7)
        world.advance(9_000)
        world.heartbeat(first)
        world.restart()
        assert world.state() is GroupState.STABLE
        world.advance(9_000)
        assert world.heartbeat(first) is world.heartbeat(second) is None
        assert world.sync(second).answer.assignment == b"part 1"
        committed = world.committed()
        assert (committed.offset, committed.metadata, committed.leader_epoch) == (42, "note", 7)

    def test_loaded_members_have_fresh_sessions_which_run_out(self, world) -> None:
        first, _ = world.stable(2)
        world.restart()
        world.advance(9_999)
        assert world.heartbeat(first) is None
        world.advance(1)
        assert world.heartbeat(first) is Reason.REBALANCE_IN_PROGRESS
        world.advance(100_000)
        assert world.state() is GroupState.EMPTY

    def test_a_loaded_group_goes_on_with_the_same_leader_and_the_next_generation(self, world) -> None:
        first, second = world.stable(2)
        world.restart()
        world.join(second.member_id, protocols=(MemberProtocol("range", subscription(TOPIC, "other")),))
        again = world.join(first.member_id).answer
        assert again.generation == first.generation + 1
        assert again.leader_id == first.member_id

    def test_a_generation_that_was_not_stored_is_as_if_it_had_not_been(self, world) -> None:
        (only,) = world.stable(1)
        world.join()
        again = world.join(only.member_id).answer
        assert again.generation == only.generation + 1
        world.restart()
        assert world.heartbeat(again) is Reason.ILLEGAL_GENERATION
        assert world.heartbeat(only) is None

    def test_static_members_are_known_after_a_restart(self, world) -> None:
        joined = world.join(instance_id="a").answer
        world.settle_generation([joined])
        world.restart()
        back = world.join(instance_id="a").answer
        assert back.generation == joined.generation
        assert world.sync(back, instance_id="a").answer.assignment == b"part 0"

    def test_groups_of_a_partition_that_is_being_replayed_are_loading_and_come_piece_by_piece(self, world) -> None:
        (only,) = world.stable(1)
        for offset in range(5_000):
            world.commit(offset, member=only)
        partition = world.log.partition_for(GROUP)
        world.groups.family.unload(partition)
        world.groups.family.begin_load(partition)
        assert world.join(only.member_id).answer.reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
        assert world.sync(only).answer.reason is Reason.REBALANCE_IN_PROGRESS
        assert world.heartbeat(only) is None
        assert world.commit_code(member=only) is Reason.COORDINATOR_LOAD_IN_PROGRESS
        assert world.groups.describe(GROUP).reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
        for call in (
            world.groups.list_groups,
            lambda: world.groups.fetch_offsets(GROUP, None),
            lambda: world.leave("m"),
        ):
            with pytest.raises(PenstockError) as refused:
                call()
            assert refused.value.reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
        ticks = 0
        while world.groups.describe(GROUP).reason is not None:
            assert world.groups.next_deadline_ms() <= world.clock.monotonic
            world.groups.tick(world.clock.monotonic)
            ticks += 1
        assert ticks == 3
        assert world.heartbeat(only) is None
        assert world.committed().offset == 4_999

    def test_a_node_that_does_not_have_the_partition_says_so_and_tells_those_who_wait(self, world) -> None:
        first, _ = world.stable(2)
        waiting = world.join(first.member_id)
        world.groups.family.unload(world.log.partition_for(GROUP))
        assert waiting.answer.reason is Reason.NOT_COORDINATOR
        assert world.heartbeat(first) is Reason.NOT_COORDINATOR
        assert world.join().answer.reason is Reason.NOT_COORDINATOR
        assert world.sync(first).answer.reason is Reason.NOT_COORDINATOR
        assert world.commit_code() is Reason.NOT_COORDINATOR
        assert set(world.groups.family.shards) == {0, 1, 2, 3} - {world.log.partition_for(GROUP)}
        world.groups.family.load(world.log.partition_for(GROUP))
        assert world.heartbeat(first) is None

    def test_a_generation_stored_after_the_partition_was_given_up_answers_nobody_twice(self, world) -> None:
        joined = world.join().answer
        world.log.hold = True
        box = world.sync(joined, {joined.member_id: b"x"})
        world.groups.family.unload(world.log.partition_for(GROUP))
        world.log.settle()
        assert box.answer.reason is Reason.NOT_COORDINATOR

    def test_stopping_tells_everybody_who_waits(self, world) -> None:
        first, _ = world.stable(2)
        waiting = world.join(first.member_id)
        world.groups.close()
        assert waiting.answer.reason is Reason.COORDINATOR_NOT_AVAILABLE

    def test_a_record_that_cannot_be_read_is_passed_over_and_reported(self, world) -> None:
        world.commit(3)
        partition = world.log.partition_for(GROUP)
        world.log.append(partition, [(b"\x00\x63", b""), (b"", b"")])
        world.commit(4, partition=1)
        world.restart()
        assert world.committed().offset == 3
        assert world.committed(1).offset == 4
        assert any("cannot be read" in report for report in world.reports)

    def test_a_group_stored_by_an_older_version_without_a_state_time_expires_by_its_commits(self, world) -> None:
        world.commit(3)
        stored = StoredGroup("consumer", 5, None, None, -1, ())
        world.log.append(world.log.partition_for(GROUP), [group_record(GROUP, stored)])
        world.restart()
        world.advance(world.settings.offsets_retention_ms - 20 * 60_000)
        assert world.committed().offset == 3
        world.advance(40 * 60_000)
        assert world.committed() is None

    def test_a_stored_group_that_contradicts_itself_is_still_loaded(self, world) -> None:
        twice = StoredMember(MemberId("m"), "i", "c", "h", 1_000, 6_000, b"", b"")
        stored = StoredGroup("consumer", 5, "range", MemberId("nobody"), 1, (twice, twice))
        world.log.append(world.log.partition_for(GROUP), [group_record(GROUP, stored)])
        world.restart()
        assert [member.member_id for member in world.groups.describe(GROUP).members] == ["m"]


class TestDescribing:
    def test_a_stable_group_is_described_in_full(self, world) -> None:
        first, second = world.stable(2)
        described = world.groups.describe(GROUP)
        assert (described.state, described.protocol_type, described.protocol) == (
            GroupState.STABLE,
            "consumer",
            "range",
        )
        assert [member.member_id for member in described.members] == [first.member_id, second.member_id]
        assert [member.assignment for member in described.members] == [b"part 0", b"part 1"]
        assert described.members[0].metadata == subscription(TOPIC)
        assert (described.members[0].client_id, described.members[0].client_host) == ("client", "/127.0.0.1")

    def test_between_generations_the_members_are_told_without_their_bytes(self, world) -> None:
        world.stable(2)
        world.join()
        described = world.groups.describe(GROUP)
        assert described.state is GroupState.PREPARING_REBALANCE
        assert described.protocol == ""
        assert {(member.metadata, member.assignment) for member in described.members} == {(b"", b"")}

    def test_an_unknown_group_is_dead(self, world) -> None:
        assert world.groups.describe(GROUP) == GroupDescription(GROUP, GroupState.DEAD)

    def test_groups_are_listed_by_state(self, world) -> None:
        world.stable(1)
        world.commit(1, group=GroupId("simple"))
        assert {(each.group_id, each.protocol_type, each.state) for each in world.groups.list_groups()} == {
            (GROUP, "consumer", GroupState.STABLE),
            ("simple", "", GroupState.EMPTY),
        }
        assert [each.group_id for each in world.groups.list_groups() if each.state is GroupState.EMPTY] == ["simple"]


class TestDeletingGroups:
    def delete(self, world, *group_ids):
        return answered(lambda done: world.groups.delete_groups([GroupId(each) for each in group_ids], done))

    def test_an_empty_group_is_deleted_for_good_with_its_offsets(self, world) -> None:
        (only,) = world.stable(1)
        world.commit(1, member=only)
        world.leave(only.member_id)
        world.commit(1, group=GroupId("simple"))
        assert self.delete(world, GROUP, "simple") == {GROUP: None, "simple": None}
        assert world.groups.list_groups() == []
        world.restart()
        assert world.groups.list_groups() == []
        assert world.committed() is None

    def test_a_group_with_members_and_an_unknown_one_are_not_deleted(self, world) -> None:
        world.stable(1)
        assert self.delete(world, GROUP, "nobody") == {
            GROUP: Reason.NON_EMPTY_GROUP,
            "nobody": Reason.GROUP_ID_NOT_FOUND,
        }
        assert world.state() is GroupState.STABLE

    def test_a_group_that_is_being_deleted_takes_nothing_new_until_that_is_settled(self, world) -> None:
        world.commit(1)
        world.log.hold = True
        commit = world.commit(2, partition=1)
        box: Box[dict[GroupId, Reason | None]] = Box()
        world.groups.delete_groups([GROUP], box)
        assert world.commit_code(3) is Reason.COORDINATOR_NOT_AVAILABLE
        assert world.join().answer.reason is Reason.COORDINATOR_NOT_AVAILABLE
        assert self.delete(world, GROUP) == {GROUP: Reason.GROUP_ID_NOT_FOUND}
        world.log.settle()
        assert list(commit.answer.values()) == [None]
        assert box.answer == {GROUP: None}
        world.restart()
        assert world.groups.list_groups() == []

    def test_a_deletion_that_cannot_be_stored_changes_nothing(self, world) -> None:
        world.commit(1)
        world.log.hold = True
        box: Box[dict[GroupId, Reason | None]] = Box()
        world.groups.delete_groups([GROUP], box)
        world.log.lose()
        assert box.answer == {GROUP: Reason.COORDINATOR_NOT_AVAILABLE}
        assert world.state() is GroupState.EMPTY
        assert world.committed().offset == 1

    def test_deleting_nothing_is_answered(self, world) -> None:
        assert self.delete(world) == {}


def test_idle_groups_cost_no_ticks(world) -> None:
    for index in range(500):
        world.commit(1, group=GroupId(f"g{index}"))
    due_ms = world.groups.next_deadline_ms()
    assert due_ms == world.clock.monotonic + EXPIRY_CHECK_INTERVAL_MS


def test_partitions_are_served_only_when_they_are_loaded(world) -> None:
    groups = GroupCoordinator(world.settings, world.log, world.topics, world.clock, world.entropy, world.reports.append)
    with pytest.raises(PenstockError) as refused:
        groups.fetch_offsets(GROUP, [PartitionKey(TOPIC, 0)])
    assert refused.value.reason is Reason.NOT_COORDINATOR
