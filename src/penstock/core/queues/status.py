"""The status of a queue, counted on request."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from penstock.core.queues.block import (
    BLOCK_BITS,
    BLOCK_MASK,
    FINISHED,
    LEASED,
    MOVING,
    READY,
    UNTOUCHED,
    WAITING,
    Block,
)
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.queue import Queue
from penstock.core.queues.records import NOT_HERE
from penstock.errors import PenstockError
from penstock.operations.queues import (
    KnownStates,
    OwnerStatus,
    PartitionStatus,
    PeekedRecord,
    QueueStatus,
    RecordState,
    TouchedRecord,
)

_STATES: Final = tuple(RecordState)
_PEEK_OFFSETS_MAX: Final = 10_000
"""Offsets of a partition in which a peek searches for unfinished records."""
_STATES_BLOCKS_MAX: Final = 1_024
_STATES_TOLD_MAX: Final = 4_096
"""An answer about states ends after this many blocks, or this many records and runs: some ten milliseconds of work."""
_RUNS: Final = re.compile(b"(%c+)|[^%c]" % (FINISHED, UNTOUCHED), re.DOTALL)
"""In the states of a block: each run of finished records, and each other touched record."""


def queue_status(queue: Queue) -> QueueStatus:
    """The status of one queue."""
    queue.open()
    partitions = tuple(_partition_status(queue, part) for part in queue.partitions)
    return QueueStatus(
        topic=queue.topic,
        group=queue.group,
        lag=sum(partition.lag for partition in partitions),
        in_flight=sum(partition.leased for partition in partitions),
        in_flight_max=queue.context.settings.in_flight_max,
        partitions=partitions,
        owners=_owners(queue),
    )


def opened_status(queue: Queue) -> Iterator[PartitionStatus]:
    """The status of the partitions whose logs are open; none is opened."""
    return (
        _partition_status(queue, part) for part in queue.partitions if part.source is not None and not part.source.gone
    )


def _partition_status(queue: Queue, part: QueuePartition) -> PartitionStatus:
    try:
        queue.follow_start(part)
        end = queue.source(part).high_watermark
    except PenstockError as error:
        if error.reason not in NOT_HERE:
            raise
        # Without a leader at the moment, the known state of its records is still returned.
        end = part.open_end()
    finished = part.count(FINISHED)
    return PartitionStatus(
        partition=part.index,
        floor=part.floor,
        end=end,
        leased=part.leased,
        waiting=part.count(WAITING),
        ready=part.count(READY),
        moving=part.count(MOVING),
        finished_above_floor=finished,
        lag=max(0, end - part.floor - finished),
    )


def _owners(queue: Queue) -> tuple[OwnerStatus, ...]:
    leased: Counter[str] = Counter()
    for part in queue.partitions:
        for block in part.blocks.values():
            if LEASED in block.states:
                for at, state in enumerate(block.states):
                    if state == LEASED:
                        leased[block.owner(at)] += 1
    workers = Counter(taker.owner for taker in queue.takers)
    return tuple(OwnerStatus(owner, leased[owner], workers[owner]) for owner in sorted(leased | workers))


def peek(queue: Queue, max_records: int) -> list[PeekedRecord]:
    """Unfinished records, the oldest of each partition first, the partitions in turn."""
    queue.open()
    found: list[list[PeekedRecord]] = [_peek_partition(queue, part, max_records) for part in queue.partitions]
    taken: list[PeekedRecord] = []
    for place in range(max((len(records) for records in found), default=0)):
        for records in found:
            if place < len(records) and len(taken) < max_records:
                taken.append(records[place])
    return taken


def _peek_partition(queue: Queue, part: QueuePartition, max_records: int) -> list[PeekedRecord]:
    queue.follow_start(part)
    end = min(queue.source(part).high_watermark, part.floor + _PEEK_OFFSETS_MAX)
    found: list[PeekedRecord] = []
    offset = part.floor
    while offset < end and len(found) < max_records:
        state = part.state_at(offset)
        record = None if state == FINISHED else queue.read(part, offset)
        if record is not None:
            block = part.blocks.get(offset >> BLOCK_BITS)
            at = offset & BLOCK_MASK
            waits = block is not None and state in (LEASED, WAITING)
            found.append(
                PeekedRecord(
                    topic=queue.topic,
                    partition=part.index,
                    offset=offset,
                    state=_STATES[state],
                    owner=block.owner(at) if block is not None and state == LEASED else None,
                    until_ms=block.until_ms[at] if block is not None and waits else 0,
                    attempts=0 if block is None or not state else block.attempts[at],
                    last_error=block.error(at) if block is not None and state else None,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    timestamp=record.timestamp,
                )
            )
        offset += 1
    return found


def known_states(queue: Queue, index: int, from_offset: int) -> KnownStates:
    """The states of the records of a partition from an offset on, as many as fit one answer."""
    queue.open()
    part = queue.partition(index)
    queue.follow_start(part)
    end = queue.source(part).high_watermark
    first = max(from_offset, part.floor)
    touched: list[TouchedRecord] = []
    finished: list[tuple[int, int]] = []
    numbers = sorted(number for number in part.blocks if first >> BLOCK_BITS <= number <= (end - 1) >> BLOCK_BITS)
    next_offset: int | None = None
    for place, number in enumerate(numbers):
        if place == _STATES_BLOCKS_MAX or len(touched) + len(finished) >= _STATES_TOLD_MAX:
            next_offset = number << BLOCK_BITS
            break
        _add_block(part.blocks[number], number << BLOCK_BITS, range(first, end), touched, finished)
    return KnownStates(queue.topic, queue.group, index, part.floor, end, tuple(touched), tuple(finished), next_offset)


def _add_block(
    block: Block, base: int, within: range, touched: list[TouchedRecord], finished: list[tuple[int, int]]
) -> None:
    for run in _RUNS.finditer(block.states, max(0, within.start - base), max(0, within.stop - base)):
        at = run.start()
        offset = base + at
        if run.group(1) is not None:
            begins = finished.pop()[0] if finished and finished[-1][1] == offset else offset
            finished.append((begins, base + run.end()))
            continue
        state = block.states[at]
        touched.append(
            TouchedRecord(
                offset,
                _STATES[state],
                block.attempts[at],
                block.error(at) or "",
                block.owner(at) if state == LEASED else None,
                block.until_ms[at] if state in (LEASED, WAITING) else None,
            )
        )
