"""Static members keep their place over a restart, and whoever claims it with an older id is turned away."""

import pytest

from penstock.errors import Reason
from penstock.operations.groups import NO_MEMBER, GroupState, LeavingMember, MemberProtocol
from tests.unit.core.groups.world import GROUP, TOPIC, World, subscription


@pytest.fixture
def world():
    return World()


def protocols(*names: str) -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name, subscription(TOPIC)) for name in names)


def two_static(world, **kwargs):
    first = world.join(instance_id="a", **kwargs).answer
    second = world.join(instance_id="b", **kwargs)
    first = world.join(first.member_id, instance_id="a", **kwargs).answer
    assert world.settle_generation([first, second.answer]) == [b"part 0", b"part 1"]
    return first, second.answer


def test_a_static_member_gets_its_id_with_its_first_join(world) -> None:
    joined = world.join(instance_id="a", require_known_member_id=True).answer
    assert joined.reason is None
    assert joined.member_id.startswith("a-")


def test_a_restarted_follower_keeps_its_assignment_and_nobody_rebalances(world) -> None:
    first, second = two_static(world)
    back = world.join(instance_id="b").answer
    assert back.reason is None
    assert back.generation == second.generation
    assert back.member_id != second.member_id
    assert back.leader_id == first.member_id
    assert world.sync(back, instance_id="b").answer.assignment == b"part 1"
    assert world.heartbeat(first) is None
    assert world.state() is GroupState.STABLE


def test_a_restarted_leader_that_cannot_skip_assigning_is_not_told_that_it_leads(world) -> None:
    first, _ = two_static(world)
    back = world.join(instance_id="a").answer
    assert back.generation == first.generation
    assert back.leader_id == first.member_id != back.member_id
    assert back.members == ()


def test_a_restarted_leader_that_can_skip_assigning_leads_on(world) -> None:
    first, second = two_static(world)
    back = world.join(instance_id="a", can_skip_assignment=True).answer
    assert back.leader_id == back.member_id != first.member_id
    assert back.skip_assignment
    assert {each.member_id for each in back.members} == {back.member_id, second.member_id}
    follower = world.join(instance_id="b", can_skip_assignment=True).answer
    assert not follower.skip_assignment
    assert follower.members == ()


def test_the_id_before_the_restart_is_fenced(world) -> None:
    _, second = two_static(world)
    world.join(instance_id="b")
    assert world.heartbeat(second, instance_id="b") is Reason.FENCED_INSTANCE_ID
    assert world.sync(second, instance_id="b").answer.reason is Reason.FENCED_INSTANCE_ID
    assert world.join(second.member_id, instance_id="b").answer.reason is Reason.FENCED_INSTANCE_ID
    assert world.commit_code(member=second, instance_id="b") is Reason.FENCED_INSTANCE_ID
    leaving = LeavingMember(second.member_id, "b")
    assert world.groups.leave(GROUP, [leaving]) == [Reason.FENCED_INSTANCE_ID]
    assert world.heartbeat(second) is Reason.UNKNOWN_MEMBER_ID


def test_a_request_that_waits_under_the_old_id_is_fenced_when_the_member_comes_back(world) -> None:
    first, second = two_static(world)
    waiting = world.join(first.member_id, instance_id="a")
    assert waiting.waits
    world.join(instance_id="a")
    assert waiting.answer.reason is Reason.FENCED_INSTANCE_ID
    assert world.join(second.member_id, instance_id="b").answer.reason is None


def test_a_static_member_that_comes_back_between_join_and_sync_needs_a_new_generation(world) -> None:
    first = world.join(instance_id="a").answer
    second = world.join(instance_id="b")
    first = world.join(first.member_id, instance_id="a").answer
    waiting = world.sync(second.answer, instance_id="b")
    back = world.join(instance_id="b")
    assert waiting.answer.reason is Reason.FENCED_INSTANCE_ID
    assert world.heartbeat(first, instance_id="a") is Reason.REBALANCE_IN_PROGRESS
    world.join(first.member_id, instance_id="a")
    assert back.answer.generation == first.generation + 1


def test_other_user_data_is_no_reason_to_rebalance_but_other_topics_are(world) -> None:
    two_static(world)
    owned = (MemberProtocol("range", subscription(TOPIC, user_data=b"owned partitions")),)
    assert world.join(instance_id="b", protocols=owned).answer.reason is None
    assert world.state() is GroupState.STABLE
    assert world.join(instance_id="b", protocols=(MemberProtocol("range", subscription("other")),)).waits
    assert world.state() is GroupState.PREPARING_REBALANCE


def test_a_restart_that_would_change_the_chosen_protocol_makes_the_group_rebalance(world) -> None:
    two_static(world, protocols=protocols("range", "sticky"))
    assert world.join(instance_id="a", protocols=protocols("sticky", "range")).waits
    assert world.state() is GroupState.PREPARING_REBALANCE


def test_the_new_id_is_stored_before_it_is_told(world) -> None:
    _, second = two_static(world)
    world.log.hold = True
    back = world.join(instance_id="b")
    assert back.waits
    world.log.settle()
    world.log.hold = False
    world.restart()
    assert world.heartbeat(back.answer, instance_id="b") is None
    assert world.heartbeat(second, instance_id="b") is Reason.FENCED_INSTANCE_ID


@pytest.mark.parametrize("can_skip_assignment", [False, True])
def test_members_that_come_back_at_the_same_time_are_told_each_others_new_ids(world, can_skip_assignment) -> None:
    two_static(world)
    world.log.hold = True
    leader = world.join(instance_id="a", can_skip_assignment=can_skip_assignment)
    follower = world.join(instance_id="b", can_skip_assignment=can_skip_assignment)
    world.log.settle()
    told = {each.member_id for each in leader.answer.members}
    assert told == ({leader.answer.member_id, follower.answer.member_id} if can_skip_assignment else set())
    assert follower.answer.leader_id == leader.answer.member_id


def test_a_follower_that_comes_back_just_before_its_leader_is_told_the_leaders_new_id(world) -> None:
    two_static(world)
    world.log.hold = True
    follower, leader = world.join(instance_id="b"), world.join(instance_id="a")
    world.log.settle()
    assert follower.answer.leader_id == leader.answer.member_id


def test_a_member_that_comes_back_twice_is_told_its_last_id(world) -> None:
    two_static(world)
    world.log.hold = True
    once, twice = world.join(instance_id="b"), world.join(instance_id="b")
    assert once.answer.reason is Reason.FENCED_INSTANCE_ID
    world.log.settle()
    assert world.heartbeat(twice.answer, instance_id="b") is None


def test_when_the_new_id_cannot_be_stored_the_old_one_stays(world) -> None:
    _, second = two_static(world)
    world.log.hold = True
    back = world.join(instance_id="b")
    world.log.lose()
    assert back.answer.reason is Reason.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat(second, instance_id="b") is None
    assert world.sync(second, instance_id="b").answer.assignment == b"part 1"


def test_a_rebalance_that_begins_while_the_new_id_is_being_stored_answers_the_member(world) -> None:
    first, _ = two_static(world)
    world.log.hold = True
    back = world.join(instance_id="b")
    world.join(first.member_id, instance_id="a")
    assert back.answer.generation == first.generation + 1
    world.log.settle()
    assert len(back.answers) == 1


def test_a_static_member_that_does_not_join_again_stays_until_its_session_is_over(world) -> None:
    first, second = two_static(world)
    third = world.join(rebalance_timeout_ms=5_000)
    rejoined = world.join(first.member_id, instance_id="a")
    for _ in range(12):
        world.advance(5_000)
        world.heartbeat(second, instance_id="b")
    assert third.answer.reason is None
    assert second.member_id in {each.member_id for each in rejoined.answer.members}


def test_a_group_whose_static_members_are_all_restarting_waits_for_them(world) -> None:
    long = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 20_000}
    first, second = two_static(world, **long)
    dynamic = world.join(**long)
    assert world.leave(
        *(member.member_id for member in world.groups.describe(GROUP).members if member.instance_id is None)
    ) == [None]
    assert dynamic.answer.reason is Reason.UNKNOWN_MEMBER_ID
    world.advance(20_000)
    assert world.state() is GroupState.PREPARING_REBALANCE
    back = world.join(instance_id="a", **long)
    world.join(second.member_id, instance_id="b", **long)
    assert back.answer.reason is None
    assert back.answer.generation == first.generation + 1


def test_an_administrator_removes_a_static_member_by_its_instance_id(world) -> None:
    first, second = two_static(world)
    leaving = [LeavingMember(NO_MEMBER, "b"), LeavingMember(NO_MEMBER, "stranger")]
    assert world.groups.leave(GROUP, leaving) == [None, Reason.UNKNOWN_MEMBER_ID]
    assert world.heartbeat(second, instance_id="b") is Reason.UNKNOWN_MEMBER_ID
    assert world.heartbeat(first, instance_id="a") is Reason.REBALANCE_IN_PROGRESS


def test_a_static_member_that_never_synced_and_came_back_is_removed_without_harm_when_time_is_up(world) -> None:
    first, second = two_static(world, session_timeout_ms=600_000)
    world.join(first.member_id, instance_id="a", session_timeout_ms=600_000)
    world.advance(60_000)
    again = world.join(first.member_id, instance_id="a").answer
    assert second.member_id in {each.member_id for each in again.members}
    assert world.sync(again, {}, instance_id="a").answer.reason is None
    world.log.hold = True
    back = world.join(instance_id="b", session_timeout_ms=600_000)
    for _ in range(12):
        world.advance(5_000)
        world.heartbeat(again, instance_id="a")
    assert back.answer.reason is Reason.UNKNOWN_MEMBER_ID
    world.log.settle()
