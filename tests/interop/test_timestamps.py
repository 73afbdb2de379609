"""Whose clock a timestamp is from, and finding offsets by time, with every client."""

import asyncio
import time

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import OffsetSpec

from tests.support.clients import CONSUMERS, PRODUCERS, PYTHON_CLIENTS, Record, run_kcat

BASE_MS = 1_700_000_000_000
KEPT = {"retention.ms": "-1"}
"""These times are long ago: retention would delete the records whenever the broker looks."""


@pytest.fixture
def timed_topic(bootstrap, new_topic):
    """Offsets 0 to 99, one a second from BASE_MS on, in several batches."""
    topic = new_topic(**KEPT)
    for first in range(0, 100, 25):
        sent = [Record(b"%d" % n, timestamp_ms=BASE_MS + 1000 * n) for n in range(first, first + 25)]
        PRODUCERS["confluent"](bootstrap, topic, sent)
    return topic


def offset_by_confluent(bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, timestamp_ms)], timeout=20)
    finally:
        consumer.close()
    assert found.error is None
    return found.offset if found.offset >= 0 else None


def offset_by_kafka_python(bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    where = kafka.TopicPartition(topic, 0)
    try:
        found = consumer.offsets_for_times({where: timestamp_ms})[where]
    finally:
        consumer.close()
    return None if found is None else found.offset


def offset_by_aiokafka(bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
    async def run() -> int | None:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None) as consumer:
            where = aiokafka.TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
            return None if found is None else found.offset

    return asyncio.run(run())


LOOKUPS = {
    "confluent": offset_by_confluent,
    "kafka-python": offset_by_kafka_python,
    "aiokafka": offset_by_aiokafka,
}


@pytest.mark.parametrize("client", LOOKUPS)
@pytest.mark.parametrize(
    ("after_ms", "offset"),
    [(-1, 0), (0, 0), (1, 1), (1000, 1), (42_000, 42), (42_001, 43), (99_000, 99)],
)
def test_the_first_record_at_or_after_a_time_is_found(bootstrap, timed_topic, client, after_ms, offset) -> None:
    assert LOOKUPS[client](bootstrap, timed_topic, BASE_MS + after_ms) == offset


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_a_time_after_the_last_record_finds_nothing(bootstrap, timed_topic, client) -> None:
    assert LOOKUPS[client](bootstrap, timed_topic, BASE_MS + 99_001) is None


def test_kcat_queries_and_reads_by_time(kcat, bootstrap, timed_topic) -> None:
    out = run_kcat("-Q", "-b", bootstrap, "-t", f"{timed_topic}:0:{BASE_MS + 42_000}")
    assert out.split() == [timed_topic.encode(), b"[0]", b"offset", b"42"]
    out = run_kcat("-C", "-q", "-e", "-b", bootstrap, "-t", timed_topic, "-o", f"s@{BASE_MS + 97_000}")
    assert out.split() == [b"97", b"98", b"99"]


def test_the_newest_timestamp_is_found_wherever_it_stands(bootstrap, admin, new_topic) -> None:
    topic = new_topic(**KEPT)
    sent = [Record(b"v", timestamp_ms=BASE_MS + offset) for offset in (10, 50, 20)]
    PRODUCERS["confluent"](bootstrap, topic, sent)
    where = confluent_kafka.TopicPartition(topic, 0)
    found = admin.list_offsets({where: OffsetSpec.max_timestamp()})[where].result(20)
    assert (found.offset, found.timestamp) == (1, BASE_MS + 50)


@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_create_time_is_the_producers(request, bootstrap, new_topic, producer, consumer) -> None:
    if consumer == "kcat":
        request.getfixturevalue("kcat")
    topic = new_topic(**KEPT)
    sent = [Record(b"v", timestamp_ms=BASE_MS), Record(b"w", timestamp_ms=BASE_MS + 7)]
    PRODUCERS[producer](bootstrap, topic, sent)
    assert [r.timestamp_ms for r in CONSUMERS[consumer](bootstrap, topic, 2)] == [BASE_MS, BASE_MS + 7]


@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_log_append_time_is_the_brokers(bootstrap, new_topic, producer, compression) -> None:
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    PRODUCERS[producer](bootstrap, topic, [Record(b"v", timestamp_ms=BASE_MS)] * 3, compression=compression)
    after = int(time.time() * 1000)

    for consumer in PYTHON_CLIENTS:
        stamps = [r.timestamp_ms for r in CONSUMERS[consumer](bootstrap, topic, 3)]
        assert all(before <= stamp <= after for stamp in stamps), (consumer, before, stamps, after)


def test_clients_are_told_whose_clock_it_was(bootstrap, new_topic) -> None:
    for config, expected in (("CreateTime", 1), ("LogAppendTime", 2)):
        topic = new_topic(**{"message.timestamp.type": config})
        PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")])
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = consumer.poll(20)
        consumer.close()
        assert message is not None
        assert message.timestamp()[0] == expected
