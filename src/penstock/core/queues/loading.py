"""From the state topic back to queues, when a node starts, when it comes to work for other groups, and when an append failed.

The last record of a key counts, so everything is collected first and opened once. What belongs to a deleted topic, lies below
the floor, or is the intent of a move whose record is not moving, is of no use: tombstones are appended for it.

Leases, backoffs and keys have times by the clock of the node that wrote them. If that was ahead of this one, so that its records come from the future, these times
are set back by as much: what was left when they were written is the most that is left now. The other way round nothing can be told: a lease that seems to be
over is, and its record is delivered again.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.queues.block import BLOCK_BITS, BLOCK_OFFSETS, MOVING, UnreadableBlock, decode_block
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
from penstock.errors import Reason
from penstock.limits import KIB
from penstock.ports import Report
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.core.queues.upkeep import Upkeep

K = TypeVar("K")
V = TypeVar("V")

_Timed = tuple[bytes, int]
"""A value, and when it was written."""

_QUEUE_BYTES: Final = 50 * KIB
"""What it costs to make a queue."""


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


class QueuesShard(Shard):
    """The queues of one partition of the state topic. The last record of a key counts, so everything is collected before it is opened."""

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
        """All queues that have something in what was replayed since this was last asked for."""
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


def read_images(family: Family[QueuesShard], index: int) -> dict[QueueId, QueueImage]:
    """What the log says now: every record that is written, because what is not committed yet may still become so."""
    shard = family.shards[index]
    for record in family.topic.replay(index, written=True):
        shard.replay(*record)
    return shard.images()


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
                queue.failures.make_ready(part, offset, block, None)
            at = block.states.find(MOVING, at + 1)
