"""How a queue stands, counted when somebody asks."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from penstock.core.queues.block import BLOCK_BITS, BLOCK_MASK, FINISHED, LEASED, MOVING, READY, WAITING
from penstock.core.queues.delivery import OwnerStatus, PartitionStatus, PeekedRecord, QueueStatus, RecordState
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.queue import Queue

_STATES: Final = tuple(RecordState)
_PEEK_OFFSETS_MAX: Final = 10_000
"""Offsets that a peek passes over in a partition to find unfinished ones."""


def queue_status(queue: Queue) -> QueueStatus:
    """The numbers of one queue."""
    queue.open()
    return QueueStatus(
        queue.topic,
        queue.group,
        tuple(_partition_status(queue, part) for part in queue.partitions),
        _owners(queue),
        queue.context.settings.in_flight_max,
    )


def opened_status(queue: Queue) -> Iterator[PartitionStatus]:
    """The numbers of those partitions whose log is open; none is opened for them."""
    return (_partition_status(queue, part) for part in queue.partitions if part.source is not None)


def _partition_status(queue: Queue, part: QueuePartition) -> PartitionStatus:
    queue.follow_start(part)
    end = queue.source(part).high_watermark
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
