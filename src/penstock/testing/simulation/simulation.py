"""One run: a cluster, clients, trouble, healing, and the checks. The same seed is the same run."""

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from penstock.core.partition import Partition
from penstock.core.replica import Replica
from penstock.core.topic_records import PARTITIONS_PREFIX, decode_partition
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.metadata.port import Event
from penstock.testing.simulation.clients import Producer, Reader, values_of
from penstock.testing.simulation.committer import Committer
from penstock.testing.simulation.faults import Faults
from penstock.testing.simulation.history import History, Place
from penstock.testing.simulation.loop import Process, SimulatedLoop, Stuck
from penstock.testing.simulation.machine import ClusterShape, Machine
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.store import SimulatedEtcd
from penstock.testing.simulation.wire_client import Bootstrap, Lost
from penstock.testing.simulation.workers import QueueHistory, Worker
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_topics_generated import CreateTopicsRequest, CreateTopicsRequestTopic

QUEUE: Final = Place("q", 0)
LETTERS: Final = Place("dlq.q", 0)
_SAMPLE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.1
_BEGIN_SECONDS_MAX: Final = 60.0
_HEAL_SECONDS_MAX: Final = 45.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    shape: ClusterShape = field(default_factory=ClusterShape)
    trouble_seconds: float = 15.0
    partitions_max: int = 2
    producers: int = 2
    """Of the first partition; the others have one."""
    paces_seconds: tuple[float, ...] = (0.05, 0.2, 0.5)
    """How long a producer waits between two batches: the seed picks one."""
    queue_share: float = 0.4
    """Of the runs: in these a queue is worked, too."""
    faults: Callable[["Simulation", Random], Faults] = Faults


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    seed: int
    violation: str | None
    digest: str
    seconds: float
    """Of simulated time."""
    counts: dict[str, int]
    last: list[str]
    """The last events."""

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: holds ({self.seconds:.0f} s, {self.counts.get('acked', 0)} batches acknowledged)"
        events = "\n".join(self.last)
        return f"{events}\nseed {self.seed}: {self.violation}\nrepeat it with: make simulate SEEDS={self.seed}"


class Simulation:
    """The world of one run."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed: Final = seed
        self.plan: Final = plan
        self.shape: Final = plan.shape
        self.random: Final = Random(f"penstock {seed}")
        self.loop: Final = SimulatedLoop(Random(self.random.random()))
        self.network: Final = Network(self.loop)
        self.etcd: Final = SimulatedEtcd(self.loop, self.network)
        self.history: Final = History(self.loop.time)
        self.history.on_violation = self.loop.stop
        self.loop.on_error = self._failed
        self.machines: Final = [
            Machine(number, self.shape, self.loop, self.etcd, self.history, Random(self.random.random()))
            for number in range(1, self.shape.nodes + 1)
        ]
        self._epochs: Final[dict[str, int]] = {}
        self.etcd.store.subscribe(PARTITIONS_PREFIX, self._agreed_on)
        self.clients: Final[list[Process]] = []
        self.producers: Final[list[Producer]] = []
        self.committers: Final[list[Committer]] = []
        self.places: Final[list[Place]] = []
        self.queue: QueueHistory | None = None

    @property
    def client_hosts(self) -> list[str]:
        """Where clients are."""
        return [client.host for client in self.clients]

    # A run.

    def run(self) -> Outcome:
        """Do it all."""
        # The collector would end what dead processes left, at a moment that no seed decides about.
        was_on = gc.isenabled()
        gc.disable()
        asyncio.set_event_loop(None)
        try:
            with _errors_to(self.history):
                self._run()
        finally:
            self._bury()
            if was_on:
                gc.enable()
        history = self.history
        last = list(history.last)
        if history.violation is not None:
            last += self._agreed()
        return Outcome(self.seed, history.violation, history.digest, self.loop.time(), dict(history.counts), last)

    def _agreed_on(self, events: list[Event]) -> None:
        """The epoch of a partition's leaders never goes back."""
        for event in events:
            if event.entry is not None:
                epoch = decode_partition(event.key, event.entry.value).leader_epoch
                if epoch < self._epochs.get(event.key, epoch):
                    self.history.violate(f"the leader epoch of {event.key} went back to {epoch}")
                self._epochs[event.key] = epoch

    def _agreed(self) -> list[str]:
        """What the metadata store has, and what each node makes of it."""
        kept = ("nodes/", "controller", "p/", "drains/")
        lines = [f"agreed: {line}" for line in self.etcd.entries() if line.startswith(kept)]
        for machine in self.machines:
            cluster = machine.running.broker.cluster if machine.running is not None else None
            if cluster is not None:
                nodes = cluster.nodes
                lines.append(f"{machine.process}: nodes {nodes.live()}, controller {nodes.controller}")
        for machine, place, replica in self.replicas():
            ends = f"{replica.log.start_offset}..{replica.high_watermark}..{replica.log.next_offset}"
            lines.append(f"{machine.process}: {type(replica).__name__} {place} epoch {replica.leader_epoch} {ends}")
        return lines

    def _run(self) -> None:
        main = self.loop.create_task(self._live())
        main.add_done_callback(lambda _: self.loop.stop())
        try:
            self.loop.run_forever()
        except Stuck as stuck:
            self.history.violate(str(stuck))
        if main.done() and not main.cancelled() and main.exception() is not None:
            raise main.exception()  # type: ignore[misc]
        main.cancel()

    def _bury(self) -> None:
        self.loop.on_error = lambda _: None
        # What is closed here in the middle of its work has something to say that nobody wants to hear.
        logging.disable(logging.CRITICAL)
        self.network.bury()
        for process in [*self.clients, *(each for machine in self.machines for each in machine.processes)]:
            process.bury()
        self.loop.close()
        logging.disable(logging.NOTSET)

    async def _live(self) -> None:
        for machine in self.machines:
            machine.start()
        await self._create_topic("t", self.random.randint(1, self.plan.partitions_max))
        for place in self.places:
            self._start_clients(place)
        if self.random.random() < self.plan.queue_share:
            await self._create_topic(QUEUE.topic, 1)
            self._start_workers()
        sampling = self.loop.create_task(self._sample())
        faults = self.plan.faults(self, Random(self.random.random()))
        await faults.run(self.plan.trouble_seconds)
        faults.heal()
        for producer in self.producers:
            producer.finish()
        for committer in self.committers:
            committer.finish()
        await self._settle()
        sampling.cancel()
        if self.history.violation is None:
            self._check()

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "".join(traceback.format_exception(error)[-3:]) if isinstance(error, BaseException) else ""
        self.history.violate(f"{context.get('message')}: {error!r} {where}".strip())

    # Clients.

    def client(self, name: str) -> Process:
        """A process on a host of its own."""
        process = Process(name, f"10.0.1.{len(self.clients) + 1}")
        self.clients.append(process)
        return process

    def bootstrap(self) -> Bootstrap:
        """Where clients begin."""
        return Bootstrap([machine.kafka for machine in self.machines], Random(self.random.random()))

    async def _create_topic(self, name: str, partitions: int) -> None:
        self.places.extend(Place(name, index) for index in range(partitions))
        task = self.loop.spawn(self.client("admin"), self._create(name, partitions))
        try:
            async with asyncio.timeout(_BEGIN_SECONDS_MAX):
                await task
        except TimeoutError:
            self.history.violate("no topic could be created")

    async def _create(self, name: str, partitions: int) -> None:
        bootstrap = self.bootstrap()
        wanted = CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=-1)
        while True:
            try:
                link = await bootstrap.any_node()
                try:
                    answer = await link.call(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest([wanted], 5_000))
                finally:
                    link.close()
                self.history.note("create", name, partitions, answer.topics[0].error_code)
                if answer.topics[0].error_code in (0, 36):
                    return
            except Lost as lost:
                self.history.note("create lost", lost)
            await asyncio.sleep(_LOOK_SECONDS)

    def _start_clients(self, place: Place) -> None:
        for number in range(1, 1 + (self.plan.producers if place.partition == 0 else 1)):
            self._start_producer(f"p{number}", place, self.random.choice(self.plan.paces_seconds))
        group = f"g{place.partition}"
        committer = Committer(group, place, self.bootstrap(), self.history, Random(self.random.random()))
        self.committers.append(committer)
        self.loop.spawn(self.client(group), committer.run(self.random.choice((0.2, 0.5))))
        self.loop.spawn(self.client("reader"), Reader("reader", place, self.bootstrap(), self.history).run())

    def _start_producer(self, name: str, place: Place, pace_seconds: float) -> None:
        producer = Producer(name, place, self.bootstrap(), self.history, Random(self.random.random()))
        self.producers.append(producer)
        self.loop.spawn(self.client(name), producer.run(pace_seconds))

    def _start_workers(self) -> None:
        queue = self.queue = QueueHistory(self.history, QUEUE, "workers")
        self._start_producer("p1", QUEUE, 0.4)
        for name in ("w1", "w2"):
            process = self.client(name)
            worker = Worker(name, process, queue, self, Random(self.random.random()))
            self.loop.spawn(process, worker.run())

    # Looking.

    def replicas(self) -> Iterator[tuple[Machine, Place, Replica]]:
        """Everything that nodes lead and follow now."""
        for machine in self.machines:
            running = machine.running
            if running is not None and running.broker.cluster is not None:
                side = running.broker.cluster.replicas
                for replica in (*side.leading(), *side.following()):
                    yield machine, Place(replica.topic.name, replica.index), replica

    async def _sample(self) -> None:
        below: dict[Partition, tuple[int, int]] = {}
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            below, before = {}, below
            for machine, place, replica in self.replicas():
                self.history.sees_high_watermark(machine.process, place, replica.high_watermark)
                if (
                    isinstance(replica, Partition)
                    and replica.in_sync_count < self.shape.min_in_sync
                    # Of what clients send: coordinators may write, and wait.
                    and place in self.places
                    and machine.running
                ):
                    epoch = machine.running.broker.topics.partition_epoch(replica.topic, replica.index)
                    now = below[replica] = (epoch, replica.log.next_offset)
                    # As the leader knew all the time since the last look.
                    then = before.get(replica, now)
                    if then[0] == epoch and now[1] > then[1]:
                        self.history.violate(f"{place} grew on {machine.process} while too few replicas were in sync")

    async def _settle(self) -> None:
        """Wait until all is as it should be."""
        end = self.loop.time() + _HEAL_SECONDS_MAX
        while (why := self._unsettled()) is not None:
            if self.loop.time() > end:
                self.history.violate(f"it does not heal: {why}")
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _unsettled(self) -> str | None:
        for machine in self.machines:
            if machine.running is None:
                machine.start()
                return f"node {machine.number} does not serve"
        for producer in self.producers:
            if not producer.is_done:
                return f"{producer.name} still has something to send to {producer.place}"
        for committer in self.committers:
            if not committer.is_done:
                return f"{committer.group} is not told what it committed"
        if (why := self._unworked()) is not None:
            return why
        by_place: dict[Place, list[Replica]] = {}
        for _, place, replica in self.replicas():
            by_place.setdefault(place, []).append(replica)
        for place in self.places:
            if place not in by_place:
                return f"{place} is nowhere"
        for place, replicas in by_place.items():
            if len(replicas) != self.shape.replication_factor:
                return f"{place} is on {len(replicas)} nodes"
            ends = {(replica.log.next_offset, replica.high_watermark) for replica in replicas}
            if len(ends) != 1 or any(end != high_watermark for end, high_watermark in ends):
                return f"{place} ends and is committed at {sorted(ends)}"
        return self._not_in_sync()

    def _unworked(self) -> str | None:
        if self.queue is None:
            return None
        for machine in self.machines:
            broker = machine.running.broker if machine.running is not None else None
            with suppress(PenstockError):
                if broker is not None and broker.queues.get(QUEUE.topic, self.queue.group) is not None:
                    status = broker.queues.status(QUEUE.topic, self.queue.group)
                    return f"the queue stands at {status.partitions}" if status.lag or status.in_flight else None
        return "nobody works the queue"

    def _not_in_sync(self) -> str | None:
        running = self.machines[0].running
        assert running is not None
        topics = running.broker.topics
        for topic in topics:
            for index, record in enumerate(topics.partitions(topic)):
                if len(record.isr) != self.shape.replication_factor:
                    return f"in sync for {topic.name}/{index} are {record.in_sync}, led by {record.leader}"
        return None

    def _check(self) -> None:
        by_place: dict[Place, bytes] = {}
        for machine, place, replica in self.replicas():
            data = (
                bytes(replica.log.read(0, 64 * MIB, replica.log.next_offset).data) if replica.log.next_offset else b""
            )
            known = by_place.setdefault(place, data)
            if known != data:
                self.history.violate(f"node {machine.number} has other bytes of {place} than another replica")
                return
        found = {place: dict(values_of(data)) for place, data in by_place.items()}
        self.history.check({place: found.get(place, {}) for place in self.places})
        if self.queue is not None:
            self.queue.check(found.get(QUEUE, {}), found.get(LETTERS, {}))


class _ErrorsToHistory(logging.Handler):
    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._history.violate(f"an error was logged: {text}")


@contextmanager
def _errors_to(history: History) -> Iterator[None]:
    """What the broker's code itself takes for a mistake is one."""
    handler, logger = _ErrorsToHistory(history), logging.getLogger("penstock")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def simulate(seed: int, plan: Plan | None = None) -> Outcome:
    """Run one seed."""
    return Simulation(seed, plan or Plan()).run()
