"""State that another node wrote by another clock: what was left of a lease, a backoff or a key when it was written is the most that is left."""

import pytest

from penstock.core.queues.envelope import IDEMPOTENCY_KEY, NOT_BEFORE_MS
from tests.unit.core.queues.world import World

YEAR_MS = 365 * 24 * 3600 * 1000


def taken_over(world: World, by_ms: int) -> None:
    """Another node works for the group from now on, whose clock is so far ahead of the last one's; behind with less than nothing."""
    world.queues.family.unload(0)
    world.clock.wall_ms += by_ms
    world.queues.family.load(0)
    world.turn()


@pytest.mark.parametrize("behind_ms", [0, 1, YEAR_MS])
def test_a_lease_lasts_no_longer_than_it_would_have(world: World, behind_ms: int) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    taken_over(world, -behind_ms)
    world.advance(999)
    assert world.lease("b") == []
    world.advance(1)
    assert [delivery.offset for delivery in world.lease("b")] == [0]


def test_what_is_set_back_is_stored_so(world: World) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    taken_over(world, -YEAR_MS)
    world.advance(400)
    # The third one's clock is right, as the second one's was: nothing begins anew.
    taken_over(world, 0)
    world.advance(599)
    assert world.lease("b") == []
    world.advance(1)
    assert [delivery.offset for delivery in world.lease("b")] == [0]


def test_its_owner_can_ack_it_meanwhile(world: World) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    taken_over(world, -YEAR_MS)
    world.advance(999)
    assert world.ack("a", 0).reason is None
    assert world.floor() == 1


def test_a_backoff_is_no_longer_than_it_would_have_been() -> None:
    world = World(backoff_ms=500).boot()
    world.create()
    world.produce(1)
    world.lease("a")
    world.nack("a", 0)
    taken_over(world, -YEAR_MS)
    world.advance(499)
    assert world.lease("b") == []
    world.advance(1)
    assert [delivery.attempts for delivery in world.lease("b")] == [2]
    world.close()


def test_the_time_that_a_producer_wished_stays(world: World) -> None:
    until_ms = world.clock.now_ms() + 1000
    world.produce(1, headers=((NOT_BEFORE_MS, str(until_ms).encode()),))
    assert world.lease("a") == []
    taken_over(world, -5000)
    world.advance(5999)
    assert world.lease("b") == []
    world.advance(1)
    assert [delivery.offset for delivery in world.lease("b")] == [0]


def test_a_finished_key_is_not_remembered_longer_than_it_would_have_been() -> None:
    world = World(idempotency_ms=10_000).boot()
    world.create()
    same = ((IDEMPOTENCY_KEY, b"one"),)
    world.produce(1, headers=same)
    world.lease("a")
    assert world.ack("a", 0).reason is None
    taken_over(world, -YEAR_MS)
    world.advance(9_999)
    world.produce(1, headers=same)
    assert world.lease("b") == []
    world.advance(1)
    world.produce(1, headers=same)
    assert [delivery.offset for delivery in world.lease("b")] == [2]
    world.close()


def test_a_lease_that_seems_to_be_over_is(world: World) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    taken_over(world, YEAR_MS)
    world.tick()
    assert [delivery.attempts for delivery in world.lease("b")] == [2]
