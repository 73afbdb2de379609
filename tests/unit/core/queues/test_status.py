"""What a queue knows of its records, told without the records, page by page."""

import pytest

from penstock.core.queues import status
from penstock.core.queues.block import BLOCK_OFFSETS
from penstock.errors import PenstockError, Reason
from penstock.operations.queues import RecordState
from tests.unit.core.queues.world import GROUP, TOPIC


def known(world, from_offset=0, partition=0):
    return world.queues.known_states(TOPIC, GROUP, partition, from_offset)


def test_what_nothing_happened_to_is_not_told(world) -> None:
    world.produce(300)
    world.attach(credit=0)
    told = known(world)
    assert (told.partition, told.floor, told.end) == (0, 0, 300)
    assert (told.records, told.finished, told.next_offset) == ((), (), None)


def test_leased_and_failed_records_are_told_with_who_has_them_and_why(world) -> None:
    world.produce(10, headers=(("penstock.backoff_ms", b"500"),))
    world.attach("worker", credit=4, lease_ms=1000)
    world.nack("worker", 2, "no stock")
    told = known(world)
    assert [(each.offset, each.state, each.owner, each.attempts, each.last_error) for each in told.records] == [
        (0, RecordState.LEASED, "worker", 1, ""),
        (1, RecordState.LEASED, "worker", 1, ""),
        (2, RecordState.WAITING, None, 1, "no stock"),
        (3, RecordState.LEASED, "worker", 1, ""),
    ]
    assert told.records[0].until_ms == world.clock.now_ms() + 1000
    assert told.records[2].until_ms > world.clock.now_ms()
    assert [each.offset for each in known(world, 2).records] == [2, 3]


def test_finished_records_above_the_floor_are_told_as_runs_across_blocks(world) -> None:
    count = 3 * BLOCK_OFFSETS
    world.produce(count)
    world.attach(credit=count)
    middle = range(BLOCK_OFFSETS - 5, 2 * BLOCK_OFFSETS + 5)
    world.ack("a", 0, 1, 7, *middle)
    told = known(world)
    assert told.floor == 2
    assert told.finished == ((7, 8), (middle.start, middle.stop))
    assert len(told.records) == count - 2 - 1 - len(middle)
    assert known(world, BLOCK_OFFSETS).finished == ((BLOCK_OFFSETS, middle.stop),)


def test_an_answer_ends_after_so_much_and_says_where_to_go_on(world, monkeypatch) -> None:
    monkeypatch.setattr(status, "_STATES_BLOCKS_MAX", 2)
    count = 5 * BLOCK_OFFSETS
    world.produce(count)
    world.attach(credit=count)
    offsets: list[int] = []
    pages = 0
    next_offset: int | None = 0
    while next_offset is not None:
        told = known(world, next_offset)
        offsets += [each.offset for each in told.records]
        next_offset = told.next_offset
        pages += 1
    assert offsets == list(range(count))
    assert pages == 3
    monkeypatch.setattr(status, "_STATES_TOLD_MAX", 1)
    assert known(world).next_offset == BLOCK_OFFSETS


def test_a_queue_or_partition_that_is_not_there_is_refused(world) -> None:
    for group, reason in ((GROUP, Reason.UNKNOWN_TOPIC_OR_PARTITION), ("other", Reason.GROUP_ID_NOT_FOUND)):
        world.attach(credit=0)
        with pytest.raises(PenstockError) as refused:
            world.queues.known_states(TOPIC, group, 7, 0)
        assert refused.value.reason is reason
