"""One run: a cluster, clients, faults, recovery, and the checks. The same seed is the same run."""

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from penstock.core.partitions.partition import Partition
from penstock.core.partitions.replica import Replica
from penstock.core.topics.records import PARTITIONS_PREFIX, decode_partition
from penstock.core.topics.topics import Topic
from penstock.metadata.port import Event
from penstock.testing.simulation.careless import CarelessProducer
from penstock.testing.simulation.clients import SimulatedProducer, SimulatedReader
from penstock.testing.simulation.committer import Committer
from penstock.testing.simulation.faults import Faults
from penstock.testing.simulation.history import History, TopicPartition, label
from penstock.testing.simulation.loop import Process, SimulatedLoop, Stuck
from penstock.testing.simulation.machine import ClusterShape, Machine
from penstock.testing.simulation.mortal import MortalTopic
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.operators import Operator
from penstock.testing.simulation.settling import QUEUE, Convergence
from penstock.testing.simulation.store import SimulatedEtcd
from penstock.testing.simulation.wire_client import Bootstrap, Lost
from penstock.testing.simulation.workers import QueueHistory, SimulatedWorker
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_topics_generated import CreateTopicsRequest, CreateTopicsRequestTopic
from penstock.wire.kafka.primitives import UUID_ZERO

_SAMPLE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.1
_BEGIN_SECONDS_MAX: Final = 60.0
_HEAL_SECONDS_MAX: Final = 45.0


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """The settings of a run."""

    shape: ClusterShape = field(default_factory=ClusterShape)
    trouble_seconds: float = 15.0
    partitions_max: int = 2
    producers: int = 2
    """Of the first partition; the others have one."""
    paces_seconds: tuple[float, ...] = (0.05, 0.2, 0.5)
    """How long a producer waits between two batches: the seed picks one."""
    queue_share: float = 0.4
    """Share of the runs that have a queue with workers."""
    spare_share: float = 0.35
    """Share of the runs with one node more than replicas, so that partitions can move."""
    careless_share: float = 0.3
    """Share of the runs with a producer that does not wait for followers."""
    near_share: float = 0.4
    """Share of the runs with a reader from followers."""
    mortal_share: float = 0.35
    """Share of the runs with a topic that is created and deleted again and again."""
    faults: Callable[["Simulation", Random], Faults] = Faults


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a run."""

    seed: int
    violation: str | None
    digest: str
    seconds: float
    """Simulated time."""
    counts: dict[str, int]
    last: list[str]
    """The last events."""

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: holds ({self.seconds:.0f} s, {self.counts.get('acked', 0)} batches acknowledged)"
        events = "\n".join(self.last)
        return f"{events}\nseed {self.seed}: {self.violation}\nrepeat it with: make simulate SEEDS={self.seed}"


class Simulation:
    """The cluster, clients and environment of one run."""

    def __init__(self, seed: int, plan: SimulationPlan) -> None:
        self.seed: Final = seed
        self.plan: Final = plan
        self.random: Final = Random(f"penstock {seed}")
        spare = self.random.random() < plan.spare_share
        self.shape: Final = replace(plan.shape, nodes=plan.shape.nodes + spare)
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
        self.producers: Final[list[SimulatedProducer]] = []
        self.committers: Final[list[Committer]] = []
        self.careless: Final[list[CarelessProducer]] = []
        self.places: Final[list[TopicPartition]] = []
        """Partitions with producers, of topics that are never deleted."""
        self.queue: QueueHistory | None = None
        self.operator: Final = Operator(self, Random(self.random.random()))
        self.mortal: MortalTopic | None = None
        self.is_ending = False
        """Whether the faults are over, and nothing new begins."""

    @property
    def client_hosts(self) -> list[str]:
        """The hosts of the clients."""
        return [client.host for client in self.clients]

    # A run.

    def run(self) -> SimulationResult:
        """Run it."""
        # The garbage collector would close what killed processes left, at a time that does not depend on the seed.
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
        return SimulationResult(
            self.seed, history.violation, history.digest, self.loop.time(), dict(history.counts), last
        )

    def _agreed_on(self, events: list[Event]) -> None:
        """Check that the leader epoch of a partition never decreases."""
        for event in events:
            if event.entry is not None:
                epoch = decode_partition(event.key, event.entry.value).leader_epoch
                if epoch < self._epochs.get(event.key, epoch):
                    self.history.violate(f"the leader epoch of {event.key} went back to {epoch}")
                self._epochs[event.key] = epoch

    def _agreed(self) -> list[str]:
        """The contents of the metadata store, and the state of each node."""
        kept = ("nodes/", "controller", "p/", "drains/")
        lines = [f"agreed: {line}" for line in self.etcd.entries() if line.startswith(kept)]
        for machine in self.machines:
            if machine.running is not None:
                nodes = machine.running.broker.cluster.nodes
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
        # Closing unfinished work logs errors that do not matter.
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
        if self.random.random() < self.plan.careless_share:
            self._start_careless(self.random.choice(self.places))
        if self.random.random() < self.plan.near_share:
            place, rack = self.random.choice(self.places), self.random.choice(self.machines).rack
            reader = SimulatedReader("near", place, self.bootstrap(), self.history, rack)
            self.loop.spawn(self.client("near"), reader.run())
        if self.random.random() < self.plan.mortal_share:
            self.mortal = MortalTopic(self, Random(self.random.random()))
        sampling = self.loop.create_task(self._sample())
        faults = self.plan.faults(self, Random(self.random.random()))
        await faults.run(self.plan.trouble_seconds)
        faults.heal()
        self.is_ending = True
        for client in (*self.producers, *self.committers, *self.careless):
            client.finish()
        if self.mortal is not None:
            self.mortal.retire_doomed()
        await self._settle()
        sampling.cancel()

    def _failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "".join(traceback.format_exception(error)[-3:]) if isinstance(error, BaseException) else ""
        self.history.violate(f"{context.get('message')}: {error!r} {where}".strip())

    # Clients.

    def client(self, name: str) -> Process:
        """A process on a new host."""
        process = Process(name, f"10.0.1.{len(self.clients) + 1}")
        self.clients.append(process)
        return process

    def bootstrap(self, topic_id: bytes = UUID_ZERO) -> Bootstrap:
        """What a client uses to find leaders."""
        return Bootstrap([machine.kafka for machine in self.machines], Random(self.random.random()), topic_id)

    async def _create_topic(self, name: str, partitions: int) -> None:
        self.places.extend(TopicPartition(name, index) for index in range(partitions))
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
                answer = await bootstrap.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest([wanted], 5_000))
                self.history.note("create", name, partitions, answer.topics[0].error_code)
                if answer.topics[0].error_code in (0, 36):
                    return
            except Lost as lost:
                self.history.note("create lost", lost)
            await asyncio.sleep(_LOOK_SECONDS)

    def _start_clients(self, place: TopicPartition) -> None:
        for number in range(1, 1 + (self.plan.producers if place.partition == 0 else 1)):
            self._start_producer(f"p{number}", place, self.random.choice(self.plan.paces_seconds))
        group = f"g{place.partition}"
        committer = Committer(group, place, self.bootstrap(), self.history, Random(self.random.random()))
        self.committers.append(committer)
        self.loop.spawn(self.client(group), committer.run(self.random.choice((0.2, 0.5))))
        self.loop.spawn(self.client("reader"), SimulatedReader("reader", place, self.bootstrap(), self.history).run())

    def _start_producer(self, name: str, place: TopicPartition, pace_seconds: float) -> None:
        producer = SimulatedProducer(name, place, self.bootstrap(), self.history, Random(self.random.random()))
        self.producers.append(producer)
        self.loop.spawn(self.client(name), producer.run(pace_seconds))

    def _start_careless(self, place: TopicPartition) -> None:
        acks = self.random.choice((0, 1))
        producer = CarelessProducer(
            f"acks{acks}", place, self.bootstrap(), self.history, Random(self.random.random()), acks
        )
        self.careless.append(producer)
        self.loop.spawn(self.client(producer.name), producer.run(self.random.choice(self.plan.paces_seconds)))

    def grown(self, place: TopicPartition) -> None:
        """A topic has a new partition."""
        self.places.append(place)
        if not self.is_ending:
            self._start_clients(place)

    def _start_workers(self) -> None:
        queue = self.queue = QueueHistory(self.history, QUEUE, "workers")
        self._start_producer("p1", QUEUE, 0.4)
        for name in ("w1", "w2"):
            process = self.client(name)
            worker = SimulatedWorker(name, process, queue, self, Random(self.random.random()))
            self.loop.spawn(process, worker.run())

    # Observing.

    def replicas(self) -> Iterator[tuple[Machine, TopicPartition, Replica]]:
        """All replicas of the running nodes."""
        for machine in self.machines:
            running = machine.running
            if running is not None:
                side = running.broker.cluster.replicas
                for replica in (*side.leading(), *side.following()):
                    topic = replica.topic
                    yield machine, TopicPartition(label(topic.name, topic.topic_id), replica.index), replica

    async def _sample(self) -> None:
        below: dict[Partition, tuple[int, Topic, int]] = {}
        # Coordinators may write while too few replicas are in sync, and wait; so may producers without acks=all.
        uncounted = {producer.place for producer in self.careless}
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            below, before = {}, below
            for machine, place, replica in self.replicas():
                # A replica that was moved away and back starts again, with a new log.
                self.history.sees_high_watermark((machine.process, replica.log), place, replica.high_watermark)
                if (
                    isinstance(replica, Partition)
                    and replica.in_sync.count < replica.in_sync.min_in_sync
                    and place in self.places
                    and place not in uncounted
                    and machine.running
                ):
                    epoch = machine.running.broker.topics.partition_epoch(replica.topic, replica.index)
                    now = below[replica] = (epoch, replica.topic, replica.log.next_offset)
                    # As the leader knew since the last sample.
                    then = before.get(replica, now)
                    if then[0] == epoch and then[1] is now[1] and now[2] > then[2]:
                        self.history.violate(f"{place} grew on {machine.process} while too few replicas were in sync")

    async def _settle(self) -> None:
        """Wait until the cluster has converged, and check it."""
        convergence = Convergence(self)
        end = self.loop.time() + _HEAL_SECONDS_MAX
        while (why := convergence.unsettled()) is not None:
            if self.loop.time() > end:
                self.history.violate(f"it does not heal: {why}")
                return
            await asyncio.sleep(_LOOK_SECONDS)
        if self.history.violation is None:
            convergence.check()


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
    """Report logged errors of the broker as violations."""
    handler, logger = _ErrorsToHistory(history), logging.getLogger("penstock")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def simulate(seed: int, plan: SimulationPlan | None = None) -> SimulationResult:
    """Run one seed."""
    return Simulation(seed, plan or SimulationPlan()).run()
