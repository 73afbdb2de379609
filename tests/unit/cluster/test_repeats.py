"""A batch that comes again while too few replicas are in sync: it is here already, so it waits for its commit as it did before."""

import pytest

from penstock.errors import PenstockError, Reason
from penstock.records.builder import BatchBuilder
from tests.unit.cluster.world import CoreWorld


def numbered(world: CoreWorld, sequence: int) -> bytearray:
    builder = BatchBuilder()
    builder.add(world[1].clock.now_ms(), None, b"v")
    return builder.build(producer_id=7, producer_epoch=0, base_sequence=sequence)


async def test_a_repeated_batch_is_not_refused_for_too_few_in_sync_and_a_new_one_is() -> None:
    world = CoreWorld()
    await world.start(1, 2, 3)
    topic = await world.topic(isr=(1, 2))
    partition = world[1].broker.partition("t", 0)
    offset = partition.append(numbered(world, 0), world[1].clock.now_ms())
    await world.put(topic, world.led(1, (1,)))
    partition.check_in_sync(numbered(world, 0))
    assert partition.append(numbered(world, 0), world[1].clock.now_ms()) == offset
    for other in (numbered(world, 1), numbered(world, 5), bytearray(10), None):
        with pytest.raises(PenstockError) as refused:
            partition.check_in_sync(other)
        assert refused.value.reason is Reason.NOT_ENOUGH_REPLICAS


async def test_a_producer_whose_first_batch_was_refused_for_too_few_in_sync_starts_with_it_and_not_with_those_behind_it() -> (
    None
):
    world = CoreWorld()
    await world.start(1, 2, 3)
    topic = await world.topic(isr=(1,))
    partition = world[1].broker.partition("t", 0)
    with pytest.raises(PenstockError):
        partition.check_in_sync(numbered(world, 0))
    await world.put(topic, world.led(1, (1, 2)))
    behind = numbered(world, 1)
    partition.check_in_sync(behind)
    with pytest.raises(PenstockError) as refused:
        partition.append(behind, world[1].clock.now_ms())
    assert refused.value.reason is Reason.OUT_OF_ORDER_SEQUENCE
    for sequence in (0, 1):
        assert partition.append(numbered(world, sequence), world[1].clock.now_ms()) == sequence


async def test_a_damaged_batch_that_is_refused_says_nothing_about_its_producer() -> None:
    world = CoreWorld()
    await world.start(1, 2, 3)
    topic = await world.topic(isr=(1,))
    partition = world[1].broker.partition("t", 0)
    damaged = numbered(world, 5)
    damaged[-1] ^= 1
    with pytest.raises(PenstockError):
        partition.check_in_sync(damaged)
    await world.put(topic, world.led(1, (1, 2)))
    assert partition.append(numbered(world, 6), world[1].clock.now_ms()) == 0
