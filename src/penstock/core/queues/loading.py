"""From the state topic back to queues, when a node starts, when it comes to work for other groups, and when an append failed.

The last record of a key counts, so everything is collected first and opened once. What belongs to a deleted topic, lies below
the floor, or is the intent of a move whose record is not moving, is of no use: tombstones are appended for it.

Leases, backoffs and keys have times by the clock of the node that wrote them. If that was ahead of this one, so that its records come from the future, these times
are set back by as much: what was left when they were written is the most that is left now. The other way round nothing can be told: a lease that seems to be
over is, and its record is delivered again.
"""

from itertools import islice
from typing import Final, TypeVar

from penstock.core.queues.block import BLOCK_BITS, BLOCK_OFFSETS, MOVING, UnreadableBlock, decode_block
from penstock.core.queues.context import Context
from penstock.core.queues.queue import Queue
from penstock.core.queues.stored import (
    Kind,
    QueueId,
    UnreadableRecord,
    block_key,
    key_prefix,
    read_key,
    read_move,
    read_time,
)
from penstock.types import Buffer

K = TypeVar("K")
V = TypeVar("V")

_Timed = tuple[bytes, int]
"""A value, and when it was written."""

_RECORDS_AT_ONCE: Final = 2_000
"""Some ten milliseconds of work."""


class QueueImage:
    """What the log says of one queue."""

    __slots__ = ("blocks", "keys", "made_ms", "moves")

    def __init__(self) -> None:
        self.made_ms: int | None = None
        self.blocks: dict[tuple[int, int], _Timed] = {}
        self.moves: dict[tuple[int, int], bytes] = {}
        self.keys: dict[bytes, _Timed] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        return self.made_ms is None and not self.blocks and not self.moves and not self.keys


def read_images(context: Context, state_partition: int) -> dict[QueueId, QueueImage]:
    """All queues that have something in a partition of the state topic."""
    reader = ImageReader(context, state_partition)
    while not reader.read_some():
        pass
    return reader.images()


class ImageReader:
    """The same, a piece at a time: what is written when it begins."""

    def __init__(self, context: Context, state_partition: int) -> None:
        self._context = context
        self._records = context.state_log.replay(state_partition)
        self._images: dict[QueueId, QueueImage] = {}

    def images(self) -> dict[QueueId, QueueImage]:
        """What was found so far."""
        return {queue_id: image for queue_id, image in self._images.items() if not image.is_empty}

    def read_some(self) -> bool:
        """Read the next records; whether these were the last."""
        count = 0
        for raw_key, raw_value, written_ms in islice(self._records, _RECORDS_AT_ONCE):
            count += 1
            try:
                self._take(raw_key, None if raw_value is None else bytes(raw_value), written_ms)
            except UnreadableRecord as error:
                self._context.report(f"a record of the state of queues is skipped: {error}")
        return count < _RECORDS_AT_ONCE

    def _take(self, raw_key: Buffer, value: bytes | None, written_ms: int) -> None:
        key = read_key(raw_key)
        image = self._images.setdefault(key.queue, QueueImage())
        if key.kind is Kind.QUEUE:
            image.made_ms = None if value is None else read_time(value)
        elif key.kind is Kind.MOVE:
            _set(image.moves, (key.partition, key.number), value)
        else:
            timed = None if value is None else (value, written_ms)
            if key.kind is Kind.BLOCK:
                _set(image.blocks, (key.partition, key.number), timed)
            else:
                _set(image.keys, bytes(raw_key), timed)


def _set(items: dict[K, V], key: K, value: V | None) -> None:
    # Behind the others: the order of idempotency keys is the order in which they are forgotten.
    items.pop(key, None)
    if value is not None:
        items[key] = value


def fill(queue: Queue, image: QueueImage) -> None:
    """Let a queue, just made or reset, know what the log says."""
    context = queue.context
    prefix = key_prefix(Kind.BLOCK, queue.queue_id)
    now_ms = context.clock.now_ms()
    for (index, number), (value, written_ms) in image.blocks.items():
        part = queue.partitions[index] if index < len(queue.partitions) else None
        if part is None or (number << BLOCK_BITS) + BLOCK_OFFSETS <= part.committed:
            context.state_log.remove(queue.state_partition, block_key(prefix, index, number))
            continue
        try:
            block, base = decode_block(value)
        except UnreadableBlock as error:
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
    """A record that is called moving, without an intent that can be read, is delivered again."""
    part = queue.partitions[index]
    for number, block in part.blocks.items():
        at = block.states.find(MOVING)
        while at >= 0:
            offset = (number << BLOCK_BITS) + at
            if offset >= part.floor and offset not in part.moves:
                queue.make_ready(part, offset, block, None)
            at = block.states.find(MOVING, at + 1)
