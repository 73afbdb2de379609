"""Consumer groups whose coordinators come and go: three whole nodes with their Kafka listeners, and the clients that people use."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.runtime.group_commit import GroupCommit
from tests.support.cluster_nodes import Running, until
from tests.support.coordinator_cluster import CoordinatorCluster
from tests.support.listeners import plain

POLL_SECONDS = 0.05
JOIN_SECONDS = 60.0


class KafkaCluster(CoordinatorCluster):
    """Every node has a Kafka listener."""

    gateways: dict[int, KafkaGateway]

    async def listen(self, node_id: int, broker: Broker, commit: GroupCommit) -> dict[str, Address]:
        if not hasattr(self, "gateways"):
            self.gateways = {}
        listener = plain("kafka")
        address = listener.address
        gateway = self.gateways[node_id] = KafkaGateway(broker, commit.turn, broker.settings.limits)
        await gateway.start(listener)
        return {"kafka": address}

    async def __aexit__(self, *raised: object) -> None:
        for gateway in self.gateways.values():
            await gateway.stop(0.0)
        await super().__aexit__(*raised)

    @property
    def bootstrap(self) -> str:
        return ",".join(str(node.listeners["kafka"]) for node in self.any.cluster.nodes.nodes.values())

    async def leave(self, running: Running) -> None:
        await running.node.hand_over()
        await self.gateways.pop(running.broker.node_id).stop(0.0)
        await super().leave(running)

    async def kill(self, running: Running) -> None:
        gateway = self.gateways.pop(running.broker.node_id)
        # Without a word to anybody.
        gateway._abort()
        await gateway.stop(0.0)
        await super().kill(running)

    def is_whole(self, topic: str) -> bool:
        """Whether all replicas of its partition are in sync."""
        record = self.record(topic)
        return len(record.isr) == len(record.replicas)


class Reader:
    """A consumer in a thread of its own; it commits all that it takes, and says what it saw."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.seen: list[tuple[int, int]] = []
        self.assigned = 0
        self.fatal: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 60_000,
                "heartbeat.interval.ms": 200,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 500,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1
        assert partitions

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None:
                self._take(message)
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self.seen.append((message.partition() or 0, message.offset() or 0))
            self._commit(message)
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            self.fatal.append(str(error))

    def _commit(self, message: Message) -> None:
        while not self._stopped.is_set():
            try:
                self._consumer.commit(message=message, asynchronous=False)
                return
            except Exception as error:  # noqa: BLE001 - every error of a coordinator that moves is tried again
                last = str(error)
        self.fatal.append(last)

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)


@asynccontextmanager
async def reading(cluster: KafkaCluster, group: str, topic: str) -> AsyncIterator[Reader]:
    reader = Reader(cluster.bootstrap, group, topic)
    try:
        yield reader
    finally:
        await reader.stop()


def offsets(cluster: KafkaCluster, group: str, topic: str) -> dict[int, int]:
    """As whoever coordinates the group tells them."""
    found = cluster.coordinator(group).broker.groups.fetch_offsets(group, None)  # type: ignore[arg-type]
    return {key.partition: committed.offset for key, committed in found.items() if key.topic == topic}


def holds(check: Callable[[], Any]) -> Callable[[], bool]:
    """Whether it is so; what cannot be asked now is not."""

    def asked() -> bool:
        try:
            return bool(check())
        except Exception:  # noqa: BLE001 - a coordinator that moves
            return False

    return asked


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_group_goes_on_with_its_offsets_when_its_coordinator_goes(tmp_path: Path, is_killed: bool) -> None:
    async with KafkaCluster(tmp_path, 1, 2, 3, internal_partitions=3) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3), (2, 3, 1))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        async with reading(cluster, group, "t") as reader:
            for n in range(10):
                await cluster.produce("t", b"%d" % n, index=n % 2)
            await until(holds(lambda: offsets(cluster, group, "t") == {0: 5, 1: 5}), "all is read and committed")
            before = reader.assigned
            await (cluster.kill(first) if is_killed else cluster.leave(first))
            second = await cluster.moved(group, first)
            assert offsets(cluster, group, "t") == {0: 5, 1: 5}
            for n in range(10):
                await cluster.produce("t", b"%d" % n, index=n % 2)
            await until(holds(lambda: offsets(cluster, group, "t") == {0: 10, 1: 10}), "it goes on")
            assert second is cluster.coordinator(group)
            # The next coordinator knows the member: nobody need join again, and nothing is read twice.
            assert reader.assigned == before
        assert sorted(reader.seen) == [(partition, offset) for partition in range(2) for offset in range(10)]
        assert reader.fatal == []


async def test_a_group_is_served_by_each_coordinator_in_turn(tmp_path: Path) -> None:
    async with KafkaCluster(tmp_path, 1, 2, 3, internal_partitions=1) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        async with reading(cluster, "g", "t") as reader:
            end = 0
            for _ in range(3):
                await cluster.produce("t", b"v")
                end += 1
                await until(holds(lambda end=end: offsets(cluster, "g", "t") == {0: end}), f"{end} is committed")
                leader = cluster.record(OFFSETS_TOPIC).leader
                running = cluster.nodes[leader]
                await running.node.hand_over()
                await cluster.moved("g", running)
                assert offsets(cluster, "g", "t") == {0: end}
                await cluster.leave(running)
                await cluster.start(leader)
                await until(lambda: cluster.is_whole(OFFSETS_TOPIC) and cluster.is_whole("t"), "it is in sync again")
        assert reader.seen == [(0, offset) for offset in range(end)]
