"""Nodes of a cluster in one process whose queues run by the clock, and what a worker and a publisher do with them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.broker import Broker
from penstock.core.cluster.image import node_key
from penstock.core.coordinators.topic import partition_of
from penstock.core.partitions.reading import read_from
from penstock.core.publish import NewRecord, Placed, Results
from penstock.core.security.access import Caller, Principal
from penstock.core.topics.names import QUEUE_STATE_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, Event, Subscriber, Unsubscribe
from penstock.operations.queues import Ack, Delivery, Lease, Nack
from penstock.runtime.housekeeping import Housekeeping
from penstock.types import Acks, Gateway
from tests.support.cluster_nodes import SECONDS_MAX, Cluster, Running, until

CALLER = Caller(Principal("User:tester"), Gateway.HTTP, "test")
OWNER = "worker"
LEASE_MS = 60_000
"""Longer than any test."""


class LateStore:
    """One node's way to the store: its news can be held back, so that it does not know what the others have agreed on."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._held: list[tuple[Subscriber, list[Event]]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        def take(events: list[Event]) -> None:
            if self._held is None:
                subscriber(events)
            else:
                self._held.append((subscriber, events))

        return self._store.subscribe(prefix, take)

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for subscriber, events in held:
            subscriber(events)


class QueueCluster(Cluster):
    """Every node has what runs by the clock, and news that can be held back."""

    _housekeeping: dict[int, Housekeeping]
    news: dict[int, LateStore]

    async def start(self, node_id: int, before: Callable[[Broker], None] = lambda _: None) -> Running:
        store = self.store
        if not hasattr(self, "news"):
            self.news = {}
        self.news[node_id] = LateStore(store)
        self.store = self.news[node_id]  # type: ignore[assignment]
        try:
            running = await super().start(node_id, before)
        finally:
            self.store = store
        housekeeping = Housekeeping(running.broker, running.commit)
        housekeeping.start()
        if not hasattr(self, "_housekeeping"):
            self._housekeeping = {}
        self._housekeeping[node_id] = housekeeping
        return running

    async def __aexit__(self, *raised: object) -> None:
        for housekeeping in self._housekeeping.values():
            await housekeeping.stop()
        await super().__aexit__(*raised)

    async def leave(self, running: Running) -> None:
        """In order."""
        await self._housekeeping.pop(running.broker.node_id).stop()
        await running.stop()

    async def kill(self, running: Running) -> None:
        """Its connections end, and it says nothing more."""
        await self._housekeeping.pop(running.broker.node_id).stop()
        await running.crash()

    async def depose(self, running: Running) -> None:
        """The others take it for dead, and it does not know, until its news is released."""
        node_id = running.broker.node_id
        self.news[node_id].hold()
        await self.store.txn([], [Delete(node_key(node_id))])

    async def ready(self) -> None:
        """Return when every group has somebody who works for it."""
        await until(lambda: all(self._has_all(running) for running in self.up), "all groups have a coordinator")

    def _has_all(self, running: Running) -> bool:
        try:
            for n in range(16):
                self.nodes[running.cluster.coordinators.node_of(f"g{n}")].broker.queues.check_loaded(f"g{n}")
        except (PenstockError, KeyError):
            return False
        return True

    # Who is who.

    def coordinator(self, group: str) -> Running:
        return self.nodes[self.any.cluster.coordinators.node_of(group)]

    def group_of(self, running: Running) -> str:
        """A group that this node works for."""
        found = next((name for n in range(1000) if self.coordinator(name := f"group-{n}") is running), None)
        assert found is not None, f"node {running.broker.node_id} coordinates no group: use the default replication"
        return found

    def group_on(self, *replicas: int) -> str:
        """A group whose state lies on these nodes, in this order: the first works for it, and the next when that is gone."""
        count = self.any.broker.topics.require(QUEUE_STATE_TOPIC).partition_count
        records = {index: self.record(QUEUE_STATE_TOPIC, index).replicas for index in range(count)}
        assert replicas in records.values(), records
        return next(name for n in range(1000) if records[partition_of(name := f"group-{n}", count)] == replicas)

    def others(self, running: Running) -> list[Running]:
        return [each for each in self.up if each is not running]

    async def moved(self, group: str, away_from: Running) -> Running:
        """Who works for the group, once that is somebody else."""

        def asked() -> Running:
            # The one that it moved away from may be the last to know.
            return self.nodes[self.others(away_from)[0].cluster.coordinators.node_of(group)]

        def is_moved() -> bool:
            try:
                found = asked()
                if found is away_from or found.ended:
                    return False
                found.broker.queues.check_loaded(group)
            except (PenstockError, KeyError):
                return False
            return True

        await until(is_moved, f"somebody else works for {group}")
        return asked()

    async def stored(self, group: str) -> None:
        """Return when all that was said of the group's records is with the other nodes too, leases as well."""
        broker = self.coordinator(group).broker
        partition = broker.partition(
            QUEUE_STATE_TOPIC, partition_of(group, broker.topics.require(QUEUE_STATE_TOPIC).partition_count)
        )
        await until(lambda: partition.high_watermark == partition.log.next_offset, "the queue's state is committed")

    # What clients do.

    async def publish(
        self, running: Running, topic: str, values: Sequence[bytes], partition: int | None = None, acks: Acks = Acks.ALL
    ) -> Results:
        records = [NewRecord(None, value, partition=partition) for value in values]
        return await self.publish_records(running, topic, records, acks)

    async def publish_records(
        self, running: Running, topic: str, records: Sequence[NewRecord], acks: Acks = Acks.ALL
    ) -> Results:
        done: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
        running.broker.publisher.publish(CALLER, topic, records, acks, done.set_result)
        async with asyncio.timeout(SECONDS_MAX):
            return await done

    async def lease(
        self, running: Running, topic: str, group: str, max_records: int = 1, owner: str = OWNER, wait_ms: int = 30_000
    ) -> list[Delivery]:
        """Asked again while the node loads."""
        done: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        running.broker.queues.lease(Lease(topic, group, owner, max_records, LEASE_MS, wait_ms), done.set_result)
        async with asyncio.timeout(SECONDS_MAX):
            return await done

    async def ack(self, running: Running, group: str, taken: Sequence[Delivery], owner: str = OWNER) -> None:
        for item in taken:
            await self._said(running.broker.queues.ack, Ack(item.topic, group, owner, item.partition, [item.offset]))

    async def nack(
        self, running: Running, group: str, taken: Sequence[Delivery], why: str = "bad", owner: str = OWNER
    ) -> None:
        for item in taken:
            await self._said(
                running.broker.queues.nack, Nack(item.topic, group, owner, item.partition, [item.offset], why)
            )

    @staticmethod
    async def _said(say: Callable[..., None], *said: Any) -> None:
        done: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        say(*said, done.set_result)
        async with asyncio.timeout(SECONDS_MAX):
            reason = await done
        if reason is not None:
            raise PenstockError(reason)

    def values(self, topic: str, index: int = 0) -> list[bytes]:
        """What is committed in a partition, by its leader."""
        return [value or b"" for _, value in self.records(topic, index)]

    def records(self, topic: str, index: int = 0) -> list[tuple[int, bytes | None]]:
        leader = self.nodes[self.record(topic, index).leader]
        partition = leader.broker.partition(topic, index)
        found = read_from(partition, partition.log.start_offset, 1_000_000, 1 << 30)
        return [(record.offset, record.value) for record in found]


def places(results: Results) -> list[Placed]:
    """Where records are; the first refusal is raised."""
    found: list[Placed] = []
    for result in results:
        if isinstance(result, PenstockError):
            raise result
        found.append(result)
    return found
