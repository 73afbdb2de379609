"""Members of a consumer group, one thread each, because a member must poll to take part in a rebalance."""

import asyncio
import threading
from collections.abc import Mapping

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

SESSION_MS = 10_000
HEARTBEAT_MS = 200
COMMIT_MS = 100
KAFKA_PYTHON_POLL_MS = 500
"""Longer than a rebalance: a poll of kafka-python 3.0 that times out within one may never finish it."""
FINAL_ERRORS = {confluent_kafka.KafkaError._FATAL, confluent_kafka.KafkaError.FENCED_INSTANCE_ID}
POLL_SECONDS = 0.1


class Member:
    """One consumer that reads until it is closed. What it holds and has read may be looked at from outside."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, assignor: str, options: Mapping[str, object] | None = None
    ) -> None:
        self.bootstrap, self.topic, self.group, self.assignor = bootstrap, topic, group, assignor
        self.options = dict(options or {})
        self.partitions: frozenset[int] = frozenset()
        self.read: set[tuple[int, int]] = set()
        self.rebalances = 0
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the group (a static member stays in it) and end the thread."""
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the member did not close"

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self.partitions = frozenset()

    def _holds(self, partitions: frozenset[int]) -> None:
        if partitions != self.partitions:
            self.rebalances += 1
            self.partitions = partitions

    def run(self) -> None:
        """Consume until ``_stopping``, then close the client."""
        raise AssertionError("each client has its own")


class ConfluentMember(Member):
    ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")

    def run(self) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "partition.assignment.strategy": self.assignor,
            "session.timeout.ms": self.options.get("session_ms", SESSION_MS),
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": COMMIT_MS,
        }
        if "instance_id" in self.options:
            settings["group.instance.id"] = self.options["instance_id"]
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self.topic])
        try:
            while not self._stopping.is_set():
                message = consumer.poll(POLL_SECONDS)
                self._holds(frozenset(where.partition for where in consumer.assignment()))
                if message is None:
                    continue
                if message.error() is None:
                    self.read.add((message.partition(), message.offset()))
                elif message.error().code() in FINAL_ERRORS:
                    raise confluent_kafka.KafkaException(message.error())
        finally:
            consumer.close()


class KafkaPythonMember(Member):
    ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
    CLASSES = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def run(self) -> None:
        settings: dict[str, object] = {}
        if "instance_id" in self.options:
            settings["group_instance_id"] = self.options["instance_id"]
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            partition_assignment_strategy=[self.CLASSES[self.assignor]],
            session_timeout_ms=self.options.get("session_ms", SESSION_MS),
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_MS,
            **settings,
        )
        try:
            while not self._stopping.is_set():
                polled = consumer.poll(timeout_ms=KAFKA_PYTHON_POLL_MS)
                self._holds(frozenset(where.partition for where in consumer.assignment()))
                for where, messages in polled.items():
                    self.read.update((where.partition, message.offset) for message in messages)
        finally:
            consumer.close()


class AiokafkaMember(Member):
    ASSIGNORS = ("range", "roundrobin", "sticky")
    CLASSES = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        settings: dict[str, object] = {}
        if "instance_id" in self.options:
            settings["group_instance_id"] = self.options["instance_id"]
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            partition_assignment_strategy=[self.CLASSES[self.assignor]],
            session_timeout_ms=self.options.get("session_ms", SESSION_MS),
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_MS,
            **settings,
        )
        await consumer.start()
        try:
            while not self._stopping.is_set():
                polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                self._holds(frozenset(where.partition for where in consumer.assignment()))
                for where, messages in polled.items():
                    self.read.update((where.partition, message.offset) for message in messages)
        finally:
            await consumer.stop()


MEMBERS: dict[str, type[Member]] = {
    "confluent": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
CLIENTS_AND_ASSIGNORS = [
    (client, assignor)
    for client, kind in MEMBERS.items()
    for assignor in kind.ASSIGNORS  # type: ignore[attr-defined]
]
