"""Distributes the records of a queue to its workers, fairly.

In each partition, records that are delivered again come first, oldest first, and then untouched records, in order. Takers with credit
take turns in small portions, and so do partitions. A record is sent once its lease is written; in a cluster, once it is committed:
otherwise a node that is no longer the group's coordinator could deliver records that were acked at the new one.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.coordinators.deadlines import Timer
from penstock.core.partitions.partition import Partition
from penstock.core.queues.block import ACK_TIMEOUT, BLOCK_BITS, BLOCK_MASK, DELAYED, HAS_POLICY, LEASED, UNTOUCHED
from penstock.core.queues.envelope import has_policy, read_envelope
from penstock.core.queues.failures import before_deadline
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.records import NOT_HERE, Piece
from penstock.core.queues.workers import LeaseId, Poll, Taker, Worker
from penstock.core.topics.names import QUEUE_STATE_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.operations.queues import Delivery
from penstock.records.records import Record

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

PORTION: Final = 32
"""Records that one taker gets before the next one."""
PORTION_ALONE: Final = 256
"""The same if no other taker waits."""
_RETRY_MS: Final = 2_000
"""After which records that could not be read are read again."""
_COPY_RETRY_MS: Final = 100
"""The same for records that are not on this node yet."""
_PASSES_MAX: Final = 500
"""Records that a turn may skip, some milliseconds of work: a million delayed records do not block other work."""


class _Take(NamedTuple):
    """One portion for a taker."""

    taker: Taker
    limit: int
    now_ms: int
    until_ms: int
    out: list[Delivery]


class Dispatcher:
    """Delivers the records of one queue."""

    def __init__(self, queue: "Queue") -> None:
        self._queue: Final = queue
        self._context: Final = queue.context
        self._retry: Final = Timer(queue.wake)
        self._passes = _PASSES_MAX
        """Records that this turn may still skip."""

    def close(self) -> None:
        """Deliver no more records."""
        self._context.deadlines.cancel(self._retry)

    # -- takers

    def add(self, taker: Taker) -> None:
        """Add a taker."""
        self._queue.takers.append(taker)
        self._queue.wake()

    def remove_poll(self, poll: Poll) -> None:
        """A call is answered or cancelled."""
        self._context.deadlines.cancel(poll.timer)
        if poll in self._queue.takers:
            self._queue.takers.remove(poll)

    def add_worker(self, worker: Worker) -> None:
        """A stream begins. Records that its owner holds and no open stream has are sent to it first."""
        with_others = {lease for other in self._streams_of(worker.owner) for lease in other.leases()}
        for part in self._queue.partitions:
            for offset in part.held_by(worker.owner):
                lease = part.index, offset, part.block_of(offset).attempts[offset & BLOCK_MASK]
                if lease not in with_others:
                    worker.unsent.append(lease)
        self.add(worker)

    def remove_worker(self, worker: Worker, released: Iterable[LeaseId], kept: Iterable[LeaseId]) -> None:
        """A stream ended. Some of its leases are released; another open stream of its owner gets the others again."""
        if worker in self._queue.takers:
            self._queue.takers.remove(worker)
        if not self._queue.alive:
            return
        for lease in released:
            part = self._queue.partitions[lease[0]]
            if self.holds(worker.owner, *lease) and self._queue.is_here(part):
                self._queue.failures.release(part, lease[1])
        for heir in self._streams_of(worker.owner):
            heir.inherit(lease for lease in kept if self.holds(worker.owner, *lease))
            self._queue.wake()
            break

    def _streams_of(self, owner: str) -> Iterator[Worker]:
        return (taker for taker in self._queue.takers if isinstance(taker, Worker) and taker.owner == owner)

    def holds(self, owner: str, index: int, offset: int, attempts: int) -> bool:
        """Whether the lease of this delivery still exists."""
        part = self._queue.partitions[index]
        block = part.blocks.get(offset >> BLOCK_BITS)
        at = offset & BLOCK_MASK
        return (
            block is not None
            and offset >= part.floor
            and block.states[at] == LEASED
            and block.attempts[at] == attempts
            and block.owner(at) == owner
        )

    # -- delivering

    def dispatch(self) -> None:
        """Give records to takers with credit, up to the limit on records in flight."""
        if not self._queue.alive:
            return
        context = self._context
        self._passes = _PASSES_MAX
        if context.clock.monotonic_ms() >= self._queue.paused_until_ms and self._can_lease():
            log = context.state_log
            # A lease may leave before its commit if no other node can become the coordinator without it.
            when_leased = log.when_committed if self._state().in_sync.has_followers else log.when_written
            now_ms = context.clock.now_ms()
            for worker in [taker for taker in self._queue.takers if isinstance(taker, Worker) and taker.unsent]:
                again = self._send_again(worker, now_ms)
                if again:
                    when_leased(self._queue.state_partition, partial(self._leave_again, worker, again))
            for taker, deliveries in self._share(now_ms).items():
                when_leased(self._queue.state_partition, partial(self._leave, taker, deliveries))
        for taker in list(self._queue.takers):
            if isinstance(taker, Poll) and (taker.served or (self._passes > 0 and not taker.waits)):
                self.remove_poll(taker)
                if not taker.served:
                    taker.deliver([])
        if self._passes <= 0:
            self._queue.wake()

    def check_can_lease(self) -> None:
        """NOT_ENOUGH_REPLICAS when a lease would not be committed: too few replicas of the queue's state are in sync."""
        self._state().check_in_sync()

    def _state(self) -> Partition:
        return self._context.broker.partition(QUEUE_STATE_TOPIC, self._queue.state_partition)

    def _can_lease(self) -> bool:
        """Whether a lease would be committed. Otherwise nothing is delivered, and it is tried again soon."""
        try:
            self.check_can_lease()
        except PenstockError:
            self._context.deadlines.set(self._retry, self._context.clock.monotonic_ms() + _COPY_RETRY_MS)
            return False
        return True

    def _send_again(self, worker: Worker, now_ms: int) -> list[Delivery]:
        """The leases of the worker's owner that no stream has, as many as the worker has room for."""
        room = worker.room()
        if room <= 0:
            return []
        unsent, worker.unsent = worker.unsent, deque()
        stalled: set[QueuePartition] = set()
        again: list[Delivery] = []
        while unsent and len(again) < room and self._passes > 0:
            lease = unsent.popleft()
            part = self._queue.partitions[lease[0]]
            if part in stalled:
                worker.unsent.append(lease)
                continue
            try:
                delivery = self._deliver_again(part, worker, lease, now_ms)
            except PenstockError as error:
                self._stall(part, error)
                stalled.add(part)
                worker.unsent.append(lease)
                continue
            if delivery is not None:
                again.append(delivery)
        worker.unsent.extend(unsent)
        worker.leased(again)
        if again:
            self._context.meters.redeliveries.add(self._queue.labels, len(again))
        return again

    def _deliver_again(self, part: QueuePartition, worker: Worker, lease: LeaseId, now_ms: int) -> Delivery | None:
        """The same attempt with the same expiry, so that a worker that crashes on a record and reconnects runs out of attempts.

        None if the lease has ended. The block is stored again although it has not changed: the commit shows that this node still
        coordinates the group.
        """
        _, offset, attempts = lease
        at = offset & BLOCK_MASK
        if not self.holds(worker.owner, *lease) or part.block_of(offset).until_ms[at] <= now_ms:
            return None
        self._queue.check_here(part)
        record = self._queue.read(part, offset)
        block = part.block_of(offset)
        if record is None or (block.flags[at] and self._queue.ends_on_sight(read_envelope(record.headers), now_ms)):
            self._queue.finish(part, (offset,))
            self._passes -= 1
            return None
        self._queue.changed(part, offset >> BLOCK_BITS, block)
        return self._delivery(part, record, attempts, block.error(at), block.until_ms[at])

    def _delivery(
        self, part: QueuePartition, record: Record, attempts: int, last_error: str | None, until_ms: int
    ) -> Delivery:
        offset, timestamp, key, value, headers = record
        return Delivery(
            self._queue.topic, part.index, offset, attempts, key, value, headers, timestamp, last_error, until_ms
        )

    def _share(self, now_ms: int) -> dict[Taker, list[Delivery]]:
        takers = self._queue.takers
        given: dict[Taker, list[Delivery]] = {}
        idle = 0
        room = self._context.settings.in_flight_max - self._queue.leased
        while idle < len(takers) and self._queue.active and room > 0 and self._passes > 0:
            taker = takers[0]
            takers.rotate(-1)
            wanted = taker.room()
            if wanted <= 0:
                idle += 1
                continue
            most = PORTION if len(takers) > 1 else PORTION_ALONE
            out: list[Delivery] = []
            self._fill(_Take(taker, min(wanted, most, room), now_ms, now_ms + taker.lease_ms, out))
            if not out:
                # Another taker may still get something.
                idle += 1
                continue
            idle = 0
            room -= len(out)
            taker.leased(out)
            if isinstance(taker, Poll):
                taker.served = True
            given.setdefault(taker, []).extend(out)
        return given

    def _fill(self, take: _Take) -> None:
        for part in list(self._queue.active):
            left = False
            try:
                self._queue.check_here(part)
                left = self._take_ready(part, take)
                if len(take.out) < take.limit:
                    self._take_fresh(part, take)
                part.damage = None
            except PenstockError as error:
                self._stall(part, error)
            # To the end while there may be more: the other partitions come first.
            del self._queue.active[part]
            is_enough = len(take.out) >= take.limit or self._passes <= 0
            if left or is_enough:
                self._queue.active[part] = None
            if is_enough:
                break
        if take.out:
            self._context.meters.leases.add(self._queue.labels, len(take.out))

    def _stall(self, part: QueuePartition, error: PenstockError) -> None:
        is_here = error.reason not in NOT_HERE
        if is_here and part.damage != error.text:
            part.damage = error.text
            self._context.report(
                f"group {self._queue.group} cannot continue with {part.topic}/{part.index}: {error.text}"
            )
        if part.retry is None:
            part.retry = Timer(partial(self._queue.wake_partition, part))
        # The disk may recover, or a person may repair it, without notice.
        self._context.deadlines.set(
            part.retry, self._context.clock.monotonic_ms() + (_RETRY_MS if is_here else _COPY_RETRY_MS)
        )

    def _take_ready(self, part: QueuePartition, take: _Take) -> bool:
        """Deliver records again; returns whether some are left for another taker."""
        taker, limit, now_ms, until_ms, out = take
        before = len(out)
        left = False
        while len(out) < limit and self._passes > 0 and (offset := part.next_ready()) >= 0:
            block = part.blocks[offset >> BLOCK_BITS]
            at = offset & BLOCK_MASK
            last_error = block.error(at)
            if last_error == ACK_TIMEOUT and block.owner(at) == taker.owner and self._others_wait(taker):
                left = True
                break
            record = self._queue.read(part, offset)
            if record is None or (block.flags[at] and self._queue.ends_on_sight(read_envelope(record.headers), now_ms)):
                self._queue.finish(part, (offset,))
                self._passes -= 1
                continue
            attempts = block.lease(at, taker.owner, until_ms)
            part.leased += 1
            self._queue.changed(part, offset >> BLOCK_BITS, block)
            out.append(self._delivery(part, record, attempts, last_error, until_ms))
        again = sum(delivery.attempts > 1 for delivery in out[before:])
        if again:
            self._context.meters.redeliveries.add(self._queue.labels, again)
        return left

    def _others_wait(self, taker: Taker) -> bool:
        return any(other.owner != taker.owner and other.room() > 0 for other in self._queue.takers)

    def _take_fresh(self, part: QueuePartition, take: _Take) -> None:
        self._queue.follow_start(part)
        source = self._queue.source(part)
        end = source.high_watermark
        while len(take.out) < take.limit and self._passes > 0 and (offset := part.next_untouched(end)) < end:
            piece = self._context.cache.piece(source, offset)
            if piece is None:
                break
            self._take_piece(part, piece, offset, take)

    def _take_piece(self, part: QueuePartition, piece: Piece, offset: int, take: _Take) -> None:
        """Lease the untouched records of a piece from ``offset`` on; plain records, which are nearly all, in runs."""
        taker, limit, _, until_ms, out = take
        topic, index, blocks = self._queue.topic, part.index, part.blocks
        run = expected = offset
        records = piece.records
        for at in range(piece.index(offset), len(records)):
            record = records[at]
            place, timestamp, key, value, headers = record
            block = blocks.get(place >> BLOCK_BITS)
            is_touched = block is not None and block.states[place & BLOCK_MASK] != UNTOUCHED
            is_special = bool(headers) and has_policy(headers)
            if place != expected or is_touched or is_special:
                self._lease_run(part, run, expected, taker.owner, until_ms)
                if place != expected:
                    # Compaction left a gap without records.
                    self._queue.finish_gap(part, expected, place)
                run = place + 1
                if is_special and not is_touched:
                    self._take_special(part, record, take)
                elif not is_touched:
                    run = place
                    out.append(Delivery(topic, index, place, 1, key, value, headers, timestamp, None, until_ms))
            else:
                out.append(Delivery(topic, index, place, 1, key, value, headers, timestamp, None, until_ms))
            expected = place + 1
            if len(out) >= limit or self._passes <= 0:
                self._lease_run(part, run, expected, taker.owner, until_ms)
                break
        else:
            self._lease_run(part, run, expected, taker.owner, until_ms)
            if expected < piece.next_offset:
                self._queue.finish_gap(part, expected, piece.next_offset)
                expected = piece.next_offset
        part.cursor = max(part.cursor, expected)

    def _lease_run(self, part: QueuePartition, start: int, stop: int, owner: str, until_ms: int) -> None:
        part.leased += stop - start
        while start < stop:
            block = part.block_of(start)
            end = min(stop, (start | BLOCK_MASK) + 1)
            block.lease_fresh(start & BLOCK_MASK, ((end - 1) & BLOCK_MASK) + 1, owner, until_ms)
            self._queue.changed(part, start >> BLOCK_BITS, block)
            start = end

    def _take_special(self, part: QueuePartition, record: Record, take: _Take) -> None:
        """Lease a record with an envelope."""
        offset = record.offset
        envelope = read_envelope(record.headers)
        if self._queue.ends_on_sight(envelope, take.now_ms):
            self._queue.finish(part, (offset,))
            self._passes -= 1
            return
        block = part.block_of(offset)
        at = offset & BLOCK_MASK
        block.forget(at)
        if envelope.not_before_ms is not None and envelope.not_before_ms > take.now_ms:
            block.flags[at] = HAS_POLICY | DELAYED
            block.wait(at, before_deadline(envelope.not_before_ms, envelope))
            self._passes -= 1
        else:
            block.flags[at] = HAS_POLICY
            block.lease(at, take.taker.owner, take.until_ms)
            part.leased += 1
            take.out.append(self._delivery(part, record, 1, None, take.until_ms))
        self._queue.changed(part, offset >> BLOCK_BITS, block)

    def _leave(self, taker: Taker, deliveries: list[Delivery], reason: Reason | None) -> None:
        """The leases are written, or failed: deliver the records."""
        if reason is not None:
            taker.refuse(deliveries)
        elif taker.attached:
            taker.deliver(deliveries)
        elif self._queue.alive:
            with_streams = {lease for worker in self._streams_of(taker.owner) for lease in worker.leases()}
            for delivery in deliveries:
                lease = delivery.partition, delivery.offset, delivery.attempts
                if lease not in with_streams and self.holds(taker.owner, *lease):
                    self._queue.failures.give_back(self._queue.partitions[delivery.partition], delivery.offset)

    def _leave_again(self, worker: Worker, deliveries: list[Delivery], reason: Reason | None) -> None:
        """The same for records that their owner had already, which stay leased if the stream has ended."""
        if reason is not None:
            worker.refuse(deliveries)
        elif worker.attached:
            worker.deliver(deliveries)
