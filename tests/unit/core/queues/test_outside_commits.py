"""Commits that a client of another API makes for the group of a queue: they move its floor, forward, back and past the end."""

import pytest

from penstock.core.groups.commits import OFFSET_MAX
from penstock.errors import PenstockError, Reason
from penstock.operations.queues import Ack
from tests.unit.core.queues.world import GROUP, TOPIC, Answers


def test_a_commit_from_outside_forward_finishes_what_lies_below(world) -> None:
    world.produce(10)
    world.lease("a", max_records=5)
    world.commit(3)
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.floor, status.leased) == (3, 2)
    with pytest.raises(PenstockError) as refused:
        world.queues.ack(Ack(TOPIC, GROUP, "a", 0, [1]), Answers())
    assert refused.value.reason is Reason.NOT_IN_FLIGHT
    assert world.ack("a", 3, 4).reason is None
    assert world.committed() == 5


def test_a_commit_from_outside_backward_has_everything_worked_again_but_what_is_leased(world) -> None:
    world.produce(6)
    world.lease("a", max_records=6, lease_ms=60_000)
    world.ack("a", 0, 1, 2, 4)
    world.commit(1)
    again = world.lease("b", max_records=10)
    assert [(delivery.offset, delivery.attempts) for delivery in again] == [(1, 1), (2, 1), (4, 1)]
    assert world.ack("a", 3, 5).reason is None
    world.lose_power()
    assert world.floor() == 1


@pytest.mark.parametrize("stop", [None, "kill", "lose_power"])
def test_after_a_commit_past_the_end_a_queue_works_on_from_there(world, stop) -> None:
    world.produce(2)
    world.lease("a", max_records=1)
    world.commit(4)
    if stop is not None:
        getattr(world, stop)()
    assert world.lease("b", max_records=10) == []
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.floor, status.end, status.leased, status.lag) == (4, 2, 0, 0)
    world.produce(4)
    assert [delivery.offset for delivery in world.lease("b", max_records=10)] == [4, 5]
    assert world.ack("b", 4, 5).reason is None
    assert world.committed() == 6


def test_a_connected_worker_gets_nothing_before_a_floor_past_the_end(world) -> None:
    owner = world.attach()
    world.commit(3)
    world.produce(2)
    assert owner.offsets == []
    world.produce(2)
    assert owner.offsets == [3]


def test_a_group_comes_back_from_the_greatest_offset(world) -> None:
    world.produce(3)
    world.commit(OFFSET_MAX)
    assert world.lease("a", max_records=10) == []
    world.kill()
    assert world.floor() == OFFSET_MAX
    world.commit(1)
    assert [delivery.offset for delivery in world.lease("a", max_records=10)] == [1, 2]
