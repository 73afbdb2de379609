"""Which records an owner holds, and how those that it names are finished.

A call covers either all records that it names or, with PenstockError, none of them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.core.coordinators.jobs import AllOf
from penstock.core.coordinators.topic import StoredDone
from penstock.core.queues.block import (
    ACK_TIMEOUT,
    BLOCK_BITS,
    BLOCK_MASK,
    FINISHED,
    FINISHED_RUN,
    LEASED,
    MOVING,
    OWNER_DISCONNECTED,
    READY,
    WAITING,
)
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.queue import Queue
from penstock.errors import PenstockError, Reason

_EXPIRED: Final = frozenset({ACK_TIMEOUT, OWNER_DISCONNECTED})
_LEASED_RUN: Final = bytes((LEASED,)) * (BLOCK_MASK + 1)

Run = tuple[int, int, int]
"""Adjacent offsets in one block: the block's number, the first place, and the last place + 1."""


def partition_of(queue: Queue, index: int) -> QueuePartition:
    """The partition, if the records that the queue has state of are on this node and memory agrees with the log."""
    part = queue.partition(index)
    queue.check_here(part)
    queue.check_stored()
    return part


def leased_runs(part: QueuePartition, owner: str, offsets: Sequence[int]) -> list[Run]:
    """The offsets as runs. NOT_LEASE_OWNER or NOT_IN_FLIGHT unless the owner holds all of them."""
    runs = list(runs_of(offsets)) if len(offsets) != 1 else [_run_of_one(offsets[0])]
    for run in runs:
        _check_leased(part, owner, run)
    return runs


def unfinished(queue: Queue, part: QueuePartition, offsets: Sequence[int]) -> list[int]:
    """Those of the offsets that are neither finished nor being moved; OFFSET_OUT_OF_RANGE if one does not exist."""
    end = queue.source(part).high_watermark
    for offset in offsets:
        if not 0 <= offset < end:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE, f"{part.topic}/{part.index} has no record {offset}: it ends at {end}"
            )
    return [offset for offset in sorted(set(offsets)) if part.state_at(offset) not in (FINISHED, MOVING)]


def finish_leased(queue: Queue, part: QueuePartition, runs: list[Run], done: StoredDone) -> None:
    """Finish records that were checked to be leased, and call ``done`` once that is durable. The runs are in order."""
    context = queue.context
    is_changed = False
    count = 0
    for number, start, stop in runs:
        block = part.blocks[number]
        length = stop - start
        if block.flags.count(0, start, stop) < length:
            for at in range(start, stop):
                envelope = queue.envelope(part, (number << BLOCK_BITS) + at, block) if block.flags[at] else None
                is_changed |= envelope is not None and queue.remember_key(envelope)
        block.states[start:stop] = FINISHED_RUN[:length]
        part.leased -= length
        count += length
    part.advance()
    floor = part.floor
    for number, _, stop in runs:
        if (number << BLOCK_BITS) + stop > floor:
            context.state_log.mark(part, number)
            is_changed = True
    context.meters.acks.add(queue.labels, count)
    queue.wake()
    is_below = bool(runs) and (runs[0][0] << BLOCK_BITS) + runs[0][1] < floor
    if is_below and not is_changed:
        # Nearly always: the oldest records are acked first.
        context.floors.when_stored(part, done)
        return
    answer = AllOf(done)
    if is_changed:
        context.state_log.when_committed(queue.state_partition, answer.expect())
    if is_below:
        context.floors.when_stored(part, answer.expect())
    answer.close()


def when_stored(queue: Queue, part: QueuePartition, offsets: Sequence[int], done: StoredDone) -> None:
    """Call ``done`` once the present state of these records is durable, whether they are finished or not."""
    answer = AllOf(done)
    queue.context.state_log.when_committed(queue.state_partition, answer.expect())
    if any(offset < part.floor for offset in offsets):
        queue.context.floors.when_stored(part, answer.expect())
    answer.close()


def _run_of_one(offset: int) -> Run:
    at = offset & BLOCK_MASK
    return offset >> BLOCK_BITS, at, at + 1


def runs_of(offsets: Sequence[int]) -> Iterator[Run]:
    """The offsets, each once, as runs within blocks."""
    if not offsets:
        return
    ordered = sorted(set(offsets))
    start = previous = ordered[0]
    for offset in ordered:
        if offset > previous + 1 or offset >> BLOCK_BITS != start >> BLOCK_BITS:
            yield start >> BLOCK_BITS, start & BLOCK_MASK, (previous & BLOCK_MASK) + 1
            start = offset
        previous = offset
    yield start >> BLOCK_BITS, start & BLOCK_MASK, (previous & BLOCK_MASK) + 1


def _check_leased(part: QueuePartition, owner: str, run: Run) -> None:
    number, start, stop = run
    block = part.blocks.get(number)
    first = (number << BLOCK_BITS) + start
    if block is not None and first >= part.floor:
        index = block.find_owner(owner)
        length = stop - start
        if (
            index
            and block.states[start:stop] == _LEASED_RUN[:length]
            and block.owner_at.count(index, start, stop) == length
        ):
            return
    for offset in range(first, first + stop - start):
        _refuse_unless_leased(part, owner, offset)


def _refuse_unless_leased(part: QueuePartition, owner: str, offset: int) -> None:
    block = part.blocks.get(offset >> BLOCK_BITS)
    at = offset & BLOCK_MASK
    if block is not None and offset >= part.floor:
        state = block.states[at]
        if state == LEASED:
            if block.owner(at) == owner:
                return
            raise PenstockError(Reason.NOT_LEASE_OWNER)
        if state in (READY, WAITING) and block.error(at) in _EXPIRED:
            # The lease of this or another owner ended, and the record will be delivered again.
            raise PenstockError(Reason.NOT_LEASE_OWNER)
    raise PenstockError(
        Reason.NOT_IN_FLIGHT,
        f"{part.topic}/{part.index}@{offset} is not leased: it was nacked and will be delivered again, it was never delivered, or it is already finished. To find out, run penstock why {part.topic}/{part.index}@{offset} --group {part.queue.group}, or GET /v1/why",
    )
