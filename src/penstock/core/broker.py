"""One node's core, put together: the topics it knows, the partitions it leads, the groups it coordinates.

A gateway holds a :class:`Broker` and nothing below it. Partitions are opened when they are first touched, so a node with ten
thousand of them starts as quickly as one with ten.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Final
from uuid import UUID

from penstock.address import Address
from penstock.core.access import Access
from penstock.core.awaited_groups import AwaitedGroups
from penstock.core.broker_config import RECEIVING_RATE, SENDING_RATE
from penstock.core.cluster import checkpoint
from penstock.core.cluster.image import ClusterImage
from penstock.core.cluster.metering import ReplicaMetering
from penstock.core.cluster.observed import is_observed_id
from penstock.core.cluster.placement import ClusterPlacer
from penstock.core.cluster.reassignment import Reassignments
from penstock.core.cluster.replicas import ReplicaEnvironment, Replicas, TopicIdPartition
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.cluster.strays import Strays
from penstock.core.coordinators.leading import Coordinators
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import InternalTopic
from penstock.core.dead_letters.dead_letters import DeadLetters
from penstock.core.dynamic_configs import DynamicConfigs
from penstock.core.groups.coordinator import GroupCoordinator
from penstock.core.groups.registry import GroupRegistry
from penstock.core.idempotency.idempotency import Idempotency
from penstock.core.operations.door import Door
from penstock.core.partitions.backlog import Backlog
from penstock.core.partitions.led_appends import LedAppends
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.peers import Peers
from penstock.core.partitions.producer_ids import ProducerIds
from penstock.core.partitions.replica import Replica
from penstock.core.partitions.settling import Settling
from penstock.core.partitions.tiering import Tiering
from penstock.core.publish import Publisher
from penstock.core.queues.queues import Queues
from penstock.core.sinks.sinks import Sinks
from penstock.core.topics.names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, SINKS_TOPIC
from penstock.core.topics.topics import NewTopic, Topic, Topics
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, REQUEST_BYTES_MAX
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.retention import RemovalTask
from penstock.metadata.port import MetadataStore
from penstock.meters import Meters
from penstock.ports import Background, Clock, Entropy, Flusher, OffLoop, Report, Timed, Within
from penstock.settings import Settings
from penstock.types import NodeId, TopicId, TopicName

INTERNAL_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": str(100 * MIB),
    # All subscriptions and assignments of a large group are one record.
    "max.message.bytes": str(REQUEST_BYTES_MAX),
}


class Broker:
    """The core of one node. Everything is called on the event loop."""

    def __init__(  # noqa: PLR0915  all parts of a node are put together here
        self,
        settings: Settings,
        *,
        cluster_id: str = "",
        clock: Clock,
        entropy: Entropy,
        store: MetadataStore,
        logs: LogManager,
        flusher: Flusher,
        report: Report,
        rules: Rules = ALL,
    ) -> None:
        """When ``settings.cluster`` has a name, other nodes share the store, and this is one node of that cluster."""
        self.settings: Final = settings
        self.clock: Final = clock
        self.entropy: Final = entropy
        self.logs: Final = logs
        self.meters: Final = Meters()
        self.node_id: Final = NodeId(settings.server.node_id)
        self.cluster_id: Final = cluster_id
        self.advertised: Final = settings.listeners.advertised_kafka
        self.topics: Final = Topics(store, clock, entropy, settings)
        self.configs: Final = DynamicConfigs(store, self.node_id, settings.topic_configs)
        """What was set on brokers and groups while they run."""
        self.topics_version = 0
        """Grows with every change of a topic: what a gateway remembers about topics is good for one version."""
        self.producer_ids: Final = ProducerIds(store)
        self.access = Access()
        """The one place that says who may do what."""
        self.publisher: Final = Publisher(self, flusher)
        self.background: Background = _run_to_the_end
        """Starts what nobody waits for; the runtime makes it a task of the event loop."""
        self.within: Within = _wait_without_limit
        """Bounds a wait; the runtime has the clock for it."""
        self.off_loop: OffLoop = _run_here
        """Where long work is done; the runtime has threads for it."""
        self.http: Address | None = None
        """Where the HTTP listener is, once it listens: Kafka's clients are told."""
        offsets_topic = InternalTopic(self, OFFSETS_TOPIC, report)
        self.groups: Final = GroupCoordinator(settings.groups, offsets_topic, self, clock, entropy, report)
        self.registry: Final = GroupRegistry(store, clock, entropy)
        self.awaited_groups: Final = AwaitedGroups(self, flusher)
        self.tiering: Final = Tiering(self)
        self.on_sooner: Callable[[int], None] = lambda _at_ms: None
        """Set by the runtime; see :meth:`wake_at`."""
        self.groups.deadlines.on_sooner = self.wake_at
        keys_topic = InternalTopic(self, IDEMPOTENCY_TOPIC, report)
        self.idempotency: Final = Idempotency(
            self, keys_topic, flusher, report, window_ms=settings.queues.idempotency_ms
        )
        self.backlog: Final = Backlog(self, settings.queues)
        if self.backlog.is_on:
            self.groups.on_committed.append(self.backlog.committed)
        self.queues: Final = Queues(settings.queues, self, flusher, report)
        sinks_topic = InternalTopic(self, SINKS_TOPIC, report, partitions=1)
        self.sinks: Final = Sinks(self, sinks_topic, flusher, report, settings.sinks)
        self.dead_letters: Final = DeadLetters(self)
        self.settling: Final = Settling(clock, self.wake_at)
        self.timed: Final[list[Timed]] = [
            *(self.groups, self.meters, self.idempotency, self.queues, self.sinks, self.dead_letters, self.settling)
        ]
        """What has deadlines; the runtime drives them."""
        self.door: Final = Door(self)
        self.do: Final = self.door.do
        self.begin: Final = self.door.begin
        self.open: Final = self.door.open
        self.on_trash: Callable[[RemovalTask], None] = RemovalTask.run
        """Gets what removes the files of deleted topics; the runtime has it done off the event loop."""
        self.report: Final = report
        self.flusher: Final = flusher
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, TopicName] = {}
        self._preparing_ids = False
        self.cluster: Final = ClusterSide(self, store, rules) if settings.cluster.name else None
        """What a node of a cluster has beside; None for a broker that is alone."""
        self.peers: Peers | None = None
        """How batches get to partitions that other nodes lead; None for a broker that is alone."""

    @property
    def families(self) -> tuple[Family[Shard], ...]:
        """All replicated state, in the order in which it is loaded."""
        return self.groups.family, self.queues.family, self.idempotency.family, self.sinks.family

    async def start(self) -> None:
        """Read the agreed state, recover what a crash left, and load the groups.

        A node of a cluster leads and loads nothing yet: it does when it is registered, and named by the records.
        """
        await self.configs.load()
        self._configs_changed()
        self.configs.on_changed.append(self._configs_changed)
        await self.topics.load()
        for topic in self.topics:
            self._names[topic.topic_id.bytes] = topic.name
        self._clear_leftovers()
        await self.registry.load(self.topics)
        self.topics.on_created.append(self._created)
        self.topics.on_changed.append(self._changed)
        self.topics.on_deleted.append(self._deleted)
        self.groups.on_deleted.append(self.meters.forget_group)
        if self.cluster is not None:
            await self.cluster.start()
        else:
            await self._start_alone()

    async def _start_alone(self) -> None:
        for topic in (family.topic for family in self.families):
            if topic.name not in self.topics:
                new = NewTopic(topic.name, topic.partition_count, configs=INTERNAL_CONFIGS)
                await self.topics.create(new, internal=True)
        for family in self.families:
            for index in range(family.topic.partition_count):
                family.load(index)
        self.awaited_groups.begin_all()

    def close(self) -> None:
        """Everyone who waits is told that the broker stops."""
        if self.cluster is not None:
            self.cluster.nodes.close()
        self.topics.close()
        self.sinks.close()
        self.dead_letters.close()
        self.queues.close()
        self.groups.close()
        self.idempotency.close()
        for partition in self.open_partitions():
            partition.close(Reason.SHUTTING_DOWN)

    # Topics and partitions.

    def partition(self, name: str, index: int) -> Partition:
        """The partition, opened if need be; ``UNKNOWN_TOPIC_OR_PARTITION`` when there is none."""
        found = self._partitions.get(name)
        if found is not None:
            partition = found.get(index)
            if partition is not None:
                return partition
        topic = self.topics.require(name)
        return self._open(topic, index)

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """The same, by the topic's id; ``UNKNOWN_TOPIC_ID`` when there is none."""
        name = self._names.get(topic_id)
        if name is None:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_ID,
                f"There is no topic with the id {UUID(bytes=topic_id)}. It may have been deleted.",
            )
        return self.partition(name, index)

    def _open(self, topic: Topic, index: int) -> Partition:
        record = self.topics.partition(topic, index)
        if self.cluster is not None:
            # What this node leads it has opened when it was named.
            return self.cluster.replicas.leader(topic, index)
        try:
            log = self.logs.log(topic.topic_id, index, topic.config.log_config())
        except OSError as error:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The log of {topic.name}/{index} cannot be opened: {error}. See the broker's log.",
            ) from error
        self.producer_ids.note(log.producers.highest_id)
        partition = Partition(topic, index, log, self.flusher, self.settings.log.flush, record.leader_epoch)
        self._partitions.setdefault(topic.name, {})[index] = partition
        return partition

    def replica(self, name: str, index: int) -> Replica:
        """The partition as it can be read here, whoever leads it; NOT_LEADER_OR_FOLLOWER when this node has nothing of it."""
        if self.cluster is None:
            return self.partition(name, index)
        topic = self.topics.require(name)
        self.topics.partition(topic, index)
        return self.cluster.replicas.readable(topic, index)

    def observe(self, name: str, index: int, from_offset: int = 0) -> Replica:
        """The same, and where this node has nothing of it, it copies what is committed, from an offset on; the first of it takes a moment.

        Whoever reads on and on asks again now and then: what nobody asked for in a minute is let go (``gone``).
        """
        if self.cluster is None:
            return self.partition(name, index)
        return self.cluster.replicas.observe(self.topics.require(name), index, from_offset)

    def opened(self, name: str, index: int) -> Partition | None:
        """The partition if it was touched since the start; it is not opened."""
        return self._partitions.get(name, {}).get(index)

    def open_partitions(self) -> Iterator[Partition]:
        """The partitions touched since the start."""
        for partitions in list(self._partitions.values()):
            yield from list(partitions.values())

    def untouched_partitions(self) -> Iterator[tuple[TopicName, int]]:
        """The partitions that have records and were not touched since the start."""
        if self.cluster is not None:
            return
        for topic in self.topics:
            opened = self._partitions.get(topic.name, {})
            for index in range(topic.partition_count):
                if index not in opened and self.logs.has_records(topic.topic_id, index):
                    yield topic.name, index

    def wake_at(self, at_ms: int) -> None:
        """Something in ``timed`` is due at this monotonic time, which may be sooner than they said when they were last asked."""
        self.on_sooner(at_ms)

    def open_replicas(self) -> Iterator[Replica]:
        """The same, and the copies of partitions that others lead."""
        yield from self.open_partitions()
        if self.cluster is not None:
            yield from self.cluster.replicas.following()

    def open_logs(self) -> Iterator[Log]:
        """Their logs."""
        for replica in self.open_replicas():
            yield replica.log

    def lead(self, partition: Partition) -> None:
        """This node of a cluster was named to lead a partition."""
        self.topics_version += 1
        self.producer_ids.note(partition.log.producers.highest_id)
        self.prepare_ids()
        self._partitions.setdefault(partition.topic.name, {})[partition.index] = partition

    def prepare_ids(self) -> None:
        """Have producer ids before somebody asks: the metadata store may be away when they do."""
        if not self._preparing_ids and not self.producer_ids.is_prepared:
            self._preparing_ids = True
            self.background(self._have_ids())

    async def _have_ids(self) -> None:
        try:
            await self.producer_ids.prepare()
        except PenstockError as error:
            self.report(f"no producer ids are available yet: {error.text}")
        finally:
            self._preparing_ids = False

    def resign(self, partition: Partition) -> None:
        """Somebody else leads it."""
        led = self._partitions.get(partition.topic.name, {})
        if led.get(partition.index) is partition:
            self.topics_version += 1
            del led[partition.index]

    # What the group rules need to know of topics.

    def exists(self, topic: TopicName, partition: int) -> bool:
        """Whether there is such a partition."""
        found = self.topics.get(topic)
        return found is not None and 0 <= partition < found.partition_count

    def topic_id(self, topic: TopicName) -> TopicId | None:
        """The id of the topic that has the name now."""
        found = self.topics.get(topic)
        return None if found is None else found.topic_id

    def partition_count(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 when there is no such topic."""
        found = self.topics.get(topic)
        return 0 if found is None else found.partition_count

    def _configs_changed(self) -> None:
        self.topics.set_config_defaults(self.configs.topic_defaults())
        if self.cluster is not None:
            self.cluster.replicas.sending.set_rate(self.configs.number(SENDING_RATE))
            self.cluster.replicas.receiving.set_rate(self.configs.number(RECEIVING_RATE))

    # Changes of topics.

    def _created(self, topic: Topic) -> None:
        self.topics_version += 1
        self._names[topic.topic_id.bytes] = topic.name
        if self.cluster is not None:
            self.cluster.replicas.apply_topic(topic)
        self.groups.topic_changed(topic.name)
        self.awaited_groups.begin(topic)

    def _changed(self, topic: Topic) -> None:
        self.topics_version += 1
        if self.cluster is not None:
            self.cluster.replicas.reconfigured(topic)
            self.cluster.replicas.apply_topic(topic)
        for partition in self._partitions.get(topic.name, {}).values():
            partition.reconfigure(topic)
        self.queues.topic_changed(topic)
        self.groups.topic_changed(topic.name)

    def _deleted(self, topic: Topic) -> None:
        self.topics_version += 1
        self._names.pop(topic.topic_id.bytes, None)
        # Before its partitions are closed: workers are told by their queue.
        self.queues.forget_topic(topic.name)
        if self.cluster is not None:
            self.cluster.replicas.forget(topic)
        for partition in self._partitions.pop(topic.name, {}).values():
            partition.close(Reason.UNKNOWN_TOPIC_OR_PARTITION)
        self.groups.forget_topic(topic.name)
        if self.registry.has_any(topic):
            self.background(self.registry.forget_topic(topic))
        self.publisher.forget_topic(topic.name)
        self.idempotency.forget_topic(topic)
        self.backlog.forget_topic(topic)
        self.tiering.forget_topic(topic)
        self.meters.forget_topic(topic.name)
        self.trash(topic.topic_id)

    def _clear_leftovers(self) -> None:
        """Finish the deletions that a crash interrupted: the agreed state says which topics there are.

        A node that was ever started has its offsets topic. Without it the agreed state is lost, and not the topics: then
        nothing may be removed.
        """
        if self.cluster is not None:
            # Others may know more than this node at its start: what it has too much goes later.
            self.cluster.strays.check(self.logs.data_dir)
            self.on_trash(self.logs.leftovers())
            return
        found = self.logs.topic_ids()
        if found and OFFSETS_TOPIC not in self.topics:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"{self.logs.data_dir} contains the records of {len(found)} topics, but its metadata is empty. Restore metadata.sqlite from a backup, or use another --data-dir.",
            )
        self.on_trash(self.logs.leftovers())
        for topic_id in found:
            if self.topics.get_by_id(topic_id) is None:
                self.report(f"topic {topic_id} is deleted: removing its files")
                self.trash(topic_id)

    def trash(self, topic_id: UUID) -> None:
        """The topic is deleted: its files go."""
        try:
            self.on_trash(self.logs.forget(topic_id))
        except OSError as error:
            self.report(
                f"the files of deleted topic {topic_id} could not be removed ({error}); the next start tries again"
            )


def _run_here(work: Callable[[], None], done: Callable[[], None]) -> None:
    """Where there are no threads."""
    work()
    done()


async def _wait_without_limit(_: int, waited: Awaitable[None]) -> bool:
    """Where nothing takes time."""
    await waited
    return True


def _run_to_the_end(coroutine: Coroutine[object, None, object]) -> None:
    """Where there is no event loop nothing suspends either: a store in memory answers at once."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("without an event loop a coroutine must not wait")


class ClusterSide:
    """What a node has beside the rest of the core because it is one of several."""

    def __init__(self, broker: Broker, store: MetadataStore, rules: Rules) -> None:
        self._broker = broker
        self.rules: Final = rules
        self.secret = b""
        """By which nodes know each other; whoever puts the node together sets it, before it listens."""
        self.nodes: Final = ClusterImage(store, broker.clock)
        """Who else is there."""
        self.replicas: Final = Replicas(
            ReplicaEnvironment(
                node_id=broker.node_id,
                topics=broker.topics,
                logs=broker.logs,
                flusher=broker.flusher,
                flush=broker.settings.log.flush,
                moving_bytes_per_second=broker.settings.cluster.reassign_bytes_per_second,
                clock=broker.clock,
                report=broker.report,
                trash=self._trash,
                rules=rules,
            )
        )
        """What this node does for each partition."""
        self.strays: Final = Strays(broker.logs, broker.topics, store, broker.trash, broker.report)
        """What lies here of topics that are deleted."""
        self.reassignments: Final = Reassignments(store, broker.topics, self.nodes)
        """Where to ask for moves, elections and drains."""
        self.coordinators: Final = Coordinators(broker, broker.report, rules)
        """Which groups, queues, keys and sinks this node speaks for."""
        self.lacking: list[TopicIdPartition] = []
        """Partitions whose log ended, at the start, before what was known to be committed."""
        self.appends: Final = LedAppends(broker.clock)
        """What other nodes have appended to partitions that this one leads."""
        broker.timed.extend((self.appends, self.replicas))
        broker.topics.writes.notes_deletions = True
        broker.topics.placer = ClusterPlacer(self.nodes, broker.topics)
        broker.topics.on_partition.append(self.replicas.apply)
        self.replicas.on_lead.extend((broker.lead, self.coordinators.lead))
        self.replicas.on_resign.extend((self.coordinators.resign, broker.resign, self.appends.resign))
        self.metering: Final = ReplicaMetering(broker.node_id, broker.topics, broker.meters)
        """Counts for ``/metrics``."""
        self.replicas.on_lead.append(self.metering.lead)
        self.replicas.on_resign.append(self.metering.resign)

    def _trash(self, removal: RemovalTask) -> None:
        # The runtime replaces the broker's way after this was made.
        self._broker.on_trash(removal)

    async def start(self) -> None:
        """Know the other nodes. This one is not registered yet, so it leads nothing, and follows what others lead."""
        await self.nodes.load()
        self.metering.begin()
        logs = self._broker.logs
        for topic_id in logs.topic_ids():
            if is_observed_id(topic_id):
                self._broker.trash(topic_id)
        marks = checkpoint.load(logs.disk, self._marks_path, self._broker.report)
        known = self._broker.topics.get_by_id
        self.replicas.high_watermarks.update(
            (place, offset) for place, offset in marks.items() if known(place.topic_id) is not None
        )
        self.replicas.apply_all()
        self.lacking = [place for place, offset in marks.items() if self._lacks(place, offset)]

    def _lacks(self, place: TopicIdPartition, offset: int) -> bool:
        """Whether the log here ends before what was committed: its disk has lost some of it."""
        topic = self._broker.topics.get_by_id(place.topic_id)
        if topic is None or place.partition >= topic.partition_count:
            return False
        if self._broker.node_id not in self._broker.topics.partition(topic, place.partition).replicas:
            return False
        try:
            log = self._broker.logs.log(topic.topic_id, place.partition, topic.config.log_config())
        except (OSError, PenstockError):
            return True
        if log.next_offset >= offset:
            return False
        self._broker.report(
            f"{topic.name}/{place.partition}: offsets {log.next_offset} to {offset - 1} were committed and are missing here; this node must get them from other nodes before it can lead"
        )
        return True

    @property
    def _marks_path(self) -> str:
        return f"{self._broker.logs.data_dir}/{checkpoint.FILE}"

    def marks_task(self) -> checkpoint.MarksTask:
        """What is known to be committed now, to be written off the event loop."""
        return checkpoint.MarksTask(self._broker.logs.disk, self._marks_path, self.replicas.known_high_watermarks())
