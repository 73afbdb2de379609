"""One node of a cluster of three without a socket: the other two are entries of the store, and what a follower says a test says."""

import asyncio
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import msgspec

from penstock.address import Address
from penstock.core.cluster.image import CONTROLLER_KEY, ControllerRecord, NodeRecord, node_key
from penstock.core.cluster.side import ClusterSide
from penstock.core.partitions.partition import Partition
from penstock.core.topics.records import PartitionRecord, encode, partition_key
from penstock.core.topics.topics import NewTopic, Topic
from penstock.errors import Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, MetadataStore, Put
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.settings import ClusterSettings
from tests.support.kafka_node import NODE, KafkaNode
from tests.support.kafka_wire import WireNode

OTHER, THIRD = 8, 9
RACKS: dict[int, str] = {NODE: "a", OTHER: "b", THIRD: "c"}


class ClusterNode(KafkaNode):
    """Node 7 in rack a; 8 and 9 are up in racks b and c, as far as the store says."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.store = MemoryStore()
        settings.setdefault("cluster", ClusterSettings(name="c"))
        super().__init__(data_dir, **settings)

    async def _open_store(self) -> MetadataStore:
        return self.store

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        for node_id in RACKS:
            await self.join(node_id)
        await self.store.txn([], [Put(CONTROLLER_KEY, msgspec.json.encode(ControllerRecord(OTHER)))])
        self.cluster.replicas.registered(self.cluster.nodes.live()[NODE])
        return self

    @property
    def cluster(self) -> ClusterSide:
        assert self.broker.cluster is not None
        return self.broker.cluster

    async def join(
        self, node_id: int, *, shutting_down: bool = False, kafka: Address | None = None, **more: str
    ) -> None:
        """The node is up, perhaps not for long. ``kafka`` is the address for Kafka clients, if any is to connect; ``more`` are listeners."""
        record = NodeRecord(
            incarnation=UUID(int=node_id),
            directory=UUID(int=node_id),
            listeners={
                "kafka": str(kafka or f"127.0.0.1:{9000 + node_id}"),
                "http": f"127.0.0.1:{8000 + node_id}",
                **more,
            },
            rack=RACKS[node_id],
            shutting_down=shutting_down,
        )
        await self.store.txn([], [Put(node_key(node_id), msgspec.json.encode(record))])

    async def leave(self, node_id: int) -> None:
        """It is not any more."""
        await self.store.txn([], [Delete(node_key(node_id))])

    async def place(self, name: str, *replicas: tuple[int, ...], **configs: str) -> Topic:
        """A topic with its partitions on these nodes, each led by the first."""
        by_name = {key.replace("_", "."): value for key, value in configs.items()}
        assignments = {index: list(nodes) for index, nodes in enumerate(replicas)}
        return await self.broker.topics.create(NewTopic(name, configs=by_name, assignments=assignments))

    async def set_record(self, topic: Topic, index: int, **changes: Any) -> PartitionRecord:
        """Let the agreed record of a partition be other than it is."""
        changed = msgspec.structs.replace(self.broker.topics.partition(topic, index), **changes)
        await self.store.txn([], [Put(partition_key(topic.topic_id, index), encode(changed))])
        return changed

    def fetched(self, partition: Partition, node_id: int, offset: int) -> None:
        """A follower says that it has everything before ``offset``."""
        assert partition.in_sync is not None
        epoch = self.cluster.nodes.live()[node_id]
        partition.in_sync.fetched(node_id, epoch, offset, partition.log.next_offset, self.clock.monotonic_ms())
        partition.recount()

    async def append_written(self, topic: str, index: int, count: int) -> Partition:
        """``count`` records at the leader, written, which followers do not have yet."""
        target = self.broker.partition(topic, index)
        for n in range(count):
            target.append(build_batch([Record(n, self.clock.now_ms(), b"key", b"value")]), self.clock.now_ms())
        written: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        target.when_written(target.log.next_offset, written.set_result)
        assert await written is None
        return target


class WireClusterNode(ClusterNode, WireNode):
    """The same, and it listens."""
