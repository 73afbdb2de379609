"""One queue: its partitions, how their records are read, and how changes are stored.

Each change of a record marks its block, which is written at the end of the turn. A caller that must wait for that waits at the state log
or at the floors.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

from penstock.core.partitions.replica import Replica
from penstock.core.queues.block import BLOCK_BITS, BLOCK_MASK, HAS_POLICY, Block
from penstock.core.queues.context import Context
from penstock.core.queues.dispatch import Dispatcher
from penstock.core.queues.envelope import NO_ENVELOPE, Envelope, read_envelope
from penstock.core.queues.failures import Failures
from penstock.core.queues.idempotent import FinishedKeys, key_of
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.records import NOT_HERE
from penstock.core.queues.stored import QueueId, StateKind, idempotency_record, key_prefix
from penstock.core.queues.workers import Taker
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.records.records import Record
from penstock.types import GroupId, PartitionKey, TopicName


class Queue:
    """A topic consumed by a group. ``alive`` until the topic or the group is deleted, or another node coordinates the group."""

    def __init__(self, context: Context, topic: Topic, group: GroupId) -> None:
        self.context: Final = context
        self.topic: Final[TopicName] = topic.name
        self.group: Final = group
        self.queue_id: Final = QueueId(group, topic.topic_id)
        self.labels: Final = (str(topic.name), str(group))
        self.state_partition: Final = context.state_log.partition_for(group)
        self.alive = True
        self.paused_until_ms = 0
        """Monotonic time until which nothing is delivered, because leases could not be stored."""
        self.keys = FinishedKeys()
        self.partitions: list[QueuePartition] = []
        self.takers: deque[Taker] = deque()
        # Partitions that may have records to deliver; the first is next.
        self.active: dict[QueuePartition, None] = {}
        self._key_prefix = key_prefix(StateKind.IDEMPOTENCY, self.queue_id)
        self.failures: Final = Failures(self)
        self.dispatcher: Final = Dispatcher(self)
        self.grow(topic.partition_count)

    # -- partitions

    def grow(self, count: int) -> None:
        """The topic has this number of partitions now."""
        for index, floor in self._committed(range(len(self.partitions), count)).items():
            self.partitions.append(QueuePartition(self.queue_id, self.topic, index, self.state_partition, floor))

    def reset(self) -> None:
        """Forget all state, before it is loaded again."""
        self.keys = FinishedKeys()
        for index, floor in self._committed(range(len(self.partitions))).items():
            part = self.partitions[index]
            part.clear(floor)
            self.active[part] = None
            self.context.look(self, part)

    def _committed(self, indexes: range) -> dict[int, int]:
        """The group's committed offsets in these partitions; 0 without a commit."""
        keys = [PartitionKey(self.topic, index) for index in indexes]
        found = self.context.broker.groups.fetch_offsets(self.group, keys)
        return {key.partition: max(0, found[key].offset) if key in found else 0 for key in keys}

    def open(self) -> None:
        """Open and follow the logs of all partitions."""
        for part in self.partitions:
            if part.source is None:
                try:
                    self.source(part)
                except PenstockError as error:
                    if error.reason not in NOT_HERE:
                        raise
                    # The other partitions are served; the dispatcher tries again.
                    self.active[part] = None

    def close(self) -> None:
        """Stop following them."""
        self.alive = False
        self.dispatcher.close()
        for part in self.partitions:
            part.gone = True
            if part.source is not None:
                part.source.unwatch(part.wake)

    def partition(self, index: int) -> QueuePartition:
        """The partition, or UNKNOWN_TOPIC_OR_PARTITION."""
        if not 0 <= index < len(self.partitions):
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {self.topic} has no partition {index}: it has {len(self.partitions)}",
            )
        return self.partitions[index]

    @property
    def leased(self) -> int:
        """Records in flight."""
        return sum(part.leased for part in self.partitions)

    @property
    def is_at_work(self) -> bool:
        """Whether a taker waits for records, or the queue has state other than the group's offsets."""
        return bool(self.takers) or any(part.blocks for part in self.partitions)

    def source(self, part: QueuePartition) -> Replica:
        """The log of a partition, opened and followed, whichever node leads it. PenstockError while it cannot be read on this node."""
        source = part.source
        if source is None or source.gone:
            source = self._follow(part)
        return source

    def _follow(self, part: QueuePartition) -> Replica:
        source = self.context.broker.observe(self.topic, part.index, part.floor)
        if part.source is not None:
            # The leader has changed: the same records are read from another replica, or from this one in another role.
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
        """COORDINATOR_LOAD_IN_PROGRESS while records that the queue has state of are not copied to this node yet.

        The envelope in a record decides how it is delivered, so nothing is done without the record.
        """
        if not part.needed_end and part.source is not None and not part.source.gone:
            return
        source = self.source(part)
        if source.high_watermark < part.needed_end:
            raise PenstockError(
                Reason.COORDINATOR_LOAD_IN_PROGRESS,
                f"The records of {self.topic}/{part.index} are being copied to the node that coordinates group {self.group}. "
                "Try again in a moment.",
            )
        part.needed_end = 0

    def check_stored(self) -> None:
        """STORAGE_ERROR after a failed append, until the state is loaded again: memory may be ahead of the log."""
        if self.state_partition in self.context.lost:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The state of the queue {self.topic} of group {self.group} could not be stored. Try again in a second; the "
                "broker's log says why.",
            )

    def follow_start(self, part: QueuePartition) -> None:
        """Follow the start of the log: records that retention deleted cannot be delivered."""
        source = self.source(part)
        if source.first_offset > part.floor:
            self.end_moves(part, part.forward(source.first_offset))
            self.drop_finished(part)
        elif source.log.start_offset > part.floor:
            # The group was reset to an offset before the copied records.
            self.context.broker.observe(self.topic, part.index, part.floor)
            self.source(part)

    def is_here(self, part: QueuePartition) -> bool:
        """Whether :meth:`check_here` passes."""
        try:
            self.check_here(part)
        except PenstockError:
            return False
        return True

    # -- takers

    def wake(self) -> None:
        """There may be records to deliver, and room at a taker."""
        if self.takers and self.alive:
            self.context.to_dispatch[self] = None
            self.context.schedule()

    def wake_partition(self, part: QueuePartition) -> None:
        """The log has more records, or a record became ready."""
        self.active[part] = None
        if self.takers:
            self.wake()

    # -- reading

    def read(self, part: QueuePartition, offset: int) -> Record | None:
        """A record; None if it was deleted. PenstockError if it cannot be read."""
        source = self.source(part)
        is_ahead = offset >= source.high_watermark or source.first_offset <= offset < source.log.start_offset
        if is_ahead and self.context.in_cluster:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE, f"{self.topic}/{part.index}@{offset} is not copied to this node yet"
            )
        return self.context.cache.record(source, offset)

    def envelope(self, part: QueuePartition, offset: int, block: Block) -> Envelope | None:
        """The envelope of a touched record; None if the record was deleted."""
        if not block.flags[offset & BLOCK_MASK] & HAS_POLICY:
            return NO_ENVELOPE
        try:
            record = self.read(part, offset)
        except PenstockError:
            # Damaged: treated as a record without an envelope.
            return NO_ENVELOPE
        return None if record is None else read_envelope(record.headers)

    def ends_on_sight(self, envelope: Envelope, now_ms: int) -> bool:
        """Whether a record is finished without delivery: after its deadline, if it was redriven for another group, or as a duplicate."""
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
        """Store a block at the end of this turn, and set its timer."""
        self.context.state_log.mark(part, number)
        if block.due_ms < block.entry_ms:
            self.context.arm(self, part, number, block)

    def finish(self, part: QueuePartition, offsets: Iterable[int]) -> None:
        """Finish records."""
        numbers: set[int] = set()
        for offset in offsets:
            part.finish(offset)
            numbers.add(offset >> BLOCK_BITS)
        if part.advance():
            self.context.floors.moved(part)
        for number in numbers:
            self.context.state_log.mark(part, number)
        # Other records may be in flight now.
        self.wake()

    def finish_gap(self, part: QueuePartition, start: int, stop: int) -> None:
        """Finish offsets without records, which may be many."""
        if start <= part.floor:
            self.end_moves(part, part.forward(stop))
            self.context.floors.moved(part)
        else:
            for number in part.finish_run(start, stop):
                self.context.state_log.mark(part, number)

    def drop_finished(self, part: QueuePartition) -> None:
        """Drop the blocks below the committed offset."""
        for key in part.drop_finished():
            self.context.state_log.remove(self.state_partition, key)

    def end_moves(self, part: QueuePartition, offsets: Iterable[int]) -> None:
        """End the moves of records that were finished in another way."""
        for offset in offsets:
            self.context.state_log.remove(self.state_partition, part.move_key(offset))
            for done in part.move_waiting.pop(offset, ()):
                done(None)

    def remember_key(self, envelope: Envelope) -> bool:
        """Remember the idempotency key of an acked record, so that duplicates are finished without delivery; False without a key."""
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
        """Drop expired idempotency keys."""
        for key in self.keys.expire(now_ms, count_max):
            self.context.state_log.remove(self.state_partition, idempotency_record(self._key_prefix, key, None)[0])

    def forget(self) -> None:
        """Remove the stored state of the queue, except the record that it exists."""
        log, sp = self.context.state_log, self.state_partition
        for part in self.partitions:
            for number in part.blocks:
                log.remove(sp, part.key_of(number))
            for offset in part.moves:
                log.remove(sp, part.move_key(offset))
        for key in self.keys.expire(1 << 62, len(self.keys)):
            log.remove(sp, idempotency_record(self._key_prefix, key, None)[0])
