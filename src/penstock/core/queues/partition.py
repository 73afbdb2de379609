"""One partition of a queue: the state of its records. It knows neither workers nor policies, and does not read records.

Invariant: ``floor <= cursor``. All records below the floor are finished; none from the cursor on were delivered, though some may be
finished. The state of the records between them is in blocks. ``committed`` is the stored floor: blocks are kept from there on, because
the logs of offsets and of states can lose their ends independently.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from penstock.core.coordinators.deadlines import Timer
from penstock.core.coordinators.topic import StateRecord, StoredDone
from penstock.core.partitions.replica import Replica
from penstock.core.queues.block import (
    BLOCK_BITS,
    BLOCK_MASK,
    BLOCK_OFFSETS,
    FINISHED,
    FINISHED_RUN,
    LEASED,
    MOVING,
    NEVER_MS,
    READY,
    UNTOUCHED,
    WAITING,
    Block,
)
from penstock.core.queues.stored import MoveIntent, QueueId, StateKind, block_key, key_prefix
from penstock.types import TopicName

_DROP_FINISHED: Final = bytes((UNTOUCHED if state == FINISHED else state) for state in range(256))


class QueuePartition:
    """The records of one partition for one group. Changes are made in memory; the caller has them stored."""

    __slots__ = (
        "_block_prefix",
        "_dropped_below",
        "_move_prefix",
        "_ready",
        "blocks",
        "checked_end",
        "committed",
        "committing",
        "cursor",
        "damage",
        "deadlines",
        "floor",
        "floor_waiting",
        "gone",
        "index",
        "leased",
        "look_entry_ms",
        "move_waiting",
        "moves",
        "needed_end",
        "queue",
        "retry",
        "rewound",
        "source",
        "state_partition",
        "topic",
        "wake",
    )

    def __init__(self, queue: QueueId, topic: TopicName, index: int, state_partition: int, committed: int) -> None:
        self.queue: Final = queue
        self.topic: Final = topic
        self.index: Final = index
        self.state_partition: Final = state_partition
        self._block_prefix = key_prefix(StateKind.BLOCK, queue)
        self._move_prefix = key_prefix(StateKind.MOVE, queue)
        self.source: Replica | None = None
        """The log; None until it is needed."""
        self.wake: Callable[[], None] = lambda: None
        """Called by the log when it has more records."""
        self.needed_end = 0
        """Nothing is done before the log on this node has this end, because the state has records that are not copied yet. 0: it has them."""
        self.damage: str | None = None
        """Why the next records cannot be read."""
        self.retry: Timer | None = None
        """Reads them again later."""
        self.floor_waiting: list[tuple[int, StoredDone]] = []
        """Callers that wait until a floor is stored."""
        self.committing: int | None = None
        """The floor that is being stored."""
        self.gone = False
        """The queue is closed: its changes are not stored."""
        self.rewound = False
        """The group was reset to an earlier offset while a floor was being stored: that floor is obsolete."""
        self.move_waiting: dict[int, list[StoredDone]] = {}
        self.clear(committed)

    def clear(self, committed: int) -> None:
        """Forget all but the group's committed offset."""
        self.committed = committed
        self.floor = committed
        self.cursor = committed
        self.blocks: dict[int, Block] = {}
        self.moves: dict[int, MoveIntent] = {}
        self.leased = 0
        self.checked_end = committed
        """The offset up to which records were checked for deadlines."""
        self.deadlines: list[tuple[int, int]] = []
        """A heap of the deadlines and offsets of these records."""
        self.look_entry_ms = NEVER_MS
        """The time of the entry for these deadlines in the timer heap."""
        self._ready: list[int] = []
        self._dropped_below = committed >> BLOCK_BITS

    # -- asking

    def state_at(self, offset: int) -> int:
        """The state of a record."""
        if offset < self.floor:
            return FINISHED
        block = self.blocks.get(offset >> BLOCK_BITS)
        return UNTOUCHED if block is None else block.states[offset & BLOCK_MASK]

    def count(self, state: int) -> int:
        """The number of records in a state, from the floor on."""
        total = sum(block.states.count(state) for block in self.blocks.values())
        if state == FINISHED:
            for number in [number for number in self.blocks if number <= self.floor >> BLOCK_BITS]:
                below = min(self.floor - (number << BLOCK_BITS), BLOCK_OFFSETS)
                total -= self.blocks[number].states[:below].count(FINISHED)
        return total

    def open_end(self) -> int:
        """The offset after the last record that is touched and not finished; the floor if there is none."""
        for number in sorted(self.blocks, reverse=True):
            states = self.blocks[number].states
            at = max(states.rfind(state) for state in (LEASED, READY, WAITING, MOVING))
            if at >= 0:
                return max((number << BLOCK_BITS) + at + 1, self.floor)
        return self.floor

    def held_by(self, owner: str) -> list[int]:
        """The offsets that are leased to an owner, in order."""
        found: list[int] = []
        for number, block in self.blocks.items():
            index = block.find_owner(owner)
            if not index:
                continue
            at = block.owner_at.find(index)
            while at >= 0:
                if block.states[at] == LEASED and (number << BLOCK_BITS) + at >= self.floor:
                    found.append((number << BLOCK_BITS) + at)
                at = block.owner_at.find(index, at + 1)
        return sorted(found)

    def next_ready(self) -> int:
        """The oldest record that is ready to be delivered again; -1 if there is none."""
        heap = self._ready
        while heap:
            number = heap[0]
            block = self.blocks.get(number)
            if block is not None:
                at = block.states.find(READY)
                if at >= 0:
                    return (number << BLOCK_BITS) + at
                block.in_ready_heap = False
            heappop(heap)
        return -1

    def next_untouched(self, end: int) -> int:
        """The first untouched record from the cursor on; ``end`` if there is none before it."""
        offset = self.cursor
        while offset < end:
            block = self.blocks.get(offset >> BLOCK_BITS)
            if block is None:
                break
            at = block.states.find(UNTOUCHED, offset & BLOCK_MASK)
            if at >= 0:
                offset = (offset & ~BLOCK_MASK) + at
                break
            offset = (offset | BLOCK_MASK) + 1
        self.cursor = offset = min(offset, end) if offset > self.cursor else offset
        return offset

    # -- changing

    def block_of(self, offset: int) -> Block:
        """The block of an offset, created if it does not exist."""
        number = offset >> BLOCK_BITS
        block = self.blocks.get(number)
        if block is None:
            block = self.blocks[number] = Block()
            if offset - (offset & BLOCK_MASK) < self.floor:
                block.states[: self.floor & BLOCK_MASK] = bytes((FINISHED,)) * (self.floor & BLOCK_MASK)
        return block

    def note_ready(self, number: int, block: Block) -> None:
        """A record of the block became ready."""
        if not block.in_ready_heap:
            block.in_ready_heap = True
            heappush(self._ready, number)

    def finish(self, offset: int) -> None:
        """Finish a record. :meth:`advance` moves the floor."""
        block = self.block_of(offset)
        at = offset & BLOCK_MASK
        if block.states[at] == LEASED:
            self.leased -= 1
        block.states[at] = FINISHED

    def finish_run(self, start: int, stop: int) -> range:
        """The same for adjacent offsets above the floor; returns the numbers of their blocks."""
        for first in range(start & ~BLOCK_MASK, stop, BLOCK_OFFSETS):
            block = self.block_of(max(first, start))
            below, above = max(start - first, 0), min(stop - first, BLOCK_OFFSETS)
            self.leased -= block.states.count(LEASED, below, above)
            block.states[below:above] = FINISHED_RUN[: above - below]
        return range(start >> BLOCK_BITS, ((stop - 1) >> BLOCK_BITS) + 1)

    def advance(self) -> bool:
        """Move the floor over finished records; returns whether it moved."""
        floor = self.floor
        while (block := self.blocks.get(floor >> BLOCK_BITS)) is not None:
            run = block.finished_from(floor & BLOCK_MASK)
            floor += run
            if not run or floor & BLOCK_MASK:
                break
        if floor == self.floor:
            return False
        self.floor = floor
        self.cursor = max(self.cursor, floor)
        return True

    def forward(self, floor: int) -> list[int]:
        """Finish everything below ``floor``; returns the offsets of the moves that end by it."""
        for number in [number for number in self.blocks if number <= floor >> BLOCK_BITS]:
            block = self.blocks[number]
            below = min(floor - (number << BLOCK_BITS), BLOCK_OFFSETS)
            self.leased -= block.states[:below].count(LEASED)
            block.states[:below] = bytes((FINISHED,)) * below
        self.floor = floor
        self.cursor = max(self.cursor, floor)
        ended = [offset for offset in self.moves if offset < floor]
        for offset in ended:
            del self.moves[offset]
        self.advance()
        return ended

    def rewind(self, floor: int) -> list[int]:
        """Deliver finished records from ``floor`` on again; returns the numbers of the changed blocks."""
        changed: list[int] = []
        for number, block in self.blocks.items():
            first = number << BLOCK_BITS
            if first + BLOCK_OFFSETS <= floor:
                continue
            below = max(0, floor - first)
            block.states[below:] = block.states[below:].translate(_DROP_FINISHED)
            block.states[:below] = bytes((FINISHED,)) * below
            changed.append(number)
        self.floor = self.cursor = self.checked_end = floor
        self.deadlines.clear()
        self.look_entry_ms = NEVER_MS
        self._dropped_below = min(self._dropped_below, floor >> BLOCK_BITS)
        return changed

    def drop_finished(self) -> list[bytes]:
        """Drop the blocks below the committed offset; returns the keys of those that are stored."""
        start = self.source.log.start_offset if self.source is not None else 0
        below = min(max(self.committed, start), self.floor) >> BLOCK_BITS
        numbers: list[int]
        if below - self._dropped_below < len(self.blocks):
            numbers = [number for number in range(self._dropped_below, below) if number in self.blocks]
        else:
            numbers = [number for number in self.blocks if number < below]
        self._dropped_below = max(below, self._dropped_below)
        return [self.key_of(number) for number in numbers if self.blocks.pop(number).stored]

    # -- storing

    def key_of(self, number: int) -> bytes:
        """The key of a block in the state topic."""
        return block_key(self._block_prefix, self.index, number)

    def move_key(self, offset: int) -> bytes:
        """The key of a move in the state topic."""
        return block_key(self._move_prefix, self.index, offset)

    def encode(self, number: int) -> StateRecord | None:
        """The record of a block; None if there is nothing to store."""
        block = self.blocks.get(number)
        if block is None:
            return None
        lowest = max(0, min(self.committed - (number << BLOCK_BITS), BLOCK_OFFSETS))
        value = block.encode(self.committed, lowest)
        if value is None and not block.stored:
            return None
        block.stored = value is not None
        return self.key_of(number), value

    def take_block(self, number: int, block: Block, base: int) -> bool:
        """Add a block that was stored when ``base`` was committed; returns whether it must be stored again."""
        first = number << BLOCK_BITS
        if base > self.committed:
            # The group was reset to an earlier offset: finished records are delivered again.
            block.states[:] = block.states.translate(_DROP_FINISHED)
        below = max(0, self.floor - first)
        block.states[:below] = bytes((FINISHED,)) * min(below, BLOCK_OFFSETS)
        self.blocks[number] = block
        self.leased += block.states.count(LEASED)
        if READY in block.states:
            self.note_ready(number, block)
        return base > self.committed
