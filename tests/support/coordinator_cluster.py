"""Nodes of a cluster in one process, and what producers with keys and sinks do with them. What a node asks of others can be disturbed."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.core.broker import Broker
from penstock.core.partitions.reading import read_from
from penstock.core.publish import NewRecord, Placed
from penstock.core.topics.names import IDEMPOTENCY_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.operations.sinks import CommitSink, CommittedBatch, OpenedSink, SinkPart
from penstock.types import Acks
from tests.support.cluster_nodes import SECONDS_MAX, Running, until
from tests.support.queue_cluster import CALLER, QueueCluster

AGAIN = frozenset(
    {
        Reason.NOT_COORDINATOR,
        Reason.COORDINATOR_NOT_AVAILABLE,
        Reason.COORDINATOR_LOAD_IN_PROGRESS,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.NOT_ENOUGH_REPLICAS,
        Reason.LINK_LOST,
        Reason.STORAGE_ERROR,
        Reason.SHUTTING_DOWN,
    }
)
"""After which a client comes again."""


class Disturbed:
    """A node's way to others, in which a test may stand: ``before`` may keep a call from being made, ``after`` its answer from coming."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.before: Callable[[str, Callable[[Any], None]], bool] = lambda _call, _done: True
        self.after: Callable[[str, Any, Callable[[Any], None]], None] = lambda _call, answer, done: done(answer)

    @property
    def is_waiting(self) -> object:
        return self._real.is_waiting

    def holds(self, topic: Topic, index: int) -> bool:
        return self._real.holds(topic, index)

    def produce(self, topic: Topic, index: int, batch: bytearray, acks: Acks, done: Any) -> None:
        if self.before("produce", done):
            self._real.produce(topic, index, batch, acks, lambda answer: self.after("produce", answer, done))

    def append_once(self, topic: Topic, index: int, batch: bytearray, header: str, search_from: int, done: Any) -> None:
        if self.before("append_once", done):
            answered = lambda answer: self.after("append_once", answer, done)  # noqa: E731
            self._real.append_once(topic, index, batch, header, search_from, answered)

    def partition_status(self, topic: Topic, index: int, done: Any, *producer: Any) -> None:
        if self.before("standing", done):
            self._real.partition_status(topic, index, lambda answer: self.after("standing", answer, done), *producer)

    def committed(self, offsets_partition: int, group: Any, key: Any, done: Any) -> None:
        if self.before("committed", done):
            answered = lambda answer: self.after("committed", answer, done)  # noqa: E731
            self._real.committed(offsets_partition, group, key, answered)


class CoordinatorCluster(QueueCluster):
    """Keys and sinks."""

    async def start(self, node_id: int, before: Callable[[Broker], None] = lambda _: None) -> Running:
        running = await super().start(node_id, before)
        running.broker.peers = Disturbed(running.broker.peers)  # type: ignore[assignment]
        return running

    def disturb(self, running: Running) -> Disturbed:
        peers = running.broker.peers
        assert isinstance(peers, Disturbed)
        return peers

    async def ready(self) -> None:
        """Return when everything has a coordinator that serves it."""
        await super().ready()
        await until(lambda: all(self._serves_all(running) for running in self.up), "keys and sinks are served")

    def _serves_all(self, running: Running) -> bool:
        keys, sinks = running.broker.idempotency, running.broker.sinks
        topics = running.broker.topics
        leads = [
            record.leader == running.broker.node_id for record in topics.partitions(topics.require(IDEMPOTENCY_TOPIC))
        ]
        try:
            is_sinks_node = running.cluster.coordinators.sinks_node() == running.broker.node_id
        except PenstockError:
            return False
        return all(keys.family.serves(index) for index, led in enumerate(leads) if led) and (
            sinks.family.serves(0) or not is_sinks_node
        )

    # Keys.

    async def topic_of_keys(self, running: Running, *replicas: tuple[int, ...], **configs: str) -> Topic:
        """A topic whose keys this node looks after."""
        for n in range(1000):
            topic = await self.create(f"keyed-{n}", *replicas, **configs)
            if running.cluster.coordinators.keys_node(topic) == running.broker.node_id:
                await self._known(topic.name)
                return topic
        raise AssertionError("no topic has its keys there")

    async def _known(self, name: str) -> None:
        await until(lambda: all(each.broker.topics.get(name) for each in self.up), f"all know {name}")

    async def send_once(
        self, running: Running, topic: Topic, key: str, value: bytes = b"v", *, tenant: str = "", partition: int = 0
    ) -> tuple[Placed, bool]:
        """One try, on one node."""
        told: asyncio.Future[tuple[Placed | PenstockError, bool]] = asyncio.get_running_loop().create_future()
        running.broker.idempotency.publish_once(
            CALLER,
            topic.name,
            NewRecord(None, value, partition=partition),
            Acks.ALL,
            tenant,
            key,
            lambda result, duplicate: told.set_result((result, duplicate)),
        )
        async with asyncio.timeout(SECONDS_MAX):
            placed, duplicate = await told
        if isinstance(placed, PenstockError):
            raise placed
        return placed, duplicate

    async def send(self, topic: Topic, key: str, value: bytes = b"v", **options: Any) -> tuple[Placed, bool]:
        """As a client: to whoever looks after the keys, again until it is told the place."""
        answers: list[tuple[Placed, bool]] = []

        async def one_try() -> None:
            running = self.nodes[self.any.cluster.coordinators.keys_node(topic)]
            if not running.ended:
                answers.append(await self.send_once(running, topic, key, value, **options))

        await self._try(one_try, answers)
        return answers[0]

    @staticmethod
    async def _try(one_try: Callable[[], Any], answers: list[Any]) -> None:
        last = ""

        async def again() -> bool:
            nonlocal last
            try:
                await one_try()
            except PenstockError as error:
                if error.reason not in AGAIN:
                    raise
                last = error.text
            return bool(answers)

        async with asyncio.timeout(SECONDS_MAX):
            while not await again():
                await until(_once(), last)

    # Sinks.

    @property
    def sinks_node(self) -> Running:
        running = self.nodes[self.any.cluster.coordinators.sinks_node()]
        if running.ended:
            raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE)
        return running

    async def open_sink(self, name: str) -> OpenedSink:
        answers: list[OpenedSink] = []

        async def one_try() -> None:
            told: asyncio.Future[OpenedSink | PenstockError] = asyncio.get_running_loop().create_future()
            self.sinks_node.broker.sinks.open(name, partial(_tell, told))
            opened = await told
            if isinstance(opened, PenstockError):
                raise opened
            answers.append(opened)

        await self._try(one_try, answers)
        return answers[0]

    async def stage(self, opened: OpenedSink, *values: bytes) -> tuple[int, int, int]:
        """One batch."""
        await self._known(opened.staging_topic)
        return 0, await self.produce(opened.staging_topic, *values), len(values)

    async def produce(self, topic: str, *values: bytes, index: int = 0) -> int:  # type: ignore[override]
        """One batch of records, as acks=all."""
        if len(values) == 1:
            return await super().produce(topic, values[0], index)
        return await self._produce_all(topic, values, index)

    async def _produce_all(self, topic: str, values: Sequence[bytes], index: int) -> int:
        from penstock.records.builder import BatchBuilder

        answers: list[int] = []

        async def one_try() -> None:
            leader = self.nodes[self.record(topic, index).leader]
            partition = leader.broker.partition(topic, index)
            partition.check_in_sync()
            builder, now_ms = BatchBuilder(), leader.broker.clock.now_ms()
            for value in values:
                builder.add(now_ms, b"key", value)
            done: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
            offset = partition.append(builder.build(), now_ms)
            partition.when_committed(offset + len(values), done.set_result)
            reason = await done
            if reason is not None:
                raise PenstockError(reason)
            answers.append(offset)

        await self._try(one_try, answers)
        return answers[0]

    def begin_commit(
        self, running: Running, name: str, batch_id: int, *parts: tuple[str, int, Sequence[tuple[int, int, int]]]
    ) -> "asyncio.Future[CommittedBatch | PenstockError]":
        """On one node; the future has its answer."""
        told: asyncio.Future[CommittedBatch | PenstockError] = asyncio.get_running_loop().create_future()
        asked = CommitSink(name, batch_id, [SinkPart(topic, index, list(staged)) for topic, index, staged in parts])
        running.broker.sinks.commit(CALLER, asked, partial(_tell, told))
        return told

    async def commit_sink(
        self, name: str, batch_id: int, *parts: tuple[str, int, Sequence[tuple[int, int, int]]]
    ) -> CommittedBatch:
        """As a client: to whoever speaks for sinks, again until it is told."""
        answers: list[CommittedBatch] = []

        async def one_try() -> None:
            committed = await self.begin_commit(self.sinks_node, name, batch_id, *parts)
            if isinstance(committed, PenstockError):
                raise committed
            answers.append(committed)

        await self._try(one_try, answers)
        return answers[0]

    # What readers see.

    def values(self, topic: str, index: int = 0) -> list[bytes]:  # type: ignore[override]
        """All committed records, by the leader."""
        partition = self.nodes[self.record(topic, index).leader].broker.partition(topic, index)
        found, offset = list[bytes](), partition.log.start_offset
        while offset < partition.high_watermark:
            records = read_from(partition, offset, 1000, 1_000_000)
            found += [record.value or b"" for record in records]
            offset = records[-1].offset + 1
        return found


def _tell(told: "asyncio.Future[Any]", answer: Any) -> None:
    """Unless nobody waits any more."""
    if not told.done():
        told.set_result(answer)


def _once() -> Callable[[], bool]:
    """True when it is asked for the second time: a moment later."""
    asked = [False]

    def second() -> bool:
        was, asked[0] = asked[0], True
        return was

    return second
