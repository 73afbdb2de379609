"""What the owner of leased records says about them: done, failed, still at it. And what somebody says who has no lease.

A call counts for all the records it names or, with PenstockError, for none. ``done`` is told once what was said is durable.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.core.coordinators.jobs import AllOf
from penstock.core.queues.block import BLOCK_BITS, BLOCK_MASK, FINISHED, LEASED, MOVING, READY, WAITING
from penstock.core.queues.delivery import ACK_TIMEOUT, OWNER_DISCONNECTED, Done
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.queue import Queue
from penstock.errors import PenstockError, Reason

_LOST: Final = frozenset({ACK_TIMEOUT, OWNER_DISCONNECTED})
_FINISHED_RUN: Final = bytes((FINISHED,)) * (BLOCK_MASK + 1)
_LEASED_RUN: Final = bytes((LEASED,)) * (BLOCK_MASK + 1)

Run = tuple[int, int, int]
"""Offsets next to each other in one block: the block's number, first and last place + 1."""


def ack(queue: Queue, index: int, owner: str, offsets: Sequence[int], done: Done) -> None:
    """The records are done with."""
    part = _part(queue, index)
    runs = list(_runs(offsets))
    for run in runs:
        _check_leased(part, owner, run)
    _finish_leased(queue, part, runs, done)


def ack_cumulative(queue: Queue, index: int, owner: str, offset: int, done: Done) -> None:
    """Every record that this owner holds in the partition up to this one is done with; this one must be its own."""
    part = _part(queue, index)
    _check_leased(part, owner, (offset >> BLOCK_BITS, offset & BLOCK_MASK, (offset & BLOCK_MASK) + 1))
    held = [at for at in part.held_by(owner) if at <= offset]
    _finish_leased(queue, part, list(_runs(held)), done)


def nack(queue: Queue, index: int, owner: str, offsets: Sequence[int], reason: str, done: Done) -> None:
    """The records failed, for this reason."""
    part = _part(queue, index)
    unique = sorted(set(offsets))
    for run in _runs(unique):
        _check_leased(part, owner, run)
    for offset in unique:
        queue.failures.fail(part, offset, reason, backs_off=True)
    queue.context.meters.nacks.add((*queue.labels, reason), len(unique))
    _when_stored(queue, part, unique, done)


def extend(queue: Queue, index: int, owner: str, offsets: Sequence[int], lease_ms: int, done: Done) -> None:
    """The owner needs more time: its leases end ``lease_ms`` from now."""
    part = _part(queue, index)
    runs = list(_runs(offsets))
    for run in runs:
        _check_leased(part, owner, run)
    until_ms = queue.context.clock.now_ms() + lease_ms
    for number, start, stop in runs:
        block = part.blocks[number]
        for at in range(start, stop):
            block.renew(at, until_ms)
        queue.changed(part, number, block)
    queue.context.state_log.when_committed(queue.state_partition, done)


def finish(queue: Queue, index: int, offsets: Sequence[int], done: Done) -> None:
    """The records need no more work, whoever holds them (a purge). Those that are finished already are fine."""
    part = _part(queue, index)
    open_offsets = _unfinished(queue, part, offsets)
    numbers = queue.mark_finished(part, open_offsets)
    queue.when_finished(part, open_offsets, numbers, done)


def move(
    queue: Queue, index: int, offsets: Sequence[int], target_topic: str, target_partition: int | None, done: Done
) -> None:
    """Send the records to another topic and finish them here, never one without the other. Finished ones are passed over."""
    part = _part(queue, index)
    if queue.context.broker.topics.require(target_topic).internal:
        # A dead letter says itself where it came from, and anyone may have written that.
        raise PenstockError(
            Reason.INVALID_TOPIC, f"{target_topic} is an internal topic; move records to another topic."
        )
    answer = AllOf(done)
    for offset in _unfinished(queue, part, offsets):
        queue.context.mover.redrive(queue, part, offset, target_topic, target_partition, answer.expect())
    answer.close()


def _part(queue: Queue, index: int) -> QueuePartition:
    """The partition, whose records are here as far as something is known of them, and whose state is as the log says."""
    part = queue.partition(index)
    queue.check_here(part)
    queue.check_stored()
    return part


def _unfinished(queue: Queue, part: QueuePartition, offsets: Sequence[int]) -> list[int]:
    end = queue.source(part).high_watermark
    for offset in offsets:
        if not 0 <= offset < end:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE, f"{part.topic}/{part.index} has no record {offset}: it ends at {end}."
            )
    return [offset for offset in sorted(set(offsets)) if part.state_at(offset) not in (FINISHED, MOVING)]


def _finish_leased(queue: Queue, part: QueuePartition, runs: list[Run], done: Done) -> None:
    answer = AllOf(done)
    remembered = False
    lowest, count = 1 << 62, 0
    for number, start, stop in runs:
        block = part.blocks[number]
        length = stop - start
        if block.flags.count(0, start, stop) < length:
            for at in range(start, stop):
                envelope = queue.envelope(part, (number << BLOCK_BITS) + at, block) if block.flags[at] else None
                remembered |= envelope is not None and queue.remember_key(envelope)
        block.states[start:stop] = _FINISHED_RUN[:length]
        part.leased -= length
        count += length
        lowest = min(lowest, (number << BLOCK_BITS) + start)
    if part.advance():
        queue.context.floors.moved(part)
    above = [number for number, _, stop in runs if (number << BLOCK_BITS) + stop > part.floor]
    for number in above:
        queue.context.state_log.mark(part, number)
    if above or remembered:
        queue.context.state_log.when_committed(queue.state_partition, answer.expect())
    if lowest < part.floor:
        queue.context.floors.when_stored(part, answer.expect())
    queue.context.meters.acks.add(queue.labels, count)
    queue.wake()
    answer.close()


def _when_stored(queue: Queue, part: QueuePartition, offsets: Sequence[int], done: Done) -> None:
    """Tell ``done`` once what these records are now is durable, be they finished or not."""
    answer = AllOf(done)
    queue.context.state_log.when_committed(queue.state_partition, answer.expect())
    if any(offset < part.floor for offset in offsets):
        queue.context.floors.when_stored(part, answer.expect())
    answer.close()


def _runs(offsets: Sequence[int]) -> Iterator[Run]:
    """The offsets, each once, as runs within blocks."""
    if not offsets:
        return
    ordered = sorted(set(offsets)) if len(offsets) > 1 else offsets
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
        if state in (READY, WAITING) and block.error(at) in _LOST:
            # It was the owner's, or somebody's, and is to be delivered again.
            raise PenstockError(Reason.NOT_LEASE_OWNER)
    raise PenstockError(
        Reason.NOT_IN_FLIGHT,
        f"{part.topic}/{part.index}@{offset} is not in flight: it was never delivered, or is already finished. To find out, run penstock why {part.topic}/{part.index}@{offset} --group {part.queue.group}, or GET /v1/why.",
    )


def is_finished(queue: Queue, index: int, offset: int) -> bool:
    """Whether the group is done with a record, or about to be, since it is being moved."""
    part = queue.partition(index)
    return part.state_at(offset) in (FINISHED, MOVING)
