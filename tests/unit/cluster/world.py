"""A node's core on a store that it shares over a bad connection: real topics, real logs on a simulated disk, and no network."""

from uuid import UUID

import msgspec

from penstock.core.broker import Broker
from penstock.core.cluster.image import NodeRecord, node_key
from penstock.core.cluster.side import ClusterSide
from penstock.core.partitions.partition import Partition
from penstock.core.topics.records import PartitionRecord, encode, partition_key
from penstock.core.topics.topics import NewTopic, Topic
from penstock.log.manager import LogManager
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Compare, Put
from penstock.records.builder import BatchBuilder
from penstock.settings import ClusterSettings, GroupSettings, ServerSettings, Settings
from penstock.testing.disk import SimulatedDisk
from penstock.testing.faulty_store import FaultyStore
from penstock.types import NodeId
from tests.support.worlds import DATA_DIR, CountingEntropy, ManualClock
from tests.unit.core.queues.world import TurnFlusher

LEASE_MS = 60_000


class CoreNode:
    """One node. ``start`` reads the store; ``register`` makes its entry, as its membership would."""

    def __init__(self, store: MemoryStore, node_id: int, entropy: CountingEntropy) -> None:
        self.node_id = NodeId(node_id)
        self.store = FaultyStore(store)
        self._shared = store
        self.clock = ManualClock()
        self.entropy = entropy
        self.flusher = TurnFlusher()
        self.reports: list[str] = []
        logs = LogManager(SimulatedDisk(), DATA_DIR, self.clock, self.reports.append)
        logs.open_all()
        self.broker = Broker(
            Settings(
                server=ServerSettings(node_id=node_id),
                cluster=ClusterSettings(name="c"),
                groups=GroupSettings(offsets_topic_partitions=1),
            ),
            clock=self.clock,
            entropy=entropy,
            store=self.store,
            logs=logs,
            flusher=self.flusher,
            report=self.reports.append,
        )
        self.broker.background = lambda coroutine: coroutine.close()
        self.lease = 0
        self.epoch = -1

    @property
    def cluster(self) -> ClusterSide:
        assert self.broker.cluster is not None
        return self.broker.cluster

    async def start(self) -> "CoreNode":
        await self.broker.start()
        await self.register()
        return self

    async def register(self) -> int:
        """A new incarnation."""
        if self.lease:
            await self._shared.revoke(self.lease)
        self.lease = await self._shared.grant(LEASE_MS)
        record = NodeRecord(self.entropy.uuid(), UUID(int=self.node_id), {"peer": f"127.0.0.1:{self.node_id}"})
        key = node_key(self.node_id)
        made = await self._shared.txn(
            [Compare(key, create_revision=0)], [Put(key, msgspec.json.encode(record), self.lease)]
        )
        assert made.succeeded
        self.epoch = made.revision
        self.cluster.replicas.registered(made.revision)
        return made.revision

    # What tests ask.

    def record(self, topic: Topic, index: int = 0) -> PartitionRecord:
        """As this node sees it."""
        return self.broker.topics.partition(topic, index)

    def append(self, partition: Partition, count: int = 1) -> None:
        """Records, synced here."""
        for _ in range(count):
            builder = BatchBuilder()
            builder.add(self.clock.now_ms(), b"key", b"value")
            partition.append(builder.build(), self.clock.now_ms())
        self.flusher.write()
        self.flusher.sync()


class CoreWorld:
    """Some nodes on one store."""

    def __init__(self) -> None:
        self.store = MemoryStore(operations_max=128)
        self._entropy = CountingEntropy()
        self.nodes: dict[int, CoreNode] = {}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.nodes[node_id] = await CoreNode(self.store, node_id, self._entropy).start()

    def __getitem__(self, node_id: int) -> CoreNode:
        return self.nodes[node_id]

    async def topic(self, name: str = "t", *, leader: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> Topic:
        """A topic of one partition with all nodes as replicas, led as said."""
        made = await self[leader].broker.topics.create(NewTopic(name, assignments={0: tuple(self.nodes)}))
        await self.put(made, self.led(leader, isr))
        return made

    def led(self, leader: int, isr: tuple[int, ...], leader_epoch: int = 1) -> PartitionRecord:
        return PartitionRecord(
            leader=leader,
            leader_epoch=leader_epoch,
            leader_node_epoch=self[leader].epoch,
            replicas=tuple(self.nodes),
            isr=tuple((node, self[node].epoch) for node in isr),
        )

    async def put(self, topic: Topic, record: PartitionRecord) -> int:
        """As a controller writes it; the partition's new epoch."""
        return (await self.store.txn([], [Put(partition_key(topic.topic_id, 0), encode(record))])).revision
