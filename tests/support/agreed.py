"""The agreed state of a cluster without a cluster: topics, records and nodes are what a test says, and everything is read from a store as nodes do."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from penstock.core.cluster.decisions import Decision
from penstock.core.cluster.image import CONTROLLER_KEY, ClusterImage, ControllerRecord, NodeRecord, drain_key, node_key
from penstock.core.topics.records import PartitionRecord, TopicRecord, encode, partition_key, topic_key
from penstock.core.topics.topics import Topic, Topics
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, Put
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.settings import ClusterSettings, Settings


class Agreed:
    """``agreed = await Agreed.make(1, 2, 3)``: these nodes are up."""

    def __init__(self, replication_factor: int = 3, min_in_sync: int = 2) -> None:
        self.store = MemoryStore(operations_max=128)
        cluster = ClusterSettings(name="c", replication_factor=replication_factor, min_in_sync=min_in_sync)
        self.topics = Topics(self.store, SystemClock(), SystemEntropy(), Settings(cluster=cluster))
        self.nodes = ClusterImage(self.store)

    @classmethod
    async def make(cls, *nodes: int, racks: Sequence[str] = (), **defaults: int) -> "Agreed":
        agreed = cls(**defaults)
        await agreed.topics.load()
        await agreed.nodes.load()
        for number, node in enumerate(nodes):
            await agreed.up(node, racks[number] if racks else None)
        return agreed

    async def up(self, node: int, rack: str | None = None, *, shutting_down: bool = False) -> int:
        """A node is up, in a new life if it was before; gives back its epoch."""
        await self.down(node)
        record = NodeRecord(UUID(int=node), UUID(int=node), {"peer": "127.0.0.1:1"}, rack, shutting_down)
        await self.store.txn([], [Put(node_key(node), msgspec.json.encode(record))])
        return self.nodes.live()[node]

    async def down(self, *nodes: int) -> None:
        for node in nodes:
            await self.store.txn([], [Delete(node_key(node))])

    async def drain(self, *nodes: int) -> None:
        for node in nodes:
            await self.store.txn([], [Put(drain_key(node), b"{}")])

    async def elect_controller(self, node: int) -> None:
        await self.store.txn([], [Put(CONTROLLER_KEY, msgspec.json.encode(ControllerRecord(node)))])

    async def topic(
        self,
        name: str,
        *replicas: tuple[int, ...],
        internal: bool = False,
        config: dict[str, str] | None = None,
        **changes: Any,
    ) -> Topic:
        """A topic with its partitions on these nodes, each led by the first and all in sync, but for ``changes`` of each record."""
        topic_id = UUID(int=len(self.topics) + 1)
        record = TopicRecord(topic_id, len(replicas), max(map(len, replicas)), 0, 0, internal, config or {})
        live = self.nodes.live()
        for index, nodes in enumerate(replicas):
            fields: dict[str, Any] = {
                "leader": nodes[0],
                "leader_epoch": 0,
                "leader_node_epoch": live.get(nodes[0], 0),
                "replicas": nodes,
                "isr": tuple((node, live.get(node, 0)) for node in nodes),
            }
            await self._put(topic_id, index, PartitionRecord(**{**fields, **changes}))
        await self.store.txn([], [Put(topic_key(name), encode(record))])
        return self.topics.require(name)

    async def change(self, topic: Topic, index: int, **changes: Any) -> None:
        """Let a record be other than it is."""
        await self._put(topic.topic_id, index, msgspec.structs.replace(self.topics.partition(topic, index), **changes))

    async def write(self, decisions: Sequence[Decision]) -> None:
        """As a controller would."""
        for each in decisions:
            assert self.topics.partition_epoch(each.topic, each.index) == each.epoch
            await self._put(each.topic.topic_id, each.index, each.record)

    async def _put(self, topic_id: UUID, index: int, record: PartitionRecord) -> None:
        await self.store.txn([], [Put(partition_key(topic_id, index), encode(record))])

    def record(self, topic: Topic | str, index: int = 0) -> PartitionRecord:
        found = self.topics.require(topic) if isinstance(topic, str) else topic
        return self.topics.partition(found, index)

    def in_sync(self, *nodes: int) -> tuple[tuple[int, int], ...]:
        """These nodes in the lives that they have now, as a record names them."""
        return tuple((node, self.nodes.live()[node]) for node in nodes)
