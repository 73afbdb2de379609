"""Read your writes with acks=1, which the Python clients use unless told otherwise: what follows an acknowledged record counts it.

The reader has a connection of its own, and asks as soon as the producer has its answer. Each round is a new chance for the broker to answer
without the record.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.limits import SETTLE_MS_MAX
from tests.support.local_cluster import LocalCluster

ROUNDS = 25
ANSWER_SECONDS_MAX = 60
BASE_MS = 1_700_000_000_000
KEPT = {"retention.ms": "-1"}
"""These times are long ago: retention would delete the records whenever the broker looks."""


class Pair(ABC):
    """A producer with acks=1, and a reader, of one client. Records of round n have the time ``BASE_MS + n``."""

    @abstractmethod
    def produce(self, n: int) -> int:
        """One record; its offset, once it is acknowledged."""

    @abstractmethod
    def end(self) -> int:
        """Where the partition ends."""

    @abstractmethod
    def by_time(self, n: int) -> int | None:
        """The offset of the first record of round ``n``, or of a later one."""

    @abstractmethod
    def delete_all(self) -> int:
        """Delete all records; where the partition begins then."""

    @abstractmethod
    def last(self) -> int:
        """The offset of the last record: look for the end, then read the record before it."""

    @abstractmethod
    def close(self) -> None: ...


class ConfluentPair(Pair):
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        servers = {"bootstrap.servers": bootstrap}
        self._producer = confluent_kafka.Producer({**servers, "acks": 1, "linger.ms": 0})
        self._consumer = confluent_kafka.Consumer(
            {**servers, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
            | {"fetch.wait.max.ms": 0}
        )
        self._admin = AdminClient(servers)

    def _place(self, offset: int = confluent_kafka.OFFSET_END) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self._topic, 0, offset)

    def produce(self, n: int) -> int:
        told: list[Any] = []
        self._producer.produce(
            self._topic, b"%d" % n, partition=0, timestamp=BASE_MS + n, on_delivery=lambda *answer: told.append(answer)
        )
        self._producer.flush(ANSWER_SECONDS_MAX)
        ((error, message),) = told
        assert error is None
        return int(message.offset())

    def end(self) -> int:
        return int(self._consumer.get_watermark_offsets(self._place(), timeout=ANSWER_SECONDS_MAX, cached=False)[1])

    def by_time(self, n: int) -> int | None:
        (found,) = self._consumer.offsets_for_times([self._place(BASE_MS + n)], timeout=ANSWER_SECONDS_MAX)
        return found.offset if found.offset >= 0 else None

    def delete_all(self) -> int:
        (answer,) = self._admin.delete_records([self._place()]).values()
        return int(answer.result(ANSWER_SECONDS_MAX).low_watermark)

    def last(self) -> int:
        return self.fetch(self.end() - 1)

    def fetch(self, offset: int) -> int:
        """The offset of what the first fetch from ``offset`` has; -1 when it is empty."""
        self._consumer.assign([self._place(offset)])
        message = self._consumer.poll(ANSWER_SECONDS_MAX)
        assert message is not None
        error = message.error()
        if error is None:
            return int(message.offset())
        assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
        return -1

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonPair(Pair):
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._place = kafka.TopicPartition(topic, 0)
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks=1, enable_idempotence=False)
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=1)
        self._consumer.assign([self._place])
        self._admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def produce(self, n: int) -> int:
        sent = self._producer.send(self._place.topic, b"%d" % n, partition=0, timestamp_ms=BASE_MS + n)
        return int(sent.get(ANSWER_SECONDS_MAX).offset)

    def end(self) -> int:
        return int(self._consumer.end_offsets([self._place])[self._place])

    def by_time(self, n: int) -> int | None:
        found = self._consumer.offsets_for_times({self._place: BASE_MS + n})[self._place]
        return None if found is None else found.offset

    def delete_all(self) -> int:
        self._admin.delete_records({self._place: -1})
        return int(self._consumer.beginning_offsets([self._place])[self._place])

    def last(self) -> int:
        self._consumer.seek(self._place, self.end() - 1)
        (record,) = self._consumer.poll(ANSWER_SECONDS_MAX * 1000)[self._place]
        return int(record.offset)

    def close(self) -> None:
        for part in (self._producer, self._consumer, self._admin):
            part.close()


class AiokafkaPair(Pair):
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._place = aiokafka.TopicPartition(topic, 0)
        self._runner = asyncio.Runner()
        self._run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> None:
        self._producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
        self._consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=1)
        self._admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await self._producer.start()
        await self._consumer.start()
        self._consumer.assign([self._place])
        await self._admin.start()

    def _run(self, coroutine: Any) -> Any:
        return self._runner.run(asyncio.wait_for(coroutine, ANSWER_SECONDS_MAX))

    def produce(self, n: int) -> int:
        sent = self._producer.send_and_wait(self._place.topic, b"%d" % n, partition=0, timestamp_ms=BASE_MS + n)
        return int(self._run(sent).offset)

    def end(self) -> int:
        return int(self._run(self._consumer.end_offsets([self._place]))[self._place])

    def by_time(self, n: int) -> int | None:
        found = self._run(self._consumer.offsets_for_times({self._place: BASE_MS + n}))[self._place]
        return None if found is None else found.offset

    def delete_all(self) -> int:
        whole = {self._place: aiokafka.admin.RecordsToDelete(before_offset=-1)}
        self._run(self._admin.delete_records(whole))
        return int(self._run(self._consumer.beginning_offsets([self._place]))[self._place])

    def last(self) -> int:
        self._consumer.seek(self._place, self.end() - 1)
        return int(self._run(self._consumer.getone(self._place)).offset)

    def close(self) -> None:
        for part in (self._producer, self._consumer):
            self._run(part.stop())
        self._run(self._admin.close())
        self._runner.close()


PAIRS: dict[str, type[Pair]] = {
    "confluent": ConfluentPair,
    "kafka-python": KafkaPythonPair,
    "aiokafka": AiokafkaPair,
}
ASKED: dict[str, Callable[[Pair, int], int | None]] = {
    # Each gives the offset of the record that was produced last.
    "end": lambda pair, _: pair.end() - 1,
    "time": lambda pair, n: pair.by_time(n),
    "delete": lambda pair, _: pair.delete_all() - 1,
    "last": lambda pair, _: pair.last(),
}


@contextmanager
def opened(client: Callable[[str, str], Pair], bootstrap: str, topic: str) -> Iterator[Any]:
    pair = client(bootstrap, topic)
    try:
        yield pair
    finally:
        pair.close()


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("client", PAIRS)
def test_an_answer_counts_the_record_that_was_acknowledged_before(
    bootstrap: str, new_topic: Callable[..., str], client: str, asked: str
) -> None:
    with opened(PAIRS[client], bootstrap, new_topic(**KEPT)) as pair:
        rounds = [(pair.produce(n), ASKED[asked](pair, n)) for n in range(ROUNDS)]
    assert rounds == [(n, n) for n in range(ROUNDS)]


def test_the_first_fetch_has_the_record_that_was_acknowledged_before(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    with opened(ConfluentPair, bootstrap, new_topic(**KEPT)) as pair:
        rounds = [(pair.produce(n), pair.fetch(n)) for n in range(ROUNDS)]
    assert rounds == [(n, n) for n in range(ROUNDS)]


async def test_the_first_fetch_has_all_records_that_were_acknowledged_before(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    place = aiokafka.TopicPartition(new_topic(**KEPT), 0)
    rounds = []
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1) as producer:
        for n in range(0, 3 * ROUNDS, 3):
            for _ in range(3):
                await producer.send_and_wait(place.topic, b"v", partition=0)
            # One that is there already would have begun to fetch before.
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None) as consumer:
                consumer.assign([place])
                consumer.seek(place, n)
                got = await consumer.getmany(place, timeout_ms=ANSWER_SECONDS_MAX * 1000)
                rounds.append([record.offset for record in got[place]])
    assert rounds == [[n, n + 1, n + 2] for n in range(0, 3 * ROUNDS, 3)]


@pytest.mark.parametrize("asked", ["end", "time", "delete"])
@pytest.mark.parametrize("client", PAIRS)
def test_an_answer_of_a_cluster_counts_the_record_that_was_acknowledged_before(
    three: LocalCluster, unique: Callable[[str], str], client: str, asked: str
) -> None:
    topic = unique("acknowledged")
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3, config=KEPT)])[topic].result(ANSWER_SECONDS_MAX)
    counted = 0
    with opened(PAIRS[client], three.bootstrap, topic) as pair:
        for n in range(ROUNDS):
            assert pair.produce(n) == n
            began = time.monotonic()
            answer = ASKED[asked](pair, n)
            waited_ms = (time.monotonic() - began) * 1000
            # Followers that a busy machine stops for so long are not waited for.
            assert answer == n or waited_ms >= SETTLE_MS_MAX
            counted += answer == n
    assert counted > 0
