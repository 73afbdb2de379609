"""Transactions are not there yet: every client is told so at once, by an error and not by waiting."""

import asyncio
import time

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest

from tests.support.clients import CONSUMERS, PRODUCERS, Record, run_kcat

# Clients wait for 30 to 60 s for a coordinator that does not come; an answer takes milliseconds.
SECONDS_MAX = 10.0

pytestmark = pytest.mark.usefixtures("is_penstock")


@pytest.fixture
def answered_at_once():
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took < SECONDS_MAX, f"the refusal took {took:.1f} s: the client was left to wait"


def test_confluent_is_refused_at_once(bootstrap, unique, answered_at_once) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("tx")})
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.init_transactions(30)
    error = refused.value.args[0]
    assert error.code() != confluent_kafka.KafkaError._TIMED_OUT, error
    assert not error.retriable(), error


def test_kafka_python_is_refused_at_once(bootstrap, unique, answered_at_once) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique("tx"), max_block_ms=30_000)
    try:
        with pytest.raises(kafka.errors.KafkaError) as refused:
            producer.init_transactions()
        assert not isinstance(refused.value, kafka.errors.KafkaTimeoutError), refused.value
    finally:
        producer.close(timeout=1)


async def test_aiokafka_is_refused_at_once(bootstrap, unique, answered_at_once) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique("tx"))
    with pytest.raises(aiokafka.errors.KafkaError):
        async with asyncio.timeout(30):
            await producer.start()
    await producer.stop()


def test_kcat_is_refused_at_once(kcat, bootstrap, unique, answered_at_once) -> None:
    with pytest.raises(AssertionError):
        run_kcat("-P", "-b", bootstrap, "-t", unique("t"), "-X", f"transactional.id={unique('tx')}", stdin=b"v\n")


def test_a_reader_of_committed_records_reads_plain_ones(bootstrap, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")])
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed")
    try:
        where = kafka.TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        assert consumer.end_offsets([where]) == {where: 1}
        (messages,) = consumer.poll(timeout_ms=20_000).values()
        assert [m.value for m in messages] == [b"v"]
    finally:
        consumer.close()
    assert CONSUMERS["confluent"](bootstrap, topic, 1)
