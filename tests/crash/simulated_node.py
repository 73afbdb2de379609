"""A whole node on a simulated disk: random work, troubles, restarts, and what must hold after each of them.

The broker, its logs and its groups are the real ones. Disk, clock, entropy and flusher belong to the simulation, and one seed
decides everything, so a history that fails fails again the same way. What always holds:

- a record that was acknowledged is there, once, at its offset, until retention or a deletion takes it;
- a record that is there was sent; offsets only grow; the start of a partition never goes back;
- a batch that is sent again is known, whether it was acknowledged or not;
- a compacted partition ends with the last acknowledged value of every key, or a later one that was sent;
- an offset that a group committed is there, or a later one that was sent;
- a topic that was made is there, and one that was deleted is gone with its files.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from penstock.core.broker import Broker
from penstock.core.partitions.delete_records import delete_records
from penstock.core.partitions.partition import Partition
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.log.cleaning import CompactionTask
from penstock.metadata.memory import MemoryStore
from penstock.operations.groups import CommitOffsets, OffsetToCommit
from penstock.records.batch import read_header
from penstock.records.builder import build_batch
from penstock.records.records import Record, read_records
from penstock.types import GroupId, PartitionKey
from tests.crash.simulated_world import SeededEntropy, StepFlusher, TroubledDisk
from tests.support.worlds import DATA_DIR, ManualClock, broker_on

PARTITIONS = 2
BYTES_MAX = 1_000_000
FIRST_TOPICS = ("d1", "c1", "cd1", "n1")
"""By the first letters: d is bounded by size, c compacted, cd compacted and bounded by age, n keeps everything."""
MORE_TOPICS = ("d1", "c1", "cd1", "n1", "d2", "c2")

STEPS = {
    "produce": 40,
    "flush": 14,
    "write": 4,
    "commit": 8,
    "retire": 5,
    "compact": 4,
    "install": 5,
    "checkpoint": 3,
    "delete_records": 2,
    "delete_topic": 1,
    "create_topic": 1,
    "send_again": 4,
    "move_clock": 4,
    "alter": 1,
}
"""What a node does, and how often."""


class BrokenPromise(AssertionError):
    """The node did what it must never do."""


def hold(condition: bool, *what: object) -> None:
    """Fail the history unless the condition holds."""
    if not condition:
        raise BrokenPromise(*what)


@dataclass(slots=True)
class Sent:
    """The last batch of the idempotent producer of a partition."""

    producer_id: int
    sequence: int
    batch: bytes
    record: Record
    number: int
    offset: int | None = None
    """Where it is, once it was acknowledged."""


@dataclass(slots=True)
class Promises:
    """What was sent to a partition, and what its clients were told."""

    acknowledged: dict[int, bytes | None] = field(default_factory=dict)
    sent: set[bytes | None] = field(default_factory=set)
    values: dict[bytes, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    """Of a compacted partition: for each key the values that it may have, each with the number of its sending."""
    last: Sent | None = None
    start_min: int = 0
    """The start must not be before this: these records were deleted."""
    start_max: int = 0
    """Acknowledged records may be missing below this: retention or a deletion wanted them."""

    def may_have(self, key: bytes, number: int, value: bytes | None) -> None:
        """One more value that the key may have from now on."""
        self.values.setdefault(key, [(0, None)]).append((number, value))


@dataclass(slots=True)
class Committed:
    """What a group committed for a partition: the greatest offset acknowledged, and the greatest sent."""

    acknowledged: int = -1
    sent: int = -1


def is_compacted(name: str) -> bool:
    """Whether a topic of this name is compacted."""
    return name.startswith("c")


def configs_of(name: str) -> dict[str, str]:
    """The settings of a topic: small segments, so that much happens."""
    configs = {"segment.bytes": "2000", "index.interval.bytes": "300"}
    if is_compacted(name):
        configs |= {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "500",
        }
    if name.startswith("cd"):
        configs |= {"cleanup.policy": "compact,delete", "retention.ms": "100000"}
    elif name.startswith("d"):
        configs["retention.bytes"] = "6000"
    return configs


def read_all(partition: Partition) -> list[Record]:
    """All records that a reader gets."""
    found: list[Record] = []
    offset = partition.log.start_offset
    while offset < partition.high_watermark:
        piece = partition.read(offset, BYTES_MAX)
        view = memoryview(piece.data)
        position = 0
        while position < len(view):
            size = read_header(view, position).size_bytes
            records = read_records(view[position : position + size], BYTES_MAX)
            found += [record for record in records if record.offset >= offset]
            position += size
        hold(piece.next_offset > offset, "a read went nowhere", partition.topic.name, partition.index, offset)
        offset = piece.next_offset
    return found


def last_values(records: list[Record]) -> dict[bytes, bytes | None]:
    """What is left of records when only the last of each key counts."""
    return {bytes(record.key or b""): record.value for record in records}


class SimulatedNode:
    """A node, the clients that use it, and what these were promised. All on the caller's thread and one event loop."""

    def __init__(self, seed: int, make_flusher: Callable[[], StepFlusher] = StepFlusher) -> None:
        self.random = Random(seed)
        self.disk = TroubledDisk(seed)
        self.disk.make_dirs(DATA_DIR)
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.entropy = SeededEntropy(seed)
        self.reports: list[str] = []
        self.done: list[str] = []
        """The steps so far."""
        self.seen: Counter[str] = Counter()
        """What the history went through: a simulation in which nothing happens proves nothing."""
        self.topics: dict[str, UUID] = {}
        self.deleted: list[UUID] = []
        self.promises: defaultdict[tuple[UUID, int], Promises] = defaultdict(Promises)
        self.committed: defaultdict[tuple[GroupId, PartitionKey, UUID], Committed] = defaultdict(Committed)
        self._make_flusher = make_flusher
        self._number = 0
        self._producer_ids = 0
        self._compactions: list[tuple[Partition, CompactionTask]] = []
        self.flusher: StepFlusher
        self.broker: Broker

    async def boot(self, stop_after: int | None = None) -> None:
        """Start on what the disk holds; with ``stop_after`` die after so many calls."""
        self.disk.stop_at = None if stop_after is None else self.disk.calls + stop_after
        self.flusher = self._make_flusher()
        self._compactions = []
        self.broker = broker_on(
            self.disk,
            self.store,
            clock=self.clock,
            entropy=self.entropy,
            flusher=self.flusher,
            reports=self.reports,
            open_segments_max=6,
            offsets_topic_partitions=2,
        )
        await self.broker.start()
        if stop_after is not None:
            for name in self.topics:
                self.broker.partition(name, 0)
        self.flusher.sync()

    def close(self) -> None:
        """An orderly stop."""
        self.broker.close()
        self.flusher.sync()
        self.broker.logs.close()

    def promises_of(self, partition: Partition) -> Promises:
        """What the clients of a partition were promised."""
        return self.promises[partition.topic.topic_id, partition.index]

    async def create(self, name: str) -> None:
        """Make a topic."""
        topic = await self.broker.topics.create(NewTopic(name, PARTITIONS, configs=configs_of(name)))
        self.topics[name] = topic.topic_id

    # Steps.

    async def step(self) -> None:
        """Do one thing."""
        name = self.random.choice(sorted(self.topics))
        (kind,) = self.random.choices(list(STEPS), list(STEPS.values()))
        self.done.append(f"{kind} {name}")
        if kind in {"delete_topic", "create_topic", "alter"}:
            await getattr(self, f"_{kind}")(name)
        else:
            getattr(self, f"_{kind}")(name)

    def _some_partition(self, name: str) -> Partition:
        return self.broker.partition(name, self.random.randrange(PARTITIONS))

    def _produce(self, name: str) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self._send(self._some_partition(name))

    def _send(self, partition: Partition) -> None:
        promises, now_ms = self.promises_of(partition), self.clock.now_ms()
        compacted = is_compacted(partition.topic.name)
        self._number += 1
        number = self._number
        key = b"k%d" % self.random.randrange(6) if compacted else b"x"
        value: bytes | None = b"%d-" % number + b"v" * self.random.randrange(200)
        if compacted and self.random.random() < 0.25:
            value = None
        record = Record(0, now_ms, key, value)
        sent: Sent | None = None
        if not compacted or self.random.random() < 0.5:
            last = promises.last
            if last is not None and last.offset is None:
                self.send_again(partition)
                if last.offset is None:
                    return
            if last is None:
                self._producer_ids += 1
            producer_id, sequence = (self._producer_ids, 0) if last is None else (last.producer_id, last.sequence + 1)
            batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            sent = promises.last = Sent(producer_id, sequence, bytes(batch), record, number)
        else:
            batch = build_batch([record])
        if compacted:
            promises.may_have(key, number, value)
        else:
            promises.sent.add(value)
        try:
            offset = partition.append(bytearray(batch), now_ms)
        except PenstockError as error:
            hold(error.reason is Reason.STORAGE_ERROR, "a good batch was refused", partition.topic.name, error)
            return
        self._wait(partition, offset, record, number, sent)

    def _wait(self, partition: Partition, offset: int, record: Record, number: int, sent: Sent | None) -> None:
        """Take note once the record is acknowledged."""
        promises, key = self.promises_of(partition), bytes(record.key or b"")
        compacted = is_compacted(partition.topic.name)

        def done(reason: Reason | None) -> None:
            if reason is not None:
                return
            self.seen["acknowledged"] += 1
            if compacted:
                promises.values[key] = [found for found in promises.values[key] if found[0] >= number]
            else:
                promises.acknowledged[offset] = record.value
            if sent is not None:
                sent.offset = offset

        partition.when_committed(partition.log.next_offset, done)

    def _send_again(self, name: str) -> None:
        self.send_again(self._some_partition(name))

    def send_again(self, partition: Partition) -> None:
        """Send the last batch again, as a client does that got no answer or lost it."""
        promises = self.promises_of(partition)
        sent, where = promises.last, (partition.topic.name, partition.index)
        if sent is None:
            return
        before = partition.log.next_offset
        try:
            offset = partition.append(bytearray(sent.batch), self.clock.now_ms())
        except PenstockError as error:
            hold(error.reason is Reason.STORAGE_ERROR, "a batch sent again was refused", *where, sent.sequence, error)
            return
        if sent.offset is not None:
            self.seen["duplicates"] += 1
            found = (sent.offset, before)
            hold((offset, partition.log.next_offset) == found, "a duplicate was appended", *where, offset, found)
            return
        if offset >= before and is_compacted(partition.topic.name):
            self._number += 1
            sent.number = self._number
            promises.may_have(bytes(sent.record.key or b""), sent.number, sent.record.value)
        self._wait(partition, offset, sent.record, sent.number, sent)
        self.flusher.sync()

    def _flush(self, name: str) -> None:
        self.flusher.sync()

    def _write(self, name: str) -> None:
        self.flusher.write()

    def _commit(self, name: str) -> None:
        group = GroupId(f"g{self.random.randrange(3)}")
        key = PartitionKey(name, self.random.randrange(PARTITIONS))
        self._number += 1
        offset, committed = self._number, self.committed[group, key, self.topics[name]]
        committed.sent = offset

        def done(result: dict[PartitionKey, Reason | None]) -> None:
            if result[key] is None:
                self.seen["committed"] += 1
                committed.acknowledged = max(committed.acknowledged, offset)

        wanted = OffsetToCommit(key, offset, metadata=f"m{offset}")
        self.broker.groups.commit_offsets(CommitOffsets(group, (wanted,)), done)

    def _retire(self, name: str) -> None:
        for partition in list(self.broker.open_partitions()):
            try:
                for task in partition.log.retire(self.clock.now_ms(), partition.high_watermark):
                    self.seen["retired"] += 1
                    task.run()
            except PenstockError:
                pass
            finally:
                promises = self.promises_of(partition)
                promises.start_max = max(promises.start_max, partition.log.start_offset)

    def _compact(self, name: str) -> None:
        if self._compactions:
            return
        for partition in list(self.broker.open_partitions()):
            task = partition.log.compaction_task(self.clock.now_ms(), partition.high_watermark)
            if task is None:
                continue
            try:
                task.run()
            except (OSError, PenstockError):
                continue
            self._compactions.append((partition, task))
            if self.random.random() < 0.5:
                return

    def _install(self, name: str) -> None:
        for partition, task in self._compactions:
            if partition.gone:
                continue
            try:
                partition.log.install(task)
                self.seen["compacted"] += 1
            except PenstockError:
                pass
        self._compactions = []

    def _checkpoint(self, name: str) -> None:
        self.flusher.sync()
        try:
            self.broker.logs.prepare_checkpoint().run()
            self.seen["checkpoints"] += 1
        except OSError:
            pass

    def _delete_records(self, name: str) -> None:
        partition = self._some_partition(name)
        start, end = partition.log.start_offset, partition.high_watermark
        if is_compacted(name) or end <= start:
            return
        offset = self.random.randrange(start, end + 1)
        promises = self.promises_of(partition)
        promises.start_max = max(promises.start_max, offset)
        try:
            delete_records(partition, offset)
        except PenstockError as error:
            hold(error.reason is Reason.STORAGE_ERROR, "records could not be deleted", name, error)
            return
        promises.start_min = max(promises.start_min, offset)

    async def _delete_topic(self, name: str) -> None:
        if len(self.topics) > 3:
            self.deleted.append(self.topics.pop(name))
            await self.broker.topics.delete(name)

    async def _create_topic(self, name: str) -> None:
        wanted = self.random.choice(MORE_TOPICS)
        if wanted not in self.topics:
            await self.create(wanted)

    async def _alter(self, name: str) -> None:
        size = self.random.choice([1000, 2000, 4000])
        await self.broker.topics.alter(name, [ConfigChange("segment.bytes", ChangeKind.SET, str(size))])

    def _move_clock(self, name: str) -> None:
        self.clock.advance(self.random.choice([1, 100, 600, 5000]))

    # Checks.

    def check(self) -> None:
        """Hold the node to all that it promised."""
        have = {topic.name: topic.topic_id for topic in self.broker.topics if not topic.internal}
        hold(have == self.topics, "the topics are not those that were made", have, self.topics)
        for topic_id in self.deleted:
            hold(not self.disk.exists(f"{DATA_DIR}/topics/{topic_id.hex}"), "files of a deleted topic", topic_id)
        for name in self.topics:
            for index in range(PARTITIONS):
                self._check_partition(self.broker.partition(name, index))
        for (group, key, topic_id), committed in self.committed.items():
            if self.topics.get(key.topic) == topic_id and committed.acknowledged >= 0:
                found = self.broker.groups.fetch_offsets(group, [key]).get(key)
                holds = found is not None and committed.acknowledged <= found.offset <= committed.sent
                hold(holds, "a committed offset is lost", group, key, committed, found)

    def _check_partition(self, partition: Partition) -> None:
        promises, where = self.promises_of(partition), (partition.topic.name, partition.index)
        start = partition.log.start_offset
        hold(start >= promises.start_min, "the start went back", *where, start, promises.start_min)
        records = read_all(partition)
        offsets = [record.offset for record in records]
        hold(offsets == sorted(set(offsets)), "offsets do not grow", *where, offsets)
        if is_compacted(partition.topic.name):
            found = last_values(records)
            for key, values in promises.values.items():
                possible = {value for _, value in values}
                if partition.topic.name.startswith("cd"):
                    possible.add(None)
                hold(found.get(key) in possible, "a key has a wrong value", *where, key, found.get(key), values)
        else:
            self._check_records(where, promises, start, records)
        self.send_again(partition)

    def _check_records(self, where: tuple[str, int], promises: Promises, start: int, records: list[Record]) -> None:
        by_offset = {record.offset: record.value for record in records}
        for offset, value in promises.acknowledged.items():
            if offset < start:
                hold(offset < promises.start_max, "a record is lost below the start", *where, offset, start)
            else:
                hold(by_offset.get(offset) == value, "a record is lost", *where, offset, by_offset.get(offset), value)
        values = [record.value for record in records]
        hold(len(values) == len(set(values)), "a record is there twice", *where)
        hold(set(values) <= promises.sent, "a record was never sent", *where)

    def settle(self) -> None:
        """After a restart and its check: what was not acknowledged was kept or lost, and that does not change any more."""
        for name in filter(is_compacted, self.topics):
            for index in range(PARTITIONS):
                partition = self.broker.partition(name, index)
                promises, found = self.promises_of(partition), last_values(read_all(partition))
                last = promises.last
                self._number += 1
                for key in promises.values:
                    promises.values[key] = [(self._number, found.get(key))]
                    if last is not None and last.offset is None and last.record.key == key:
                        promises.values[key].append((last.number, last.record.value))
