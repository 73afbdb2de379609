"""Moves, elections and drains on request: what may be asked for, and what becomes of the record."""

import pytest

from penstock.core.cluster.reassignment import ElectionKind, Reassignments
from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC
from penstock.core.topics.records import NO_LEADER
from penstock.errors import PenstockError, Reason
from penstock.operations.cluster import ReplicaMove
from tests.support.agreed import Agreed


def door(agreed: Agreed) -> Reassignments:
    return Reassignments(agreed.store, agreed.topics, agreed.nodes)


async def refusal(call) -> Reason:
    with pytest.raises(PenstockError) as refused:
        await call
    assert refused.value.text != refused.value.reason.value, "the text says what to do"
    return refused.value.reason


async def test_a_move_begins_with_old_and_new_replicas_and_is_listed() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (1, 2, 3), (1, 2, 3))
    await door(agreed).alter("t", 1, [4, 2])
    record = agreed.record("t", 1)
    assert (record.replicas, record.adding, record.removing) == ((4, 2, 1, 3), (4,), (1, 3))
    assert (record.leader, record.leader_epoch) == (1, 0), "the controller goes on"
    move = ReplicaMove("t", 1, (4, 2, 1, 3), (4,), (1, 3))
    assert list(door(agreed).list()) == [move]
    assert list(door(agreed).list([("t", 0), ("t", 1), ("t", 7), ("none", 0)])) == [move]


async def test_a_move_can_be_taken_back_once() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (1, 2, 3))
    before = agreed.record("t")
    await door(agreed).alter("t", 0, [4])
    await door(agreed).alter("t", 0, None)
    assert agreed.record("t") == before
    assert await refusal(door(agreed).alter("t", 0, None)) is Reason.NO_REASSIGNMENT_IN_PROGRESS


async def test_a_leader_that_was_being_added_hands_over_when_the_move_is_taken_back() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    topic = await agreed.topic("t", (1, 2))
    await door(agreed).alter("t", 0, [4])
    await agreed.change(topic, 0, isr=agreed.in_sync(4, 2), leader=4, leader_epoch=5)
    await door(agreed).alter("t", 0, None)
    record = agreed.record("t")
    assert (record.replicas, record.leader, record.leader_epoch, record.in_sync) == ((1, 2), 2, 6, (2,))


async def test_a_move_that_would_leave_nobody_in_sync_is_refused() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    topic = await agreed.topic("t", (1, 2))
    await door(agreed).alter("t", 0, [4])
    await agreed.change(topic, 0, isr=agreed.in_sync(4), leader=4)
    before = agreed.record("t")
    assert await refusal(door(agreed).alter("t", 0, None)) is Reason.INVALID_REPLICA_ASSIGNMENT
    assert agreed.record("t") == before


@pytest.mark.parametrize("replicas", [[], [2, 2], [9], [4]])
async def test_a_move_to_nodes_that_cannot_have_it_is_refused(replicas) -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (1, 2, 3))
    await agreed.drain(4)
    assert await refusal(door(agreed).alter("t", 0, replicas)) is Reason.INVALID_REPLICA_ASSIGNMENT


async def test_who_has_a_replica_may_keep_it_while_it_is_down() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (1, 2, 3))
    await agreed.down(3)
    await door(agreed).alter("t", 0, [4, 2, 3])
    assert agreed.record("t").adding == (4,)


async def test_another_number_of_replicas_can_be_forbidden() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (1, 2, 3))
    alter = door(agreed).alter("t", 0, [1, 2], allow_replication_factor_change=False)
    assert await refusal(alter) is Reason.INVALID_REPLICATION_FACTOR
    await door(agreed).alter("t", 0, [1, 2, 4], allow_replication_factor_change=False)
    await door(agreed).alter("t", 0, [1, 2, 3, 4])


@pytest.mark.parametrize(("topic", "index"), [("none", 0), ("t", 3), ("t", -1)])
async def test_what_is_not_there_is_not_moved(topic, index) -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3))
    assert await refusal(door(agreed).alter(topic, index, [1])) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    elect = door(agreed).elect(topic, index, ElectionKind.PREFERRED)
    assert await refusal(elect) is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    agreed = await Agreed.make(1, 2, 3)
    topic = await agreed.topic("t", (1, 2, 3), leader=2, leader_node_epoch=agreed.nodes.live()[2])
    await door(agreed).elect("t", 0, ElectionKind.PREFERRED)
    record = agreed.record("t")
    assert (record.leader, record.leader_epoch, record.in_sync) == (1, 1, (1, 2, 3))
    assert await refusal(door(agreed).elect("t", 0, ElectionKind.PREFERRED)) is Reason.ELECTION_NOT_NEEDED
    await agreed.change(topic, 0, leader=2, leader_node_epoch=agreed.nodes.live()[2], isr=agreed.in_sync(2, 3))
    elect = door(agreed).elect("t", 0, ElectionKind.PREFERRED)
    assert await refusal(elect) is Reason.PREFERRED_LEADER_NOT_AVAILABLE


async def test_a_drained_node_is_not_elected_on_request() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3), leader=2, leader_node_epoch=agreed.nodes.live()[2])
    await agreed.drain(1)
    elect = door(agreed).elect("t", 0, ElectionKind.PREFERRED)
    assert await refusal(elect) is Reason.PREFERRED_LEADER_NOT_AVAILABLE


async def test_an_unclean_election_is_for_partitions_that_nobody_leads() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3), isr=agreed.in_sync(1))
    assert await refusal(door(agreed).elect("t", 0, ElectionKind.UNCLEAN)) is Reason.ELECTION_NOT_NEEDED
    await agreed.down(1)
    await door(agreed).elect("t", 0, ElectionKind.UNCLEAN)
    record = agreed.record("t")
    assert (record.leader, record.leader_epoch, record.in_sync, record.elr) == (2, 1, (2,), ())


async def test_an_unclean_election_prefers_who_has_everything() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3), isr=agreed.in_sync(1), elr=(3,), leader=NO_LEADER)
    await agreed.down(1)
    await door(agreed).elect("t", 0, ElectionKind.UNCLEAN)
    assert agreed.record("t").leader == 3


async def test_nobody_can_be_elected_when_nobody_is_up() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2))
    await agreed.down(1, 2)
    assert await refusal(door(agreed).elect("t", 0, ElectionKind.UNCLEAN)) is Reason.ELIGIBLE_LEADERS_NOT_AVAILABLE


async def test_an_election_names_the_life_of_the_node_that_is_to_lead() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3), leader=2, leader_node_epoch=agreed.nodes.live()[2])
    stale = door(agreed)
    # Its image stands still while the node dies: what it writes must not name the dead one.
    agreed.nodes.close()
    await agreed.down(1)
    assert await refusal(stale.elect("t", 0, ElectionKind.PREFERRED)) is Reason.REQUEST_TIMED_OUT
    assert agreed.record("t").leader == 2


async def test_a_drain_is_agreed_on_and_can_be_ended() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3), (2, 1))
    await door(agreed).drain(1)
    await door(agreed).drain(1)
    assert agreed.nodes.draining == {1}
    (progress,) = door(agreed).drains()
    assert (progress.node, progress.leads, progress.replicas, progress.stuck) == (1, 1, 2, 1)
    assert not progress.is_done
    await door(agreed).undrain(1)
    await door(agreed).undrain(1)
    assert door(agreed).drains() == ()


async def test_what_only_a_dead_node_has_waits_for_it_and_is_not_taken_for_stuck() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("alone", (1,))
    await agreed.topic("shared", (1, 2))
    await agreed.down(1)
    await door(agreed).drain(1)
    (progress,) = door(agreed).drains()
    assert (progress.replicas, progress.only_there, progress.stuck, progress.is_done) == (2, 1, 0, False)


async def test_only_nodes_that_are_there_or_were_can_be_drained() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2))
    await agreed.down(1)
    await door(agreed).drain(1)
    assert await refusal(door(agreed).drain(7)) is Reason.UNKNOWN_NODE


async def test_the_last_node_that_could_take_anything_is_not_drained() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2))
    await door(agreed).drain(1)
    await agreed.down(2)
    assert await refusal(door(agreed).drain(3)) is Reason.INVALID_REQUEST
    assert agreed.nodes.draining == {1}
    await door(agreed).undrain(1)
    await door(agreed).drain(3)
    assert agreed.nodes.draining == {3}


async def test_what_one_node_must_lead_together_is_moved_and_taken_back_together() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    for name in (OFFSETS_TOPIC, QUEUE_STATE_TOPIC):
        await agreed.topic(name, (1, 2), (1, 2))
    await door(agreed).alter(QUEUE_STATE_TOPIC, 1, [4, 3])
    assert {(move.topic, move.partition, move.adding) for move in door(agreed).list()} == {
        (OFFSETS_TOPIC, 1, (4, 3)),
        (QUEUE_STATE_TOPIC, 1, (4, 3)),
    }
    await door(agreed).alter(OFFSETS_TOPIC, 1, None)
    assert list(door(agreed).list()) == []
