"""How the agreed record of a partition changes: joining, leaving, and moving to other nodes."""

from penstock.core.cluster.records import (
    can_complete,
    completed,
    forgotten,
    given_up,
    is_reassigning,
    joined,
    reassigning,
    target_of,
    without,
    without_eligible,
)
from penstock.core.topics.records import NO_LEADER, PartitionRecord


def record(**changes: object) -> PartitionRecord:
    fields: dict[str, object] = {
        "leader": 1,
        "leader_epoch": 7,
        "leader_node_epoch": 10,
        "replicas": (1, 2, 3),
        "isr": ((1, 10), (2, 20), (3, 30)),
    }
    return PartitionRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_who_leaves_is_eligible_while_the_set_is_too_small() -> None:
    small = without(record(), [2, 3], 2)
    assert (small.isr, small.elr) == (((1, 10),), (2, 3))


def test_nobody_is_eligible_once_the_set_is_large_enough() -> None:
    small = without(record(), [2, 3], 2)
    again = joined(small, {3: 31}, 2)
    assert (again.isr, again.elr) == (((1, 10), (3, 31)), ())


def test_the_last_member_does_not_leave() -> None:
    assert without(record(isr=((1, 10),)), [1], 1) == record(isr=((1, 10),))


def test_a_topic_with_fewer_replicas_than_it_demands_counts_what_it_has() -> None:
    two = record(replicas=(1, 2), isr=((1, 10), (2, 20)))
    assert without(two, [2], 3).elr == (2,)
    assert joined(without(two, [2], 3), {2: 21}, 3).elr == ()


def test_a_member_joins_again_in_its_new_life_and_keeps_its_place() -> None:
    assert joined(record(), {2: 25}, 2).isr == ((1, 10), (2, 25), (3, 30))


def test_joining_what_is_in_sync_changes_nothing() -> None:
    assert joined(record(), {2: 20}, 2) == record()


def test_a_move_has_old_and_new_replicas_until_the_new_ones_are_in_sync() -> None:
    moving = reassigning(record(), (4, 2, 3))
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 3, 1), (4,), (1,))
    assert is_reassigning(moving)
    assert not can_complete(moving)
    assert target_of(moving) == (4, 2, 3)
    caught_up = joined(moving, {4: 40}, 2)
    assert can_complete(caught_up)
    done = completed(caught_up)
    assert (done.replicas, done.adding, done.removing) == ((4, 2, 3), (), ())
    assert done.isr == ((4, 40), (2, 20), (3, 30))
    assert done.leader == 1, "an election has to follow"


def test_a_move_can_be_replaced_by_another_and_taken_back() -> None:
    moving = reassigning(record(), (4, 5, 6))
    assert reassigning(moving, (1, 2, 3)) == record()
    other = reassigning(joined(moving, {4: 40}, 2), (5, 2, 3))
    assert (other.replicas, other.adding, other.removing) == ((5, 2, 3, 1), (5,), (1,))
    assert 4 not in other.in_sync


def test_nobody_is_eligible_any_more_once_the_topic_demands_fewer() -> None:
    small = without(record(), [2, 3], 2)
    assert without_eligible(small, 2) == small
    assert without_eligible(small, 1).elr == ()
    assert without_eligible(record(), 1) == record()


def test_who_lost_what_it_had_is_neither_in_sync_nor_eligible_even_if_nobody_is_left() -> None:
    assert forgotten(record(), 2).isr == ((1, 10), (3, 30))
    assert forgotten(record(isr=((1, 10),), elr=(3, 2)), 2).elr == (3,)
    assert forgotten(record(isr=((1, 10),)), 1).isr == ()
    assert forgotten(record(isr=((1, 10),)), 2) == record(isr=((1, 10),))


def test_a_leader_that_gives_up_does_not_stand_for_the_next_election() -> None:
    left = given_up(record(elr=()))
    assert (left.leader, left.leader_epoch, left.leader_node_epoch) == (NO_LEADER, 8, 0)
    assert left.isr == ((2, 20), (3, 30))
    alone = given_up(record(isr=((1, 10),), elr=(2, 3)))
    assert (alone.isr, alone.elr) == ((), (2, 3))


def test_who_is_no_replica_does_not_join() -> None:
    small = record(isr=((1, 10),), replicas=(1, 2))
    assert joined(small, {3: 31}, 2) == small
    assert joined(small, {2: 21, 3: 31}, 2).isr == ((1, 10), (2, 21))
