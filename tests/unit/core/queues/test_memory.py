"""What a queue costs in memory, so that a million unfinished records fit."""

import tracemalloc
from uuid import UUID

from penstock.core.queues.block import BLOCK_BITS, BLOCK_MASK, FINISHED
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.stored import QueueId
from penstock.types import GroupId, TopicName

RECORDS = 25_600
BYTES_PER_RECORD_MAX = 200


def cost(fill) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        part = QueuePartition(QueueId(GroupId("g"), UUID(int=1)), TopicName("t"), 0, 0, 0)
        fill(part)
        return (tracemalloc.get_traced_memory()[0] - before) / RECORDS
    finally:
        tracemalloc.stop()


def leased(part) -> None:
    for start in range(0, RECORDS, BLOCK_MASK + 1):
        part.block_of(start).lease_fresh(0, BLOCK_MASK + 1, f"owner {start % 100}", 10**12)


def backing_off_each_with_an_error_of_its_own(part) -> None:
    for offset in range(RECORDS):
        block = part.block_of(offset)
        block.lease(offset & BLOCK_MASK, f"owner {offset % 1000}", 10**12)
        block.wait(offset & BLOCK_MASK, 10**12 + offset)
        block.set_error(offset & BLOCK_MASK, f"{offset} failed: " + "x" * 1000)
        part.note_ready(offset >> BLOCK_BITS, block)


def finished_above_the_floor(part) -> None:
    for offset in range(1, RECORDS):
        part.block_of(offset).states[offset & BLOCK_MASK] = FINISHED


def test_leased_records_are_small() -> None:
    assert cost(leased) < 60


def test_finished_records_above_the_floor_are_small() -> None:
    assert cost(finished_above_the_floor) < 60


def test_records_that_wait_each_with_an_error_of_its_own_are_small_enough() -> None:
    assert cost(backing_off_each_with_an_error_of_its_own) < BYTES_PER_RECORD_MAX
