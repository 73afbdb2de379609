"""Failed deliveries: retries, backoff, dead letters, and deadlines.

A record is delivered again at once or after its backoff, or becomes a dead letter after its last attempt; after its deadline it is
finished. All of this happens with and without connected workers.
"""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from penstock.core.queues.block import (
    ACK_TIMEOUT,
    BLOCK_BITS,
    BLOCK_MASK,
    DELAYED,
    LEASED,
    OWNER_DISCONNECTED,
    READY,
    UNTOUCHED,
    WAITING,
    Block,
)
from penstock.core.queues.envelope import DEADLINE_MS, Envelope, read_envelope
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.core.queues.partition import QueuePartition
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

LOOK_AHEAD_RECORDS: Final = 1000
"""How far after the cursor deadlines are known."""
_DOUBLINGS_MAX: Final = 40


class Failures:
    """The failed deliveries of one queue."""

    def __init__(self, queue: "Queue") -> None:
        self._queue: Final = queue
        self._context: Final = queue.context

    def fail(self, part: QueuePartition, offset: int, error: str, *, backs_off: bool) -> None:
        """A delivery failed with this error."""
        number = offset >> BLOCK_BITS
        block = part.blocks[number]
        at = offset & BLOCK_MASK
        now_ms = self._context.clock.now_ms()
        part.leased -= 1
        block.states[at] = READY
        block.set_error(at, error)
        envelope = self._queue.envelope(part, offset, block)
        if envelope is None:
            self._queue.finish(part, (offset,))
            return
        if envelope.deadline_ms is not None and envelope.deadline_ms <= now_ms:
            self._context.meters.deadline_exceeded.add(self._queue.labels)
            self._queue.finish(part, (offset,))
            return
        attempts = block.attempts[at]
        settings = self._context.settings
        attempts_max = settings.max_attempts if envelope.max_attempts is None else envelope.max_attempts
        if attempts_max and attempts >= attempts_max:
            self._context.mover.dead_letter(self._queue, part, offset, attempts, error)
        elif backs_off and (wait_ms := self._backoff_ms(envelope, attempts)):
            block.wait(at, before_deadline(now_ms + wait_ms, envelope))
            self._queue.changed(part, number, block)
        else:
            self.make_ready(part, offset, block, envelope)
        # Another record may be in flight now, even if this one waits.
        self._queue.wake()

    def _backoff_ms(self, envelope: Envelope, attempts: int) -> int:
        settings = self._context.settings
        backoff_ms = envelope.backoff_ms
        if backoff_ms is None:
            # A record with its own limit of attempts and no backoff has none.
            backoff_ms = settings.backoff_ms if envelope.max_attempts is None else 0
        cap_ms = settings.max_backoff_ms if envelope.max_backoff_ms is None else envelope.max_backoff_ms
        wait_ms = backoff_ms << min(max(attempts - 1, 0), _DOUBLINGS_MAX)
        return min(wait_ms, cap_ms) if cap_ms else min(wait_ms, 1 << 53)

    def make_ready(self, part: QueuePartition, offset: int, block: Block, envelope: Envelope | None) -> None:
        """Let the record be delivered."""
        number = offset >> BLOCK_BITS
        block.make_ready(offset & BLOCK_MASK, 0 if envelope is None else envelope.deadline_ms or 0)
        block.flags[offset & BLOCK_MASK] &= ~DELAYED
        part.note_ready(number, block)
        self._queue.changed(part, number, block)
        self._queue.wake_partition(part)

    def give_back(self, part: QueuePartition, offset: int) -> None:
        """Undo a delivery that no worker received: it does not count as an attempt."""
        block = part.blocks[offset >> BLOCK_BITS]
        part.leased -= 1
        block.attempts[offset & BLOCK_MASK] -= 1
        self.make_ready(part, offset, block, self._queue.envelope(part, offset, block))

    def release(self, part: QueuePartition, offset: int) -> None:
        """End a lease with its worker's stream. The delivery does not count as an attempt; an earlier error stays."""
        block = part.blocks[offset >> BLOCK_BITS]
        if block.error(offset & BLOCK_MASK) is None:
            block.set_error(offset & BLOCK_MASK, OWNER_DISCONNECTED)
        self.give_back(part, offset)

    def due(self, part: QueuePartition, number: int, now_ms: int) -> None:
        """Records of a block are due: leases expire, waits end, deadlines pass."""
        block = part.blocks[number]
        timeouts = 0
        for at in block.due_at(now_ms):
            offset = (number << BLOCK_BITS) + at
            if offset < part.floor:
                continue
            if block.states[at] == LEASED:
                timeouts += 1
                self.fail(part, offset, ACK_TIMEOUT, backs_off=False)
                continue
            envelope = self._queue.envelope(part, offset, block)
            if envelope is None:
                self._queue.finish(part, (offset,))
            elif envelope.deadline_ms is not None and envelope.deadline_ms <= now_ms:
                self._context.meters.deadline_exceeded.add(self._queue.labels)
                self._queue.finish(part, (offset,))
            elif block.states[at] == WAITING:
                self.make_ready(part, offset, block, envelope)
            else:
                # Its deadline can no longer be read: it stays ready, without one.
                block.make_ready(at, envelope.deadline_ms or 0)
        if timeouts:
            self._context.meters.lease_timeouts.add(self._queue.labels, timeouts)
        self._context.arm(self._queue, part, number, block)

    # -- deadlines of untouched records

    def look_ahead(self, part: QueuePartition, now_ms: int) -> None:
        """Find the deadlines of the next records, and finish those that have passed, even without workers."""
        if self._queue.group == REDRIVE_GROUP:
            # A dead letter stays open until a person redrives or purges it.
            return
        try:
            self._queue.follow_start(part)
            source = self._queue.source(part)
            offset = max(part.checked_end, part.cursor)
            end = min(source.high_watermark, part.cursor + LOOK_AHEAD_RECORDS)
            while offset < end:
                piece = self._context.cache.piece(source, offset)
                if piece is None:
                    break
                for record in piece.records[piece.index(offset) :]:
                    if record.headers and any(name == DEADLINE_MS for name, _ in record.headers):
                        deadline_ms = read_envelope(record.headers).deadline_ms
                        if deadline_ms is not None:
                            heappush(part.deadlines, (deadline_ms, record.offset))
                offset = piece.next_offset
            part.checked_end = max(offset, part.checked_end)
            if len(part.deadlines) > 2 * LOOK_AHEAD_RECORDS:
                # Most of these records were delivered meanwhile; those after the cursor are kept.
                part.deadlines = [entry for entry in part.deadlines if entry[1] >= part.cursor]
                heapify(part.deadlines)
        except PenstockError:
            # The dispatcher reports it when it reads these records.
            return
        self.pass_deadlines(part, now_ms)

    def pass_deadlines(self, part: QueuePartition, now_ms: int) -> None:
        """Finish untouched records whose deadline has passed."""
        deadlines = part.deadlines
        over: list[int] = []
        while deadlines and deadlines[0][0] <= now_ms:
            offset = heappop(deadlines)[1]
            if part.state_at(offset) == UNTOUCHED:
                over.append(offset)
        if over:
            self._context.meters.deadline_exceeded.add(self._queue.labels, len(over))
            self._queue.finish(part, over)
            # The floor may have moved, and with it the records that are checked.
            self._context.look(self._queue, part)
        if deadlines:
            self._context.arm_look(self._queue, part, deadlines[0][0])


def before_deadline(until_ms: int, envelope: Envelope) -> int:
    """The end of a wait, or the record's deadline if that is earlier."""
    return until_ms if envelope.deadline_ms is None else min(until_ms, envelope.deadline_ms)
