"""One queue: its partitions, what can be read of their records, and how a change gets stored.

Everything that changes a record marks its block here, so that it is written at the end of the turn; a caller that must not continue
before that waits at the state log or at the floors.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

from penstock.core.coordinators.jobs import AllOf
from penstock.core.coordinators.topic import StoredDone
from penstock.core.groups.requests import PartitionKey
from penstock.core.partitions.replica import Replica
from penstock.core.queues.block import BLOCK_BITS, BLOCK_MASK, HAS_POLICY, Block
from penstock.core.queues.context import Context
from penstock.core.queues.dispatch import Dispatcher
from penstock.core.queues.envelope import NO_ENVELOPE, Envelope, read_envelope
from penstock.core.queues.failures import Failures
from penstock.core.queues.idempotent import FinishedKeys, key_of
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.records import NOT_HERE
from penstock.core.queues.stored import Kind, QueueId, idempotency_record, key_prefix
from penstock.core.queues.workers import Taker
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.records.records import Record
from penstock.types import GroupId, TopicName


class Queue:
    """A topic worked by a group. ``alive`` until its topic or its group is deleted, or another node coordinates the group."""

    def __init__(self, context: Context, topic: Topic, group: GroupId) -> None:
        self.context: Final = context
        self.topic: Final[TopicName] = topic.name
        self.group: Final = group
        self.queue_id: Final = QueueId(group, topic.topic_id)
        self.labels: Final = (str(topic.name), str(group))
        self.state_partition: Final = context.state_log.partition_for(group)
        self.alive = True
        self.paused_until_ms = 0
        """Monotonic: nothing is handed out before, since leases could not be stored a moment ago."""
        self.keys = FinishedKeys()
        self.partitions: list[QueuePartition] = []
        self.takers: deque[Taker] = deque()
        # Partitions that may have something to hand out; the first has its turn.
        self.active: dict[QueuePartition, None] = {}
        self._key_prefix = key_prefix(Kind.IDEMPOTENCY, self.queue_id)
        self.failures: Final = Failures(self)
        self.dispatcher: Final = Dispatcher(self)
        self.grow(topic.partition_count)

    # -- partitions

    def grow(self, count: int) -> None:
        """The topic has so many partitions now."""
        committed = self.context.broker.groups.fetch_offsets(
            self.group, [PartitionKey(self.topic, index) for index in range(len(self.partitions), count)]
        )
        for index in range(len(self.partitions), count):
            found = committed.get(PartitionKey(self.topic, index))
            floor = 0 if found is None else max(0, found.offset)
            self.partitions.append(QueuePartition(self.queue_id, self.topic, index, self.state_partition, floor))

    def reset(self) -> None:
        """Forget everything that the log is about to tell."""
        self.keys = FinishedKeys()
        committed = self.context.broker.groups.fetch_offsets(
            self.group, [PartitionKey(self.topic, part.index) for part in self.partitions]
        )
        for part in self.partitions:
            found = committed.get(PartitionKey(self.topic, part.index))
            part.clear(0 if found is None else max(0, found.offset))
            self.active[part] = None
            self.context.look(self, part)

    def open(self) -> None:
        """Follow the logs of all partitions."""
        for part in self.partitions:
            if part.source is None:
                try:
                    self.source(part)
                except PenstockError as error:
                    if error.reason not in NOT_HERE:
                        raise
                    # The other partitions are served meanwhile; the dispatcher tries again.
                    self.active[part] = None

    def close(self) -> None:
        """Follow them no more."""
        self.alive = False
        self.dispatcher.close()
        for part in self.partitions:
            part.gone = True
            if part.source is not None:
                part.source.unwatch(part.wake)

    def partition(self, index: int) -> QueuePartition:
        """The partition; UNKNOWN_TOPIC_OR_PARTITION when there is none."""
        if not 0 <= index < len(self.partitions):
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {self.topic} has no partition {index}: it has {len(self.partitions)}.",
            )
        return self.partitions[index]

    @property
    def leased(self) -> int:
        """Records in flight."""
        return sum(part.leased for part in self.partitions)

    @property
    def is_at_work(self) -> bool:
        """Whether somebody wants records, or something is known of one that the group's offsets do not say."""
        return bool(self.takers) or any(part.blocks for part in self.partitions)

    def source(self, part: QueuePartition) -> Replica:
        """The log of a partition, opened and followed, on whichever node leads it. PenstockError while nothing of it can be read here."""
        source = part.source
        if source is None or source.gone:
            source = self._follow(part)
        return source

    def _follow(self, part: QueuePartition) -> Replica:
        source = self.context.broker.observe(self.topic, part.index, part.floor)
        if part.source is not None:
            # Its leader has changed: the same records are read from another copy, or the same copy in another role.
            part.source.unwatch(part.wake)
            self.context.cache.forget(part.source)
        part.source = source
        part.wake = partial(self._grew, part)
        source.watch(part.wake)
        if self.context.in_cluster:
            needed_end = part.open_end()
            part.needed_end = needed_end if source.high_watermark < needed_end else 0
        self.follow_start(part)
        self._grew(part)
        return source

    def _grew(self, part: QueuePartition) -> None:
        self.context.look(self, part)
        self.wake_partition(part)

    def check_here(self, part: QueuePartition) -> None:
        """COORDINATOR_LOAD_IN_PROGRESS while records that something is known of are not copied to this node yet.

        What is to become of a record is written in it, so nothing is decided without it.
        """
        if not part.needed_end and part.source is not None and not part.source.gone:
            return
        source = self.source(part)
        if source.high_watermark < part.needed_end:
            raise PenstockError(
                Reason.COORDINATOR_LOAD_IN_PROGRESS,
                f"The records of {self.topic}/{part.index} are being copied to the node that works for group {self.group}. "
                "Try again in a moment.",
            )
        part.needed_end = 0

    def check_stored(self) -> None:
        """STORAGE_ERROR while memory may be ahead of the log, because a change could not be stored: it is about to be loaded again."""
        if self.state_partition in self.context.lost:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The state of the queue {self.topic} of group {self.group} could not be stored. Try again in a second; the "
                "broker's log says why.",
            )

    def follow_start(self, part: QueuePartition) -> None:
        """Retention took records from under the floor: nobody can work them any more."""
        source = self.source(part)
        if source.first_offset > part.floor:
            self.end_moves(part, part.forward(source.first_offset))
            self.drop_finished(part)
        elif source.log.start_offset > part.floor:
            # The group went back behind what was copied for it.
            self.context.broker.observe(self.topic, part.index, part.floor)
            self.source(part)

    def is_here(self, part: QueuePartition) -> bool:
        """Whether :meth:`check_here` has nothing to say."""
        try:
            self.check_here(part)
        except PenstockError:
            return False
        return True

    # -- who wants records

    def wake(self) -> None:
        """There may be something to hand out, and somebody to take it."""
        if self.takers and self.alive:
            self.context.to_dispatch[self] = None
            self.context.schedule()

    def wake_partition(self, part: QueuePartition) -> None:
        """The log has more, or a record became ready."""
        self.active[part] = None
        if self.takers:
            self.wake()

    # -- reading

    def read(self, part: QueuePartition, offset: int) -> Record | None:
        """A record; None when there is none any more. PenstockError when it cannot be read."""
        source = self.source(part)
        is_ahead = offset >= source.high_watermark or source.first_offset <= offset < source.log.start_offset
        if is_ahead and self.context.in_cluster:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE, f"{self.topic}/{part.index}@{offset} is not copied to this node yet"
            )
        return self.context.cache.record(source, offset)

    def envelope(self, part: QueuePartition, offset: int, block: Block) -> Envelope | None:
        """What a touched record says of itself; None when there is no record any more."""
        if not block.flags[offset & BLOCK_MASK] & HAS_POLICY:
            return NO_ENVELOPE
        try:
            record = self.read(part, offset)
        except PenstockError:
            # Damaged: the settings decide, as for a record that says nothing.
            return NO_ENVELOPE
        return None if record is None else read_envelope(record.headers)

    def ends_on_sight(self, envelope: Envelope, now_ms: int) -> bool:
        """Whether a record needs no work: its deadline is over, it came back for another group, or its idempotency key was finished."""
        if envelope.deadline_ms is not None and envelope.deadline_ms <= now_ms:
            self.context.meters.deadline_exceeded.add(self.labels)
            return True
        if envelope.for_group is not None and envelope.for_group != self.group:
            return True
        key = key_of(envelope)
        if key is not None and self.keys.has(key, now_ms):
            self.context.meters.duplicates_skipped.add(self.labels)
            return True
        return False

    # -- changing

    def changed(self, part: QueuePartition, number: int, block: Block) -> None:
        """A block is to be stored, and its timer to be set."""
        self.context.state_log.mark(part, number)
        if block.due_ms < block.entry_ms:
            self.context.arm(self, part, number, block)

    def finish(self, part: QueuePartition, offsets: Iterable[int]) -> None:
        """These records need no more work. It is stored though nobody waits for it."""
        for number in self.mark_finished(part, offsets):
            self.context.state_log.mark(part, number)

    def mark_finished(self, part: QueuePartition, offsets: Iterable[int]) -> set[int]:
        """The same, but the caller stores the blocks that are returned, as far as they are not below the floor."""
        numbers: set[int] = set()
        for offset in offsets:
            part.finish(offset)
            numbers.add(offset >> BLOCK_BITS)
        if part.advance():
            self.context.floors.moved(part)
        # Room within the bound on records in flight.
        self.wake()
        return numbers

    def finish_gap(self, part: QueuePartition, start: int, stop: int) -> None:
        """There are no records at these offsets, which may be many."""
        if start <= part.floor:
            self.end_moves(part, part.forward(stop))
            self.context.floors.moved(part)
        else:
            for number in part.finish_run(start, stop):
                self.context.state_log.mark(part, number)

    def when_finished(
        self, part: QueuePartition, offsets: Iterable[int], numbers: Iterable[int], done: StoredDone
    ) -> None:
        """Store blocks with finished records, and tell ``done`` once it is certain that these are never delivered again.

        What lies below the floor is certain once the floor is committed; a block with nothing else in it is not written.
        """
        answer = AllOf(done)
        highest: dict[int, int] = {}
        lowest = part.floor
        for offset in offsets:
            highest[offset >> BLOCK_BITS] = max(offset, highest.get(offset >> BLOCK_BITS, -1))
            lowest = min(lowest, offset)
        above = [number for number in numbers if highest.get(number, -1) >= part.floor]
        for number in above:
            self.context.state_log.mark(part, number)
        if above:
            self.context.state_log.when_committed(self.state_partition, answer.expect())
        if lowest < part.floor:
            self.context.floors.when_stored(part, answer.expect())
        answer.close()

    def drop_finished(self, part: QueuePartition) -> None:
        """Blocks below what is committed are needed no more."""
        for key in part.drop_finished():
            self.context.state_log.remove(self.state_partition, key)

    def end_moves(self, part: QueuePartition, offsets: Iterable[int]) -> None:
        """Moves of records that are finished some other way."""
        for offset in offsets:
            self.context.state_log.remove(self.state_partition, part.move_key(offset))
            for done in part.move_waiting.pop(offset, ()):
                done(None)

    def remember_key(self, envelope: Envelope) -> bool:
        """A record was acked: others with its idempotency key are finished from now on. Whether there is such a key."""
        key = key_of(envelope)
        if key is None:
            return False
        until_ms = self.context.clock.now_ms() + self.context.settings.idempotency_ms
        gone = self.keys.remember(key, until_ms)
        stored, value = idempotency_record(self._key_prefix, key, until_ms)
        assert value is not None
        self.context.state_log.put(self.state_partition, stored, value)
        if gone is not None:
            self.context.state_log.remove(self.state_partition, idempotency_record(self._key_prefix, gone, None)[0])
        return True

    def expire_keys(self, now_ms: int, count_max: int) -> None:
        """Forget idempotency keys that have had their time."""
        for key in self.keys.expire(now_ms, count_max):
            self.context.state_log.remove(self.state_partition, idempotency_record(self._key_prefix, key, None)[0])

    def forget(self) -> None:
        """Remove everything that is stored of the queue, but for the record that says it is there."""
        log, sp = self.context.state_log, self.state_partition
        for part in self.partitions:
            for number in part.blocks:
                log.remove(sp, part.key_of(number))
            for offset in part.moves:
                log.remove(sp, part.move_key(offset))
        for key in self.keys.expire(1 << 62, len(self.keys)):
            log.remove(sp, idempotency_record(self._key_prefix, key, None)[0])
