"""A node with queues on a simulated disk, whose turns end, whose clock moves and whose process dies when a test says so."""

import asyncio
from collections.abc import Callable, Coroutine

from msgspec.structs import replace

from penstock.core.queues.workers import Worker
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.operations.groups import OffsetToCommit
from penstock.operations.queues import Ack, Consume, Delivery, Lease, Nack
from penstock.ports import Flushable
from penstock.records.builder import build_batch
from penstock.records.records import Headers, Record
from penstock.testing.disk import SimulatedDisk
from penstock.types import GroupId, PartitionKey, TopicName
from tests.support.settings import AT_ONCE
from tests.support.worlds import DATA_DIR, CountingEntropy, ManualClock, broker_on

TOPIC = TopicName("orders")
GROUP = GroupId("workers")


class TurnFlusher:
    """Ends turns when it is told to: gathers, writes, syncs."""

    def __init__(self) -> None:
        self._targets: dict[Flushable, None] = {}
        self._unsynced: dict[Flushable, None] = {}
        self._actions: list[Callable[[], None]] = []
        self.syncs = True

    def unhurried(self, target: Flushable) -> None:
        """This one syncs when it is told to, whoever waits."""

    def dirty(self, target: Flushable) -> None:
        self._targets[target] = None

    def gather(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    @property
    def is_idle(self) -> bool:
        return not self._targets and not self._actions

    def gather_all(self) -> None:
        actions, self._actions = self._actions, []
        for action in actions:
            action()

    def write(self, chosen: slice = slice(None)) -> None:
        """End the turn up to the write; perhaps the process dies when only some of the logs are written."""
        self.gather_all()
        targets, self._targets = list(self._targets), {}
        for target in targets[chosen]:
            try:
                target.write_pending()
            except PenstockError:
                continue
            self._unsynced[target] = None

    def sync(self) -> None:
        targets, self._unsynced = list(self._unsynced), {}
        for target in targets:
            task = target.begin_sync()
            if task is None:
                continue
            error: OSError | None = None
            try:
                task.run()
            except OSError as failure:
                error = failure
            target.end_sync(task, error)

    def turn(self) -> None:
        self.write()
        if self.syncs:
            self.sync()


class Answers:
    """Takes the one answer of a call."""

    def __init__(self) -> None:
        self.all: list[Reason | None] = []

    def __call__(self, reason: Reason | None) -> None:
        assert not self.all, "answered twice"
        self.all.append(reason)

    @property
    def waits(self) -> bool:
        return not self.all

    @property
    def reason(self) -> Reason | None:
        assert self.all, "not answered yet"
        return self.all[0]


class Owner:
    """A worker's end: what it got."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[Delivery] = []
        self.gone: list[Reason] = []
        self.worker: Worker | None = None
        self.releases = False

    def take(self) -> list[Delivery]:
        got = list(self.got)
        self.got.clear()
        return got

    @property
    def offsets(self) -> list[int]:
        return [delivery.offset for delivery in self.got]


class World:
    """Make it, then ``boot``."""

    def __init__(self, disk: SimulatedDisk | None = None, **settings: int) -> None:
        self.clock = ManualClock()
        self.disk = disk or SimulatedDisk(0)
        self.disk.make_dirs(DATA_DIR)
        self.store = MemoryStore()
        self.entropy = CountingEntropy()
        self.settings = replace(AT_ONCE, **settings)
        self.reports: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.background: list[Coroutine[object, None, object]] = []

    def boot(self) -> "World":
        self.flusher = TurnFlusher()
        self.broker = broker_on(
            self.disk,
            self.store,
            clock=self.clock,
            entropy=self.entropy,
            flusher=self.flusher,
            reports=self.reports,
            queues=self.settings,
        )
        self.broker.background = self.background.append
        self.run(self.broker.start())
        self.queues = self.broker.queues
        return self

    def run(self, coroutine: Coroutine[object, None, object]) -> object:
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        for coroutine in self.background:
            coroutine.close()
        self.loop.close()

    def create(self, topic: str = TOPIC, partitions: int = 1, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.run(self.broker.topics.create(NewTopic(topic, partitions, configs=named)))

    # -- time

    def turn(self) -> None:
        """End the turn of the loop, and those that it brings about."""
        for _ in range(50):
            self.flusher.turn()
            while self.background:
                self.run(self.background.pop(0))
            if self.flusher.is_idle:
                return
        raise AssertionError("the turns do not come to an end")

    def tick(self) -> None:
        self.queues.tick(self.clock.monotonic_ms())
        self.turn()

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick whenever one is due."""
        end = self.clock.monotonic_ms() + ms
        for _ in range(500):
            due = self.queues.next_deadline_ms()
            if due > end:
                break
            self.clock.advance(max(0, due - self.clock.monotonic_ms()))
            self.tick()
            if due == end and self.queues.next_deadline_ms() <= end:
                self.clock.advance(0)
        else:
            raise AssertionError("ticks do not come to an end")
        self.clock.advance(end - self.clock.monotonic_ms())

    # -- the end of a process

    def kill(self) -> "World":
        """What was written stays."""
        self.disk.end_process()
        self._forget_background()
        return self.boot()

    def lose_power(self, *, torn: bool = False) -> "World":
        """What was not synced is gone, or, torn, some of it."""
        self.disk.lose_power(torn=torn)
        self._forget_background()
        return self.boot()

    def _forget_background(self) -> None:
        for coroutine in self.background:
            coroutine.close()
        self.background = []

    # -- work

    def produce(
        self, count: int = 1, *, topic: str = TOPIC, partition: int = 0, headers: Headers = (), value: bytes = b"work"
    ) -> int:
        """So many committed records; returns the offset of the first."""
        target = self.broker.partition(topic, partition)
        now_ms = self.clock.now_ms()
        base = target.append(build_batch([Record(n, now_ms, b"key", value, headers) for n in range(count)]), now_ms)
        self.turn()
        return base

    def attach(
        self,
        name: str = "a",
        *,
        topic: str = TOPIC,
        group: str = GROUP,
        lease_ms: int = 1000,
        credit: int = 100,
        in_flight_max: int = 1_000_000,
        release_on_detach: bool = False,
        turn: bool = True,
    ) -> Owner:
        owner = Owner(name)
        consume = Consume(credit, topic, group, name, lease_ms, in_flight_max, release_on_detach)
        owner.worker = self.queues.attach(consume, owner.got.extend, owner.gone.append)
        if turn:
            self.turn()
        return owner

    def lease(
        self,
        name: str = "a",
        *,
        topic: str = TOPIC,
        group: str = GROUP,
        max_records: int = 1,
        lease_ms: int = 1000,
        wait_ms: int = 0,
    ) -> list[Delivery]:
        """What a call gets at once."""
        answers: list[list[Delivery]] = []
        self.queues.lease(Lease(topic, group, name, max_records, lease_ms, wait_ms), answers.append)
        self.turn()
        (answer,) = answers
        return answer

    def ack(
        self, name: str, *offsets: int, topic: str = TOPIC, group: str = GROUP, partition: int = 0, turn: bool = True
    ) -> Answers:
        answers = Answers()
        self.queues.ack(Ack(topic, group, name, partition, list(offsets)), answers)
        if turn:
            self.turn()
        return answers

    def nack(
        self,
        name: str,
        offset: int,
        reason: str = "broken",
        *,
        topic: str = TOPIC,
        group: str = GROUP,
        partition: int = 0,
        turn: bool = True,
    ) -> Answers:
        answers = Answers()
        self.queues.nack(Nack(topic, group, name, partition, [offset], reason), answers)
        if turn:
            self.turn()
        return answers

    def commit(self, offset: int, *, topic: str = TOPIC, group: str = GROUP, partition: int = 0) -> None:
        """As a client of another API does it."""
        answers = Answers()
        item = OffsetToCommit(PartitionKey(TopicName(topic), partition), offset)
        self.broker.groups.commit_offset(GroupId(group), item, answers)
        self.turn()
        assert answers.reason is None

    def committed(self, *, topic: str = TOPIC, group: str = GROUP, partition: int = 0) -> int | None:
        key = PartitionKey(TopicName(topic), partition)
        found = self.broker.groups.fetch_offsets(GroupId(group), [key]).get(key)
        return None if found is None else found.offset

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        """All that a reader of the topic gets."""
        from penstock.core.partitions.reading import read_from

        source = self.broker.partition(topic, partition)
        return read_from(source, source.log.start_offset, 100_000, 1 << 30)

    def floor(self, *, topic: str = TOPIC, group: str = GROUP, partition: int = 0) -> int:
        return self.queues.status(topic, group).partitions[partition].floor


def header(record: Record | Delivery, name: str) -> str | None:
    """The text of a header."""
    for found, value in record.headers:
        if found == name and value is not None:
            return value.decode()
    return None
