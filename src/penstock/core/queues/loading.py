"""Loads queues from the state topic: when a node starts, when it becomes the coordinator of groups, and after a failed append.

The last record of a key is the state, so all records are collected before they are decoded. Tombstones are appended for records of
deleted topics, for blocks below the floor, and for the intents of moves whose record is not being moved.

Leases, backoffs and keys have times by the clock of the node that wrote them. If that clock was ahead of this one, so that its records
have times in the future, these times are set back by as much: the remaining time cannot be longer than when they were written. If it
was behind this one, that cannot be detected: a lease that seems to have expired has, and its record is delivered again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import UnreadableRecord
from penstock.core.queues.block import BLOCK_BITS, BLOCK_OFFSETS, MOVING, decode_block
from penstock.core.queues.queue import Queue
from penstock.core.queues.stored import (
    QueueId,
    StateKind,
    block_key,
    key_prefix,
    read_key,
    read_move,
    read_time,
)
from penstock.errors import Reason
from penstock.limits import KIB
from penstock.ports import Report
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.core.queues.upkeep import Upkeep

K = TypeVar("K")
V = TypeVar("V")

_Timed = tuple[bytes, int]
"""A value, and the time when it was written."""

_QUEUE_BYTES: Final = 50 * KIB
"""The cost of creating a queue."""


@dataclass(slots=True)
class QueueImage:
    """The state of one queue in the log."""

    made_ms: int | None = None
    blocks: dict[tuple[int, int], _Timed] = field(default_factory=dict)
    moves: dict[tuple[int, int], bytes] = field(default_factory=dict)
    keys: dict[bytes, _Timed] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the log has nothing of the queue."""
        return self.made_ms is None and not self.blocks and not self.moves and not self.keys


class QueuesShard(Shard):
    """The queues of one partition of the state topic."""

    def __init__(self, upkeep: "Upkeep", report: Report, index: int) -> None:
        self.index: Final = index
        self._upkeep = upkeep
        self._report = report
        self._images: dict[QueueId, QueueImage] = {}

    def replay(self, key: Buffer, value: Buffer | None, written_ms: int) -> None:
        try:
            self._take(key, None if value is None else bytes(value), written_ms)
        except UnreadableRecord as error:
            self._report(f"a record of the state of queues is skipped: {error}")

    def images(self) -> dict[QueueId, QueueImage]:
        """The queues in the records that were replayed since the last call."""
        images, self._images = self._images, {}
        return {queue_id: image for queue_id, image in images.items() if not image.is_empty}

    def loaded(self) -> Iterator[int]:
        images = self.images()
        while images:
            self._upkeep.restore(self.index, *images.popitem())
            yield _QUEUE_BYTES

    def unloaded(self, reason: Reason) -> None:
        self._upkeep.resign(self.index, reason)

    def _take(self, raw_key: Buffer, value: bytes | None, written_ms: int) -> None:
        key = read_key(raw_key)
        image = self._images.setdefault(key.queue, QueueImage())
        if key.kind is StateKind.QUEUE:
            image.made_ms = None if value is None else read_time(value)
        elif key.kind is StateKind.MOVE:
            _set(image.moves, (key.partition, key.number), value)
        else:
            timed = None if value is None else (value, written_ms)
            if key.kind is StateKind.BLOCK:
                _set(image.blocks, (key.partition, key.number), timed)
            else:
                _set(image.keys, bytes(raw_key), timed)


def read_images(family: Family[QueuesShard], index: int) -> dict[QueueId, QueueImage]:
    """The queues in the log now, with all written records, because uncommitted ones may still be committed."""
    shard = family.shards[index]
    for record in family.topic.replay(index, written=True):
        shard.replay(*record)
    return shard.images()


def _set(items: dict[K, V], key: K, value: V | None) -> None:
    # At the end: the order of idempotency keys is the order in which they expire.
    items.pop(key, None)
    if value is not None:
        items[key] = value


def fill(queue: Queue, image: QueueImage) -> None:
    """Fill a new or reset queue with its state in the log."""
    context = queue.context
    prefix = key_prefix(StateKind.BLOCK, queue.queue_id)
    now_ms = context.clock.now_ms()
    for (index, number), (value, written_ms) in image.blocks.items():
        part = queue.partitions[index] if index < len(queue.partitions) else None
        if part is None or (number << BLOCK_BITS) + BLOCK_OFFSETS <= part.committed:
            context.state_log.remove(queue.state_partition, block_key(prefix, index, number))
            continue
        try:
            block, base = decode_block(value)
        except UnreadableRecord as error:
            context.report(f"a block of {queue.topic}/{index} in group {queue.group} is skipped: {error}")
            continue
        if written_ms > now_ms:
            block.set_back(written_ms - now_ms)
        if part.take_block(number, block, base) or written_ms > now_ms:
            context.state_log.mark(part, number)
        context.arm(queue, part, number, block)
    for (index, offset), value in image.moves.items():
        _fill_move(queue, index, offset, value)
    for raw_key, (value, written_ms) in image.keys.items():
        key = read_key(raw_key).idempotency
        try:
            if key is not None:
                queue.keys.remember(key, read_time(value) - max(0, written_ms - now_ms))
        except UnreadableRecord as error:
            context.report(f"an idempotency key of group {queue.group} is skipped: {error}")
    for part in queue.partitions:
        _drop_orphans(queue, part.index)
        part.advance()
        queue.active[part] = None
        context.mover.resume(queue, part)
        if part.floor != part.committed and part.committed:
            context.floors.moved(part)


def _fill_move(queue: Queue, index: int, offset: int, value: bytes) -> None:
    part = queue.partitions[index] if index < len(queue.partitions) else None
    try:
        if part is not None and part.state_at(offset) == MOVING:
            part.moves[offset] = read_move(value)
            return
    except UnreadableRecord as error:
        queue.context.report(f"a move of {queue.topic}/{index}@{offset} is skipped: {error}")
    if part is not None:
        queue.context.state_log.remove(queue.state_partition, part.move_key(offset))


def _drop_orphans(queue: Queue, index: int) -> None:
    """Records that are being moved without a readable intent are delivered again."""
    part = queue.partitions[index]
    for number, block in part.blocks.items():
        at = block.states.find(MOVING)
        while at >= 0:
            offset = (number << BLOCK_BITS) + at
            if offset >= part.floor and offset not in part.moves:
                queue.failures.make_ready(part, offset, block, None)
            at = block.states.find(MOVING, at + 1)
