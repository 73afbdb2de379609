"""What time and the deletion of groups do to queues that know more than their group's offsets say."""

import pytest

from penstock.core.queues.block import BLOCK_OFFSETS
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.types import PartitionKey
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World

DAY_MS = 24 * 60 * 60 * 1000


def pass_days(world, days) -> None:
    """Let groups and queues look at their offsets, an hour at a time."""
    for _ in range(24 * days):
        world.clock.advance(DAY_MS // 24)
        for _ in range(3):
            world.broker.groups.tick(world.clock.monotonic_ms())
            world.tick()


def test_a_group_without_offsets_is_kept_while_its_queue_knows_of_finished_records(world) -> None:
    world.produce(5)
    # Somebody set the group back to the start: it is known, and has no offset.
    world.commit(0)
    world.broker.groups.delete_offsets(GROUP, [PartitionKey(TOPIC, 0)], lambda _answers: None)
    world.turn()
    owner = world.attach("a", lease_ms=12 * 60 * 60 * 1000, release_on_detach=True)
    assert world.ack("a", 1, 2, 3).reason is None
    world.clock.advance(60 * 60 * 1000)
    for _ in range(3):
        world.broker.groups.tick(world.clock.monotonic_ms())
        world.turn()
    assert owner.gone == []
    owner.worker.close()
    world.turn()
    assert [delivery.offset for delivery in world.lease("b", max_records=10)] == [0, 4]


def test_a_group_that_nobody_works_any_more_still_goes(world) -> None:
    world.produce(BLOCK_OFFSETS)
    world.lease("a", max_records=BLOCK_OFFSETS, lease_ms=5000)
    world.ack("a", *range(BLOCK_OFFSETS))
    assert world.committed() == BLOCK_OFFSETS
    pass_days(world, 8)
    assert world.committed() is None
    assert world.queues.queues() == []


def test_a_redriven_dead_letter_is_not_open_again_however_long_ago_it_was(world) -> None:
    world.produce(BLOCK_OFFSETS, headers=(("penstock.max_attempts", b"1"),))
    for delivery in world.lease("a", max_records=BLOCK_OFFSETS):
        world.nack("a", delivery.offset, turn=False)
    world.advance(1500)
    world.queues.move("dlq.orders", REDRIVE_GROUP, 0, range(BLOCK_OFFSETS), TOPIC, 0, Answers())
    world.turn()
    # All of a block is finished: nothing but the group's offset says so.
    assert world.committed(topic="dlq.orders", group=REDRIVE_GROUP) == BLOCK_OFFSETS
    pass_days(world, 20)
    assert world.queues.is_finished("dlq.orders", REDRIVE_GROUP, 0, 0)


@pytest.mark.parametrize("back_ms", [1000, 3 * 3600 * 1000])
def test_a_clock_that_is_set_back_prolongs_no_lease(world: World, back_ms: int) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    world.advance(400)
    world.clock.wall_ms -= back_ms
    world.advance(599)
    assert world.lease("b") == []
    world.advance(1)
    assert [delivery.attempts for delivery in world.lease("b")] == [2]


def test_a_lease_that_a_clock_was_set_back_for_can_be_acked(world: World) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    world.clock.wall_ms -= 3600 * 1000
    world.advance(999)
    assert world.ack("a", 0).reason is None
    assert world.floor() == 1


def test_a_clock_that_is_set_back_is_noticed_at_once(world: World) -> None:
    before_ms = world.queues.next_deadline_ms()
    assert before_ms > world.clock.monotonic_ms()
    world.clock.wall_ms -= 3600 * 1000
    assert world.queues.next_deadline_ms() == world.clock.monotonic_ms()
    world.tick()
    assert world.queues.next_deadline_ms() == before_ms
