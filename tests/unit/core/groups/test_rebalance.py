"""The life of a membership, rule by rule, under a clock that the test moves."""

import pytest

from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_METADATA_BYTES_MAX, GROUP_PROTOCOLS_MAX
from penstock.operations.groups import GroupState, MemberProtocol
from penstock.settings import GroupSettings
from penstock.types import GroupId, MemberId
from tests.unit.core.groups.world import GROUP, TOPIC, World, subscription


@pytest.fixture
def world():
    return World()


def protocols(*names: str) -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name, subscription(TOPIC)) for name in names)


class TestJoining:
    def test_the_first_member_leads_and_is_told_everybodys_bytes(self, world) -> None:
        joined = world.join(protocols=(MemberProtocol("range", b"opaque"),)).answer
        assert joined.reason is None
        assert joined.generation == 1
        assert joined.leader_id == joined.member_id
        assert joined.member_id.startswith("client-")
        assert (joined.protocol_type, joined.protocol) == ("consumer", "range")
        assert [(each.member_id, each.metadata) for each in joined.members] == [(joined.member_id, b"opaque")]
        assert world.state() is GroupState.COMPLETING_REBALANCE

    def test_a_second_member_makes_the_group_rebalance_and_only_the_leader_is_told_the_members(self, world) -> None:
        first = world.join().answer
        second = world.join()
        assert second.waits
        assert world.heartbeat(first) is Reason.REBALANCE_IN_PROGRESS
        again = world.join(first.member_id).answer
        assert again.generation == second.answer.generation == 2
        assert again.leader_id == second.answer.leader_id == first.member_id
        assert {each.member_id for each in again.members} == {first.member_id, second.answer.member_id}
        assert second.answer.members == ()

    def test_a_client_that_can_take_an_id_first_gets_one_and_joins_with_it(self, world) -> None:
        refused = world.join(require_known_member_id=True).answer
        assert refused.reason is Reason.MEMBER_ID_REQUIRED
        assert refused.member_id.startswith("client-")
        joined = world.join(refused.member_id, require_known_member_id=True).answer
        assert joined.reason is None
        assert joined.member_id == refused.member_id

    def test_an_id_that_was_given_out_and_not_used_is_forgotten_with_its_group(self, world) -> None:
        refused = world.join(require_known_member_id=True).answer
        world.advance(10_001)
        assert world.join(refused.member_id).answer.reason is Reason.UNKNOWN_MEMBER_ID
        assert world.groups.list_groups() == []

    def test_a_rebalance_waits_for_an_id_that_was_given_out_until_its_session_is_over(self, world) -> None:
        world.stable(1)
        (leader,) = (member.member_id for member in world.groups.describe(GROUP).members)
        world.join(require_known_member_id=True)
        again = world.join(leader)
        assert again.waits
        world.advance(10_000)
        assert again.answer.reason is None

    def test_an_unknown_member_id_is_refused(self, world) -> None:
        assert world.join("nobody").answer.reason is Reason.UNKNOWN_MEMBER_ID
        world.stable(1)
        assert world.join("nobody").answer.reason is Reason.UNKNOWN_MEMBER_ID

    def test_a_group_needs_a_name(self, world) -> None:
        assert world.join(group=GroupId("")).answer.reason is Reason.INVALID_GROUP_ID
        assert world.join(group=GroupId("g" * 250)).answer.reason is Reason.INVALID_GROUP_ID

    @pytest.mark.parametrize(
        ("timeout_ms", "accepted"), [(5_999, False), (6_000, True), (1_800_000, True), (1_800_001, False)]
    )
    def test_the_session_timeout_has_bounds(self, world, timeout_ms, accepted) -> None:
        reason = world.join(session_timeout_ms=timeout_ms).answer.reason
        assert reason is (None if accepted else Reason.INVALID_SESSION_TIMEOUT)

    def test_what_a_member_makes_the_broker_remember_is_bounded(self, world) -> None:
        too_long = (MemberProtocol("range", bytes(GROUP_METADATA_BYTES_MAX + 1)),)
        assert world.join(protocols=too_long).answer.reason is Reason.INVALID_REQUEST
        too_many = tuple(MemberProtocol(f"p{index}", b"") for index in range(GROUP_PROTOCOLS_MAX + 1))
        assert world.join(protocols=too_many).answer.reason is Reason.INVALID_REQUEST
        assert world.join(instance_id="i" * 250).answer.reason is Reason.INVALID_REQUEST
        assert world.groups.list_groups() == []

    def test_all_subscriptions_of_a_group_together_are_bounded(self, world) -> None:
        large = (MemberProtocol("range", bytes(GROUP_METADATA_BYTES_MAX - 5)),)
        reasons = [
            box.answers[0].reason if box.answers else None for box in (world.join(protocols=large) for _ in range(33))
        ]
        assert reasons == [None] * 32 + [Reason.GROUP_MAX_SIZE_REACHED]

    def test_a_member_id_stays_short_however_long_the_client_id_is(self, world) -> None:
        assert len(world.join(client_id="c" * 30_000).answer.member_id) < 300

    def test_a_join_that_is_sent_again_answers_the_first_one_too(self, world) -> None:
        first, second = world.stable(2)
        rejoined = world.join(first.member_id)
        assert rejoined.waits
        sent_again = world.join(first.member_id)
        assert rejoined.answer.reason is Reason.REBALANCE_IN_PROGRESS
        world.join(second.member_id)
        assert sent_again.answer.reason is None

    def test_the_group_has_a_size_and_who_is_turned_away_leaves_nothing_behind(self) -> None:
        world = World(settings=GroupSettings(initial_rebalance_delay_ms=0, members_max=2))
        first, second = world.stable(2)
        assert world.join().answer.reason is Reason.GROUP_MAX_SIZE_REACHED
        assert world.join(require_known_member_id=True).answer.reason is Reason.GROUP_MAX_SIZE_REACHED
        assert world.state() is GroupState.STABLE
        assert world.leave(second.member_id) == [None]
        third = world.join()
        world.join(first.member_id)
        assert third.answer.reason is None

    def test_ids_given_out_count_for_the_size_of_the_group(self) -> None:
        world = World(settings=GroupSettings(initial_rebalance_delay_ms=0, members_max=2))
        given = [world.join(require_known_member_id=True).answer for _ in range(3)]
        assert [each.reason for each in given] == [
            Reason.MEMBER_ID_REQUIRED,
            Reason.MEMBER_ID_REQUIRED,
            Reason.GROUP_MAX_SIZE_REACHED,
        ]
        assert world.join(given[0].member_id).answer.reason is None

    def test_the_number_of_groups_is_bounded(self, world, monkeypatch) -> None:
        monkeypatch.setattr("penstock.core.groups.directory.GROUPS_MAX", 2)
        for name in ("a", "b"):
            assert world.join(group=GroupId(name)).answer.reason is None
        assert world.join(group=GroupId("c")).answer.reason is Reason.POLICY_VIOLATION
        assert world.commit_code(group=GroupId("c")) is Reason.POLICY_VIOLATION


class TestInitialDelay:
    @pytest.fixture
    def world(self):
        return World(settings=GroupSettings(initial_rebalance_delay_ms=3_000))

    def test_an_empty_group_waits_for_more_members_before_its_first_generation(self, world) -> None:
        first = world.join()
        world.advance(2_999)
        assert first.waits
        world.advance(1)
        assert first.answer.generation == 1

    def test_the_wait_is_extended_while_members_arrive_so_that_they_share_one_generation(self, world) -> None:
        boxes = [world.join()]
        for _ in range(3):
            world.advance(2_000)
            boxes.append(world.join())
        world.advance(3_000)
        assert [box.waits for box in boxes] == [True] * 4
        world.advance(3_000)
        assert [box.answer.generation for box in boxes] == [1] * 4
        assert len({box.answer.leader_id for box in boxes}) == 1

    def test_the_wait_is_never_longer_than_the_rebalance_timeout(self, world) -> None:
        boxes = [world.join(rebalance_timeout_ms=10_000)]
        for _ in range(9):
            world.advance(1_000)
            boxes.append(world.join(rebalance_timeout_ms=10_000))
        world.advance(999)
        assert all(box.waits for box in boxes)
        world.advance(1)
        assert {box.answer.generation for box in boxes} == {1}

    def test_a_group_that_had_members_does_not_wait(self, world) -> None:
        first = world.join()
        world.advance(3_000)
        world.settle_generation([first.answer])
        second = world.join()
        world.join(first.answer.member_id)
        assert second.answer.generation == 2


class TestProtocols:
    def test_the_protocol_with_most_votes_among_those_all_support_wins(self, world) -> None:
        first = world.join(protocols=protocols("sticky", "range", "roundrobin")).answer
        boxes = [
            world.join(protocols=protocols("range", "sticky")),
            world.join(protocols=protocols("only-mine", "range", "sticky")),
            world.join(first.member_id, protocols=protocols("sticky", "range", "roundrobin")),
        ]
        assert {box.answer.protocol for box in boxes} == {"range"}

    def test_a_member_without_a_protocol_in_common_is_refused(self, world) -> None:
        world.stable(1)
        assert world.join(protocols=protocols("roundrobin")).answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.join(protocol_type="connect").answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.state() is GroupState.STABLE

    def test_a_member_needs_a_protocol_and_a_type(self, world) -> None:
        assert world.join(protocols=()).answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.join(protocol_type="").answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.groups.list_groups() == []

    def test_an_empty_group_takes_another_protocol_type(self, world) -> None:
        (only,) = world.stable(1)
        world.leave(only.member_id)
        assert world.join(protocol_type="connect", protocols=protocols("compatible")).answer.reason is None

    def test_two_members_that_prefer_different_protocols_can_move_to_a_new_one_in_two_steps(self, world) -> None:
        first, second = world.stable(2, protocols=protocols("range"))
        world.join(first.member_id, protocols=protocols("cooperative-sticky", "range"))
        moved = world.join(second.member_id, protocols=protocols("cooperative-sticky", "range")).answer
        assert moved.protocol == "cooperative-sticky"


class TestSyncing:
    def test_everybody_gets_what_the_leader_assigned_and_the_rest_gets_nothing(self, world) -> None:
        first = world.join().answer
        second = world.join()
        first = world.join(first.member_id).answer
        waiting = world.sync(second.answer)
        assert waiting.waits
        leader = world.sync(first, {first.member_id: b"mine", "stranger": b"x"})
        assert leader.answer.assignment == b"mine"
        assert waiting.answer.assignment == b""
        assert waiting.answer.reason is None
        assert world.state() is GroupState.STABLE

    def test_a_stable_group_answers_a_sync_at_once(self, world) -> None:
        _, second = world.stable(2)
        assert world.sync(second).answer.assignment == b"part 1"

    def test_nobody_is_answered_before_the_generation_is_stored(self, world) -> None:
        joined = world.join().answer
        world.log.hold = True
        box = world.sync(joined, {joined.member_id: b"mine"})
        assert box.waits
        assert world.state() is GroupState.COMPLETING_REBALANCE
        world.log.settle()
        assert box.answer.assignment == b"mine"
        assert world.state() is GroupState.STABLE

    @pytest.mark.parametrize("at_once", [True, False])
    def test_when_the_generation_cannot_be_stored_all_are_told_and_join_again(self, world, at_once) -> None:
        joined = world.join().answer
        world.log.hold = True
        if at_once:
            world.log.refuse_append = Reason.STORAGE_ERROR
        box = world.sync(joined, {joined.member_id: b"mine"})
        if not at_once:
            world.log.lose()
        assert box.answer.reason is Reason.COORDINATOR_NOT_AVAILABLE
        assert world.state() is GroupState.PREPARING_REBALANCE
        assert world.reports
        world.log.hold, world.log.refuse_append = False, None
        again = world.join(joined.member_id).answer
        assert world.settle_generation([again]) == [b"part 0"]

    def test_a_member_that_joins_while_the_generation_is_being_stored_makes_it_void(self, world) -> None:
        joined = world.join().answer
        world.log.hold = True
        box = world.sync(joined, {joined.member_id: b"mine"})
        world.join()
        assert box.answer.reason is Reason.REBALANCE_IN_PROGRESS
        world.log.settle()
        assert world.state() is GroupState.PREPARING_REBALANCE

    def test_an_assignment_stored_too_late_is_not_given_to_the_next_generation(self, world) -> None:
        joined = world.join().answer
        world.log.hold = True
        world.sync(joined, {joined.member_id: b"old"})
        world.join()
        again = world.join(joined.member_id).answer
        assert again.generation == joined.generation + 1
        box = world.sync(again, {joined.member_id: b"new"})
        world.log.settle()
        assert box.answer.assignment == b"new"

    def test_a_leader_that_assigns_again_while_its_assignment_is_being_stored_does_not_change_it(self, world) -> None:
        joined = world.join().answer
        world.log.hold = True
        lost = world.sync(joined, {joined.member_id: b"first"})
        again = world.sync(joined, {joined.member_id: b"second"})
        world.log.settle()
        assert lost.answer.reason is Reason.REBALANCE_IN_PROGRESS
        assert again.answer.assignment == b"first"
        world.restart()
        assert world.sync(joined).answer.assignment == b"first"

    def test_a_member_that_waited_for_its_assignment_longer_than_its_session_is_watched_again(self, world) -> None:
        first = world.join().answer
        second = world.join()
        first = world.join(first.member_id).answer
        waiting = world.sync(second.answer)
        for _ in range(3):
            world.advance(6_000)
            assert world.heartbeat(first) is None
        world.sync(first)
        assert waiting.answer.reason is None
        for _ in range(2):
            world.advance(5_000)
            world.heartbeat(first)
        assert world.heartbeat(second.answer) is Reason.UNKNOWN_MEMBER_ID

    def test_a_sync_that_is_sent_again_answers_the_first_one_too(self, world) -> None:
        first = world.join().answer
        second = world.join()
        first = world.join(first.member_id).answer
        waiting = world.sync(second.answer)
        again = world.sync(second.answer)
        assert waiting.answer.reason is Reason.REBALANCE_IN_PROGRESS
        world.sync(first, {second.answer.member_id: b"yours"})
        assert again.answer.assignment == b"yours"

    def test_syncs_are_checked(self, world) -> None:
        first, _ = world.stable(2)
        assert world.sync(first, generation=first.generation + 1).answer.reason is Reason.ILLEGAL_GENERATION
        assert world.sync(first, group=GroupId("nobody")).answer.reason is Reason.UNKNOWN_MEMBER_ID
        assert world.sync(first, group=GroupId("")).answer.reason is Reason.INVALID_GROUP_ID
        assert world.sync(first, protocol_type="connect").answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.sync(first, protocol="sticky").answer.reason is Reason.INCONSISTENT_GROUP_PROTOCOL
        assert world.sync(first, protocol_type="consumer", protocol="range").answer.reason is None
        world.join()
        assert world.sync(first).answer.reason is Reason.REBALANCE_IN_PROGRESS

    def test_an_assignment_has_a_size(self, world) -> None:
        joined = world.join().answer
        too_long = bytes(GROUP_METADATA_BYTES_MAX + 1)
        assert world.sync(joined, {joined.member_id: too_long}).answer.reason is Reason.INVALID_REQUEST

    def test_a_member_that_joins_again_unchanged_before_the_sync_gets_the_same_generation(self, world) -> None:
        first = world.join().answer
        again = world.join(first.member_id).answer
        assert again == first

    def test_a_stable_follower_that_joins_again_unchanged_changes_nothing(self, world) -> None:
        first, second = world.stable(2)
        again = world.join(second.member_id).answer
        assert again.generation == second.generation
        assert again.leader_id == first.member_id
        assert world.state() is GroupState.STABLE

    def test_a_stable_leader_that_joins_again_wants_a_rebalance(self, world) -> None:
        first, _ = world.stable(2)
        assert world.join(first.member_id).waits
        assert world.state() is GroupState.PREPARING_REBALANCE

    def test_a_follower_with_a_new_subscription_makes_the_group_rebalance(self, world) -> None:
        _, second = world.stable(2)
        changed = (MemberProtocol("range", subscription("other")),)
        assert world.join(second.member_id, protocols=changed).waits
        assert world.state() is GroupState.PREPARING_REBALANCE


class TestHeartbeats:
    def test_a_heartbeat_is_answered_by_the_state_of_the_group(self, world) -> None:
        joined = world.join().answer
        assert world.heartbeat(joined) is None
        world.settle_generation([joined])
        assert world.heartbeat(joined) is None
        world.join()
        assert world.heartbeat(joined) is Reason.REBALANCE_IN_PROGRESS

    def test_heartbeats_are_checked(self, world) -> None:
        (joined,) = world.stable(1)
        assert world.heartbeat(joined, generation=9) is Reason.ILLEGAL_GENERATION
        assert world.heartbeat(joined, group=GroupId("nobody")) is Reason.UNKNOWN_MEMBER_ID
        assert world.heartbeat(joined, group=GroupId("")) is Reason.INVALID_GROUP_ID
        world.leave(joined.member_id)
        assert world.heartbeat(joined) is Reason.UNKNOWN_MEMBER_ID

    def test_a_silent_member_loses_its_place_when_its_session_is_over(self, world) -> None:
        first, second = world.stable(2)
        world.advance(9_000)
        assert world.heartbeat(first) is None
        world.advance(1_000)
        assert world.heartbeat(first) is Reason.REBALANCE_IN_PROGRESS
        again = world.join(first.member_id).answer
        assert [each.member_id for each in again.members] == [first.member_id]
        assert world.heartbeat(second) is Reason.UNKNOWN_MEMBER_ID

    def test_a_group_whose_members_all_fell_silent_is_empty_and_its_next_generation_is_higher(self, world) -> None:
        first, _ = world.stable(2)
        world.advance(10_000)
        assert world.state() is GroupState.EMPTY
        assert world.join().answer.generation > first.generation

    def test_a_leader_that_never_brings_the_assignment_is_removed_and_those_who_wait_join_again(self, world) -> None:
        first = world.join().answer
        second = world.join()
        first = world.join(first.member_id).answer
        waiting = world.sync(second.answer)
        world.advance(10_000)
        assert waiting.answer.reason is Reason.REBALANCE_IN_PROGRESS
        again = world.join(second.answer.member_id).answer
        assert again.leader_id == second.answer.member_id

    def test_a_member_that_heartbeats_and_never_asks_for_its_assignment_is_removed(self, world) -> None:
        first = world.join().answer
        second = world.join(rebalance_timeout_ms=20_000)
        first = world.join(first.member_id, rebalance_timeout_ms=20_000).answer
        assert world.sync(first, {first.member_id: b"all"}).answer.reason is None
        for _ in range(4):
            assert world.heartbeat(second.answer) is None
            assert world.heartbeat(first) is None
            world.advance(5_000)
        assert world.heartbeat(second.answer) is Reason.UNKNOWN_MEMBER_ID
        assert world.heartbeat(first) is Reason.REBALANCE_IN_PROGRESS


class TestRebalanceTimeout:
    def test_who_does_not_join_again_in_time_is_left_behind(self, world) -> None:
        first, second = world.stable(2, rebalance_timeout_ms=30_000)
        third = world.join(rebalance_timeout_ms=30_000)
        rejoined = world.join(first.member_id, rebalance_timeout_ms=30_000)
        for _ in range(6):
            assert third.waits
            assert world.heartbeat(second) is Reason.REBALANCE_IN_PROGRESS
            world.advance(5_000)
        assert rejoined.answer.reason is third.answer.reason is None
        assert len(rejoined.answer.members) == 2
        assert world.heartbeat(second) is Reason.UNKNOWN_MEMBER_ID

    def test_the_most_patient_member_decides_how_long_the_group_waits(self, world) -> None:
        first = world.join(rebalance_timeout_ms=10_000).answer
        second = world.join(rebalance_timeout_ms=50_000)
        first = world.join(first.member_id, rebalance_timeout_ms=10_000).answer
        world.settle_generation([first, second.answer])
        third = world.join(rebalance_timeout_ms=1_000)
        world.join(first.member_id, rebalance_timeout_ms=10_000)
        for _ in range(9):
            world.advance(5_000)
            world.heartbeat(second.answer)
        assert third.waits
        world.advance(5_000)
        assert third.answer.reason is None

    def test_a_waiting_member_needs_no_heartbeats(self, world) -> None:
        first, second = world.stable(2)
        rejoined = world.join(first.member_id, session_timeout_ms=6_000)
        for _ in range(5):
            world.advance(5_000)
            world.heartbeat(second)
        assert rejoined.waits
        world.join(second.member_id)
        assert rejoined.answer.reason is None

    def test_members_whose_connection_went_away_while_they_waited_do_not_wedge_the_group(self, world) -> None:
        first, _ = world.stable(2)
        world.join(first.member_id)  # nobody will take this answer
        world.join()  # nor this one
        world.advance(60_000 + 10_000)
        assert world.state() is GroupState.EMPTY

    def test_a_new_member_that_vanished_while_it_waited_is_dropped_in_the_end(self, world, monkeypatch) -> None:
        monkeypatch.setattr("penstock.core.groups.rebalance.NEW_MEMBER_JOIN_TIMEOUT_MS", 40_000)
        (first,) = world.stable(1, rebalance_timeout_ms=1_000_000)
        vanished = world.join()
        for _ in range(8):
            assert vanished.waits
            world.advance(5_000)
            world.heartbeat(first)
        assert vanished.answer.reason is Reason.UNKNOWN_MEMBER_ID
        again = world.join(first.member_id).answer
        assert [each.member_id for each in again.members] == [first.member_id]


class TestLeaving:
    def test_partitions_of_a_member_that_leaves_go_to_the_others_at_once(self, world) -> None:
        first, second = world.stable(2)
        assert world.leave(second.member_id) == [None]
        assert world.heartbeat(first) is Reason.REBALANCE_IN_PROGRESS
        assert len(world.join(first.member_id).answer.members) == 1

    def test_another_leader_is_chosen_when_the_leader_leaves(self, world) -> None:
        first, second = world.stable(2)
        world.leave(first.member_id)
        assert world.join(second.member_id).answer.leader_id == second.member_id

    def test_several_members_leave_in_one_request_and_each_has_its_answer(self, world) -> None:
        first, second = world.stable(2)
        assert world.leave(first.member_id, "stranger", second.member_id) == [None, Reason.UNKNOWN_MEMBER_ID, None]
        assert world.state() is GroupState.EMPTY

    def test_an_id_that_was_given_out_can_leave(self, world) -> None:
        refused = world.join(require_known_member_id=True).answer
        assert world.leave(refused.member_id) == [None]
        assert world.groups.list_groups() == []

    def test_a_member_that_leaves_while_its_join_waits_is_answered(self, world) -> None:
        first, _ = world.stable(2)
        box = world.join(first.member_id)
        world.leave(first.member_id)
        assert box.answer.reason is Reason.UNKNOWN_MEMBER_ID

    def test_a_group_left_before_its_first_assignment_stays_empty(self, world) -> None:
        joined = world.join().answer
        world.leave(joined.member_id)
        world.advance(200_000)
        assert world.state() is GroupState.EMPTY
        assert world.join().answer.generation == joined.generation + 2

    def test_leaving_an_unknown_group_is_leaving_as_an_unknown_member(self, world) -> None:
        assert world.leave("m", group=GroupId("nobody")) == [Reason.UNKNOWN_MEMBER_ID]
        with pytest.raises(PenstockError) as refused:
            world.leave("m", group=GroupId(""))
        assert refused.value.reason is Reason.INVALID_GROUP_ID

    def test_a_group_that_lost_its_last_member_is_stored_as_empty(self, world) -> None:
        (only,) = world.stable(1)
        world.leave(only.member_id)
        world.restart()
        assert world.state() is GroupState.EMPTY
        assert world.join().answer.generation == only.generation + 2


def test_member_bytes_are_not_looked_into(world) -> None:
    noise = bytes(range(256))
    joined = world.join(protocols=(MemberProtocol("range", noise),)).answer
    assert joined.members[0].metadata == noise
    assert world.sync(joined, {joined.member_id: noise}).answer.assignment == noise
    (member,) = world.groups.describe(GROUP).members
    assert (member.metadata, member.assignment) == (noise, noise)
    assert MemberId(member.member_id) == joined.member_id
