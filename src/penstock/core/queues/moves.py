"""Moves of records to another topic, exactly once: to the dead letters, and back (a redrive).

A move has three steps. First its intent is stored, with the end offset of the target, and the record's state becomes "moving". Once that
is committed, a copy is appended to the target, with the id of the move in a header. Once that is committed, the record is finished and
the intent removed, in one batch.

After a crash, or when another node has taken over the queue, the copy may have been appended already. So the leader of the target searches for the
copies from the stored offset on, and appends only those that are missing (``Peers.append_once``): two nodes that do the same move append one copy.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.topic import StoredDone
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.peers import AppendedRecords
from penstock.core.partitions.reading import record_bytes
from penstock.core.queues import envelope as names
from penstock.core.queues.block import BLOCK_BITS, BLOCK_MASK, LEASED, MOVING
from penstock.core.queues.context import Context
from penstock.core.queues.move_records import MoveEntry, moved_headers
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.stored import MoveIntent, MoveKind, move_value
from penstock.core.topics.topics import NewTopic, Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import KIB, MIB, TOPIC_NAME_CHARS_MAX
from penstock.records.batch import Compression
from penstock.records.builder import BatchBuilder
from penstock.records.records import Record
from penstock.types import GroupId, TopicId, TopicName

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

DEAD_LETTER_PREFIX: Final = "dlq."
REDRIVE_GROUP: Final = GroupId("penstock.redrive")
"""The group that finishes dead letters when they are redriven or purged."""
_HEADERS_ROOM_BYTES: Final = 64 * KIB
"""How much larger than the original record a dead letter may be."""
_BATCH_BYTES_MAX: Final = 256 * KIB
_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 10_000
_ENDS_MAX: Final = 10_000
_RECORD_REFUSED: Final = frozenset(
    {Reason.RECORDS_TOO_LARGE, Reason.RECORD_LIST_TOO_LARGE, Reason.INVALID_RECORD, Reason.INVALID_TIMESTAMP}
)
"""Refusals because of a record, not of the state of the target."""
_MOVES_PER_TURN: Final = 500
"""Records appended to one partition per turn: some ten milliseconds of work."""


def dead_letter_topic(topic: str) -> TopicName:
    """The dead-letter topic of a topic; such a topic is its own."""
    if topic.startswith(DEAD_LETTER_PREFIX):
        return TopicName(topic)
    return TopicName((DEAD_LETTER_PREFIX + topic)[:TOPIC_NAME_CHARS_MAX])


@dataclass(slots=True)
class _Target:
    """The moves to one partition of one topic."""

    topic: TopicName
    index: int
    to_append: list[MoveEntry] = field(default_factory=list)
    retry_ms: int = 0
    """Monotonic time of the next attempt."""
    failures: int = 0
    is_asked: bool = False
    """Its leader is appending some of them: the others follow in order after its answer."""
    unsent: set[MoveEntry] = field(default_factory=set)
    """Those whose copies were never sent. If this node leads the target, it need not search for them."""
    single_left: int = 0
    """So many are sent one by one, because one record of a batch was refused, and the others must not wait for it."""


class Mover:
    """The moves of all queues."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._targets: dict[tuple[TopicName, int], _Target] = {}
        self._creating: set[TopicName] = set()
        self._ends: dict[tuple[TopicId, int], int] = {}
        """The known committed ends of targets that other nodes lead."""

    # -- intents

    def dead_letter(self, queue: "Queue", part: QueuePartition, offset: int, attempts: int, reason: str) -> None:
        """Move a record to the dead letters after its last attempt."""
        target = dead_letter_topic(queue.topic)
        if target == queue.topic:
            # It is a dead letter already. A copy after it would fail again and again, and would be redriven too.
            queue.finish(part, (offset,))
            return
        self._begin(queue, part, offset, MoveKind.DEAD_LETTER, target, part.index, attempts, reason)
        self._context.meters.dead_letters.add((str(queue.topic), reason))

    def redrive(
        self,
        queue: "Queue",
        part: QueuePartition,
        offset: int,
        target_topic: str,
        target_partition: int | None,
        done: StoredDone,
    ) -> None:
        """Move a dead letter back; ``done`` is called when it is copied and finished here."""
        index = part.index if target_partition is None else target_partition
        part.move_waiting.setdefault(offset, []).append(done)
        self._begin(queue, part, offset, MoveKind.REDRIVE, TopicName(target_topic), index, 0, "")

    def _begin(
        self,
        queue: "Queue",
        part: QueuePartition,
        offset: int,
        kind: MoveKind,
        target_topic: TopicName,
        target_partition: int,
        attempts: int,
        reason: str,
    ) -> None:
        topic = self._context.broker.topics.get(target_topic)
        if topic is not None:
            target_partition %= topic.partition_count
        move = MoveIntent(
            kind,
            target_topic,
            target_partition,
            self._end_of(target_topic, target_partition),
            attempts,
            self._context.clock.now_ms(),
            reason,
        )
        block = part.block_of(offset)
        if block.states[offset & BLOCK_MASK] == LEASED:
            part.leased -= 1
        block.states[offset & BLOCK_MASK] = MOVING
        part.moves[offset] = move
        log = self._context.state_log
        log.put(queue.state_partition, part.move_key(offset), move_value(move))
        log.mark(part, offset >> BLOCK_BITS)
        log.when_committed(queue.state_partition, partial(self._intended, MoveEntry(queue, part, offset, move)))

    def _end_of(self, topic: TopicName, index: int) -> int:
        broker = self._context.broker
        try:
            # Not the end of the log: unwritten appends may be undone, and then the copy would be before that end.
            # A replica may lag, which only makes the search longer.
            return broker.replica(topic, index).high_watermark
        except PenstockError:
            found = broker.topics.get(topic)
            return 0 if found is None else self._ends.get((found.topic_id, index), 0)

    def _intended(self, entry: MoveEntry, reason: Reason | None) -> None:
        if reason is not None:
            for done in entry.part.move_waiting.pop(entry.offset, ()):
                done(reason)
            return
        if entry.is_current:
            target = self._target(entry)
            target.to_append.append(entry)
            target.unsent.add(entry)
            self._context.schedule()

    def drop_dead(self) -> None:
        """Drop the moves of closed queues, which their new coordinator does."""
        for key, target in list(self._targets.items()):
            target.to_append = [entry for entry in target.to_append if entry.queue.alive]
            target.unsent.intersection_update(target.to_append)
            if not target.to_append and not target.is_asked:
                del self._targets[key]

    def resume(self, queue: "Queue", part: QueuePartition) -> None:
        """The state was loaded: search the copies of its moves."""
        for offset, move in part.moves.items():
            entry = MoveEntry(queue, part, offset, move)
            self._target(entry).to_append.append(entry)
        if part.moves:
            self._context.schedule()

    def _target(self, entry: MoveEntry) -> _Target:
        key = entry.move.target_topic, entry.move.target_partition
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = _Target(*key)
        return target

    def _kept(self, target: _Target) -> _Target:
        """The current object of a target: the old one was dropped if it had nothing to do during a wait."""
        return self._targets.setdefault((target.topic, target.index), target)

    # -- moving

    def next_ms(self) -> int | None:
        """Monotonic time of the next attempt, if there are moves to do."""
        waiting = [target.retry_ms for target in self._targets.values() if target.to_append and not target.is_asked]
        return min(waiting, default=None)

    def flush(self) -> None:
        """Do what can be done now; called once per turn."""
        now_ms = self._context.clock.monotonic_ms()
        for key, target in list(self._targets.items()):
            if target.retry_ms > now_ms or target.is_asked:
                continue
            if not target.to_append:
                del self._targets[key]
                continue
            try:
                self._work(target)
            except PenstockError as error:
                self._put_off(target, error)

    def _work(self, target: _Target) -> None:
        broker = self._context.broker
        topic = broker.topics.get(target.topic)
        if topic is None:
            self._without_topic(target)
            return
        self._append_lacking(topic, target)

    def _without_topic(self, target: _Target) -> None:
        """Create a missing dead-letter topic. Records that were to be redriven to a deleted topic stay open."""
        entries = [entry for entry in target.to_append if entry.is_current]
        target.to_append = [entry for entry in entries if entry.move.kind is MoveKind.DEAD_LETTER]
        for entry in entries:
            if entry.move.kind is MoveKind.REDRIVE:
                self._give_up(entry)
        if target.to_append:
            self._create(target, target.to_append[0])

    def _give_up(self, entry: MoveEntry) -> None:
        queue, part, offset, _ = entry
        del part.moves[offset]
        queue.failures.make_ready(part, offset, part.block_of(offset), None)
        self._context.state_log.remove(queue.state_partition, part.move_key(offset))
        for done in part.move_waiting.pop(offset, ()):
            done(Reason.UNKNOWN_TOPIC_OR_PARTITION)

    def _create(self, target: _Target, entry: MoveEntry) -> None:
        """Create the topic in the background; the next attempt finds it, or tries again."""
        name = target.topic
        self._put_off(target, None)
        if name in self._creating:
            return
        self._creating.add(name)
        origin = self._context.broker.topics.get(entry.queue.topic)
        count = max(len(entry.queue.partitions), target.index + 1)
        size = (origin.config.max_message_bytes if origin is not None else MIB) + _HEADERS_ROOM_BYTES
        # Dead letters wait for a person, so only a person removes them.
        configs = {"max.message.bytes": str(size), "retention.ms": "-1", "retention.bytes": "-1"}
        topics = self._context.broker.topics
        # A failed record must not wait until a drained node is replaced.
        factor = topics.placer.factor(topics.settings.replication_factor)
        self._context.broker.background(self._make(NewTopic(name, count, factor, configs=configs)))

    async def _make(self, new: NewTopic) -> None:
        name = TopicName(new.name)
        try:
            await self._context.broker.topics.create(new)
        except PenstockError as error:
            if error.reason is not Reason.TOPIC_ALREADY_EXISTS:
                for target in self._targets.values():
                    if target.topic == name:
                        self._put_off(target, error)
                return
        finally:
            self._creating.discard(name)
        for target in self._targets.values():
            if target.topic == name:
                target.retry_ms = 0
        self._context.schedule()

    def _build(self, topic: Topic, entries: list[MoveEntry]) -> tuple[bytearray | None, list[MoveEntry], int]:
        """One batch of the first records, the entries in it, and how many entries it settles: the records of some may be deleted."""
        now_ms = self._context.clock.now_ms()
        builder = BatchBuilder()
        size_max = min(_BATCH_BYTES_MAX, topic.config.max_message_bytes)
        taken = 0
        inside: list[MoveEntry] = []
        for entry in entries:
            try:
                record = self._read(entry)
            except PenstockError:
                if not taken:
                    raise
                # The records before it must not wait.
                break
            if record is None:
                # Retention deleted it before it was moved.
                self._finish([entry])
                taken += 1
                continue
            moved = record._replace(headers=moved_headers(entry, record))
            if builder.count and builder.size_bytes + record_bytes(moved) > size_max:
                break
            builder.add(now_ms, moved.key, moved.value, moved.headers)
            inside.append(entry)
            taken += 1
            if builder.size_bytes >= size_max:
                break
        if not builder.count:
            return None, inside, taken
        # A record that was sent compressed may be too large uncompressed.
        is_large = builder.size_bytes > topic.config.max_message_bytes
        return builder.build(compression=Compression.ZSTD if is_large else Compression.NONE), inside, taken

    @staticmethod
    def _read(entry: MoveEntry) -> Record | None:
        return entry.queue.read(entry.part, entry.offset)

    def _append_lacking(self, topic: Topic, target: _Target) -> None:
        """Have the target's leader append the missing copies, one batch at a time."""
        entries = target.to_append = [entry for entry in target.to_append if entry.is_current]
        stuck: list[MoveEntry] = []
        error: PenstockError | None = None
        while entries and len(stuck) < _MOVES_PER_TURN:
            try:
                batch, inside, taken = self._build(topic, entries[: 1 if target.single_left else _MOVES_PER_TURN])
            except PenstockError as refused:
                # The others must not wait for one that cannot be read.
                error = refused
                stuck.append(entries.pop(0))
                continue
            entries = entries[taken:]
            if batch is not None:
                target.is_asked = True
                target.to_append = [*stuck, *entries]
                self._send(topic, target, batch, inside)
                return
        target.to_append = [*stuck, *entries]
        if error is not None:
            raise error

    def _send(self, topic: Topic, target: _Target, batch: bytearray, entries: list[MoveEntry]) -> None:
        peers, index = self._context.broker.peers, target.index % topic.partition_count
        done = partial(self._answered, target, (topic.topic_id, index), entries)
        is_new = target.unsent.issuperset(entries)
        target.unsent.difference_update(entries)
        here = self._led(topic, index) if is_new else None
        if here is None:
            noted = [entry.move.target_offset for entry in entries]
            peers.append_once(topic, index, batch, names.MOVE_ID, noted, done)
            return
        try:
            offset = here.append(batch, self._context.clock.now_ms(), is_sound=True)
        except PenstockError as error:
            done(error)
            return
        found = AppendedRecords(list(range(offset, offset + len(entries))), offset)
        here.when_committed(offset + len(entries), lambda why: done(found if why is None else PenstockError(why)))

    def _led(self, topic: Topic, index: int) -> Partition | None:
        """The target, if this node leads it and nothing waits for an earlier leader."""
        broker = self._context.broker
        if broker.peers.holds(topic, index):
            return None
        try:
            return broker.partition(topic.name, index)
        except PenstockError:
            return None

    def _answered(
        self,
        target: _Target,
        place: tuple[TopicId, int],
        entries: list[MoveEntry],
        found: AppendedRecords | PenstockError,
    ) -> None:
        """The leader has all of them, or failed."""
        target.is_asked = False
        current = [entry for entry in entries if entry.is_current]
        if isinstance(found, PenstockError):
            if current:
                target = self._kept(target)
                is_alone = len(entries) == 1 and found.reason in _RECORD_REFUSED
                target.to_append = [*target.to_append, *current] if is_alone else [*current, *target.to_append]
                if is_alone:
                    target.single_left = max(target.single_left - 1, 0)
                elif found.reason in _RECORD_REFUSED:
                    target.single_left = len(target.to_append)
                if not target.single_left:
                    self._put_off(target, found)
                self._context.schedule()
            return
        target.failures = 0
        target.single_left = max(target.single_left - 1, 0)
        if len(self._ends) >= _ENDS_MAX:
            self._ends.clear()
        self._ends[place] = max(*found.offsets, self._ends.get(place, 0) - 1) + 1
        self._finish(current)
        self._context.schedule()

    def _finish(self, entries: Iterable[MoveEntry]) -> None:
        log = self._context.state_log
        for queue, part, offset, move in entries:
            part.moves.pop(offset, None)
            queue.finish(part, (offset,))
            # Also if it is below the floor: without the intent, nothing else shows that it is finished.
            log.mark(part, offset >> BLOCK_BITS)
            log.remove(queue.state_partition, part.move_key(offset))
            if move.kind is MoveKind.REDRIVE:
                self._context.meters.redriven.add((str(move.target_topic),))
            for done in part.move_waiting.pop(offset, ()):
                log.when_committed(queue.state_partition, done)

    def _put_off(self, target: _Target, error: PenstockError | None) -> None:
        if error is not None:
            if not target.failures:
                self._context.report(
                    f"records could not be moved to {target.topic}/{target.index}: {error.text}; retrying"
                )
            target.failures += 1
        wait_ms = min(_RETRY_MS_MIN << min(target.failures, 10), _RETRY_MS_MAX)
        target.retry_ms = self._context.clock.monotonic_ms() + wait_ms
