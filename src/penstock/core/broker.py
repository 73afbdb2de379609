"""The core of one node: its topics, the partitions that it leads, and the state that it coordinates.

Gateways use a :class:`Broker` and nothing below it. Partitions are opened when they are first used, so a node with ten thousand of them
starts as quickly as one with ten.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from penstock.address import Address
from penstock.core.audit.audit import Audit
from penstock.core.awaited_groups import AwaitedGroups
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.cluster.side import ClusterSide
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import InternalTopic
from penstock.core.dead_letters.dead_letters import DeadLetters
from penstock.core.dynamic_configs import DynamicConfigs
from penstock.core.groups.coordinator import GroupCoordinator
from penstock.core.groups.registry import GroupRegistry
from penstock.core.idempotency.idempotency import Idempotency
from penstock.core.operations.door import Door
from penstock.core.partitions.backlog import Backlog
from penstock.core.partitions.local_peers import LocalPeers
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.peers import Peers
from penstock.core.partitions.producer_ids import ProducerIds
from penstock.core.partitions.replica import Replica
from penstock.core.partitions.settling import Settling
from penstock.core.partitions.tiering import Tiering
from penstock.core.publish import Publisher
from penstock.core.queues.queues import Queues
from penstock.core.quotas.quotas import Quotas
from penstock.core.security.access import access_of
from penstock.core.security.authenticator import Authenticator
from penstock.core.security.rules import AccessRules
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

    is_http_tls: bool = False
    """Whether the HTTP listener uses TLS. If so, it is assumed of the other nodes too."""

    def __init__(
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
        self.settings: Final = settings
        self.clock: Final = clock
        self.entropy: Final = entropy
        self.logs: Final = logs
        self.meters: Final = Meters()
        self.node_id: Final = NodeId(settings.server.node_id)
        self.cluster_id: Final = cluster_id
        self.is_alone: Final = not settings.cluster.name
        """Whether this is the only node of its cluster, so that it need not register to lead."""
        self.topics: Final = Topics(store, clock, entropy, settings)
        self.configs: Final = DynamicConfigs(store, self.node_id, settings.topic_configs)
        """Configs of brokers and groups that can change at any time."""
        self.quotas: Final = Quotas(store, self.configs, clock, self.meters)
        self.topics_version = 0
        """Incremented with every change of a topic: gateways cache facts about topics for one version."""
        self.producer_ids: Final = ProducerIds(store)
        self.access = access_of(settings.security)
        self.access_rules: Final = AccessRules(store, self.access.use, report)
        self.authenticator: Final = self._authenticator(store, report)
        self.publisher: Final = Publisher(self, flusher)
        self.background: Background = _run_to_the_end
        """Starts a coroutine in the background; the runtime makes it a task."""
        self.within: Within = _wait_without_limit  # The runtime has a clock.
        self.off_loop: OffLoop = _run_here  # The runtime uses threads.
        self.http: Address | None = None
        """The address of the HTTP listener once it listens, which Kafka's clients can ask for."""
        topic = partial(InternalTopic, self)
        offsets = topic(OFFSETS_TOPIC, report)
        self.groups: Final = GroupCoordinator(settings.groups, offsets, self, clock, entropy, report)
        self.registry: Final = GroupRegistry(store, clock, entropy)
        self.awaited_groups: Final = AwaitedGroups(self, flusher)
        self.tiering: Final = Tiering(self)
        self.on_sooner: Callable[[int], None] = lambda _at_ms: None  # Set by the runtime; see wake_at.
        self.groups.deadlines.on_sooner = self.wake_at
        self.idempotency: Final = Idempotency(
            self, topic(IDEMPOTENCY_TOPIC, report), flusher, report, window_ms=settings.queues.idempotency_ms
        )
        self.backlog: Final = Backlog(self, settings.queues)
        if self.backlog.is_on:
            self.groups.on_committed.append(self.backlog.committed)
        self.queues: Final = Queues(settings.queues, self, flusher, report)
        self.sinks: Final = Sinks(self, topic(SINKS_TOPIC, report, partitions=1), flusher, report, settings.sinks)
        self.dead_letters: Final = DeadLetters(self)
        self.settling: Final = Settling(clock, self.wake_at)
        self.audit: Final[Audit] = Audit(self, settings)
        self.timed: Final = self._timed()
        """The parts with deadlines; the runtime calls them."""
        self.door: Final = Door(self)
        self.do: Final = self.door.do
        self.begin: Final = self.door.begin
        self.open: Final = self.door.open
        self.on_trash: Callable[[RemovalTask], None] = RemovalTask.run
        """Removes the files of deleted topics; the runtime does it in a thread."""
        self.report: Final = report
        self.flusher: Final = flusher
        self._partitions: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, TopicName] = {}
        self._preparing_ids = False
        self.cluster: Final = ClusterSide(self, store, rules)
        self.peers: Peers = LocalPeers(self)
        """Sends batches to the leaders of partitions. Replaced in a cluster with other nodes."""

    def _timed(self) -> list[Timed]:
        found: list[Timed] = [self.groups, self.meters, self.idempotency, self.queues, self.sinks]
        return [*found, self.dead_letters, self.settling, self.audit]

    def _authenticator(self, store: MetadataStore, report: Report) -> Authenticator:
        made = Authenticator(
            self.settings,
            store,
            self.clock,
            self.entropy,
            self.meters,
            # The runtime replaces both.
            background=lambda work: self.background(work),  # noqa: PLW0108
            off_loop=lambda work, done: self.off_loop(work, done),  # noqa: PLW0108
            report=report,
        )
        self.access.is_super = made.is_admin
        made.attempts.on_login = lambda *login: self.audit.login(*login)  # noqa: PLW0108  it is made later
        made.on_changed.append(lambda: self.access.forget())  # noqa: PLW0108  tests replace it
        return made

    @property
    def families(self) -> tuple[Family[Shard], ...]:
        """All replicated state, in the order in which it is loaded."""
        return self.groups.family, self.queues.family, self.idempotency.family, self.sinks.family

    async def start(self) -> None:
        """Load the agreed state, and recover from a crash. A broker that is alone leads and serves everything when this returns."""
        await self.authenticator.load()
        await self.configs.load()
        self._configs_changed()
        self.configs.on_changed.append(self._configs_changed)
        if not self.access.allows_all:
            await self.access_rules.load()
        await self.quotas.load()
        await self.topics.load()
        for topic in self.topics:
            self._names[topic.topic_id.bytes] = topic.name
        self._clear_leftovers()
        await self.registry.load(self.topics)
        self.topics.on_created.append(self._created)
        self.topics.on_changed.append(self._changed)
        self.topics.on_deleted.append(self._deleted)
        self.groups.on_deleted.append(self.meters.forget_group)
        await self.cluster.start()
        if self.is_alone:
            for family in self.families:
                if family.topic.name not in self.topics:
                    made = NewTopic(family.topic.name, family.topic.partition_count, configs=INTERNAL_CONFIGS)
                    await self.topics.create(made, internal=True)
            self.cluster.coordinators.finish_loading()

    def close(self) -> None:
        """The broker stops: answer all waiting callers."""
        self.cluster.nodes.close()
        self.cluster.secret.close()
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
        """The partition, opened if necessary; ``UNKNOWN_TOPIC_OR_PARTITION`` if there is none."""
        found = self._partitions.get(name)
        if found is not None:
            partition = found.get(index)
            if partition is not None:
                return partition
        topic = self.topics.require(name)
        self.topics.partition(topic, index)
        return self.cluster.replicas.leader(topic, index)

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """The same by the topic's id; ``UNKNOWN_TOPIC_ID`` if there is none."""
        name = self._names.get(topic_id)
        if name is None:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_ID,
                f"There is no topic with the id {UUID(bytes=topic_id)}; it may have been deleted",
            )
        return self.partition(name, index)

    def replica(self, name: str, index: int) -> Replica:
        """The copy of a partition on this node, leader or not; NOT_LEADER_OR_FOLLOWER if there is none."""
        topic = self.topics.require(name)
        self.topics.partition(topic, index)
        return self.cluster.replicas.readable(topic, index)

    def observe(self, name: str, index: int, from_offset: int = 0) -> Replica:
        """The same, but if there is no copy, this node begins to copy the committed records from an offset on, which takes a moment.

        Readers must call this again from time to time: a copy without readers is dropped after a minute (``gone``).
        """
        return self.cluster.replicas.observe(self.topics.require(name), index, from_offset)

    def opened(self, name: str, index: int) -> Partition | None:
        """The partition if it is open; this does not open it."""
        return self._partitions.get(name, {}).get(index)

    def open_partitions(self) -> Iterator[Partition]:
        """All open partitions that this node leads."""
        for partitions in list(self._partitions.values()):
            yield from list(partitions.values())

    def wake_at(self, at_ms: int) -> None:
        """Something in ``timed`` is due at this monotonic time, perhaps earlier than its last deadline."""
        self.on_sooner(at_ms)

    def open_replicas(self) -> Iterator[Replica]:
        """All open partitions that this node leads or follows."""
        yield from self.open_partitions()
        yield from self.cluster.replicas.following()

    def open_logs(self) -> Iterator[Log]:
        """Their logs."""
        for replica in self.open_replicas():
            yield replica.log

    def lead(self, partition: Partition) -> None:
        """This node has become the leader of a partition."""
        self.topics_version += 1
        self.producer_ids.note(partition.log.producers.highest_id)
        self._partitions.setdefault(partition.topic.name, {})[partition.index] = partition

    def prepare_ids(self) -> None:
        """Take producer ids in advance: the metadata store may be unavailable when they are needed."""
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
        """This node no longer leads it."""
        led = self._partitions.get(partition.topic.name, {})
        if led.get(partition.index) is partition:
            self.topics_version += 1
            del led[partition.index]

    # Facts about topics for the rules of groups.

    def exists(self, topic: TopicName, partition: int) -> bool:
        """Whether there is such a partition."""
        found = self.topics.get(topic)
        return found is not None and 0 <= partition < found.partition_count

    def topic_id(self, topic: TopicName) -> TopicId | None:
        """The id of the topic that has the name now."""
        found = self.topics.get(topic)
        return None if found is None else found.topic_id

    def partition_count(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 if it does not exist."""
        found = self.topics.get(topic)
        return 0 if found is None else found.partition_count

    def _configs_changed(self) -> None:
        self.topics.set_config_defaults(self.configs.topic_defaults())
        self.cluster.configs_changed()

    # Changes of topics.

    def _created(self, topic: Topic) -> None:
        self.topics_version += 1
        self._names[topic.topic_id.bytes] = topic.name
        self.cluster.replicas.apply_topic(topic)
        self.groups.topic_changed(topic.name)
        self.awaited_groups.begin(topic)

    def _changed(self, topic: Topic) -> None:
        self.topics_version += 1
        self.cluster.replicas.reconfigured(topic)
        self.cluster.replicas.apply_topic(topic)
        self.queues.topic_changed(topic)
        self.groups.topic_changed(topic.name)

    def _deleted(self, topic: Topic) -> None:
        self.topics_version += 1
        self._names.pop(topic.topic_id.bytes, None)
        # Before the partitions are closed, so that the queue answers its workers.
        self.queues.forget_topic(topic.name)
        self.cluster.replicas.forget(topic)
        self._partitions.pop(topic.name, None)
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
        """Complete deletions that a crash interrupted, according to the agreed state.

        Every broker that was ever started has an offsets topic. Without it, the agreed state is lost, and nothing may be removed.
        """
        if not self.is_alone:
            # Other nodes may know more topics than this one at its start, so stray ones are removed later.
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
        """Remove the files of a deleted topic."""
        try:
            self.on_trash(self.logs.forget(topic_id))
        except OSError as error:
            self.report(
                f"the files of deleted topic {topic_id} could not be removed ({error}); the next start tries again"
            )


def _run_here(work: Callable[[], None], done: Callable[[], None]) -> None:
    """For tests without threads."""
    work()
    done()


async def _wait_without_limit(_: int, waited: Awaitable[None]) -> bool:
    """For tests without a clock."""
    await waited
    return True


def _run_to_the_end(coroutine: Coroutine[object, None, object]) -> None:
    """For tests without an event loop: a store in memory answers at once."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("Without an event loop, a coroutine must not wait")
