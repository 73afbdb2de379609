"""How a read waits, where it starts, and what bounds it, as clients rely on it."""

import threading
import time

import confluent_kafka
import kafka
import pytest

from tests.support.clients import CONSUMERS, PRODUCERS, Record, run_kcat
from tests.support.waiting import eventually


def test_a_waiting_reader_is_woken_by_an_append(bootstrap, new_topic) -> None:
    topic = new_topic()
    # The reader is content to wait for 30 s: only an append can wake it within the test's bound.
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.wait.max.ms": 30_000, "fetch.min.bytes": 1,
         "socket.timeout.ms": 60_000}
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        assert consumer.poll(1.0) is None
        started = time.monotonic()
        PRODUCERS["confluent"](bootstrap, topic, [Record(b"wake up")])
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"wake up"
        assert time.monotonic() - started < 20
    finally:
        consumer.close()


def test_a_read_of_nothing_new_comes_back_when_its_time_is_up(bootstrap, new_topic) -> None:
    topic = new_topic()
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=100)
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    try:
        assert consumer.poll(timeout_ms=500) == {}
        assert consumer.position(where) == 0
    finally:
        consumer.close()


def test_a_reader_that_allows_one_byte_still_gets_a_whole_batch(bootstrap, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"x" * 5000)] * 10)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, max_partition_fetch_bytes=1, fetch_max_bytes=1
    )
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek(where, 0)
    read: list[int] = []
    try:

        def more() -> bool:
            for messages in consumer.poll(timeout_ms=200).values():
                read.extend(message.offset for message in messages)
            return len(read) >= 10

        eventually(more)
    finally:
        consumer.close()
    assert read == list(range(10))


def test_a_reader_of_many_partitions_gets_something_of_each(bootstrap, new_topic) -> None:
    topic = new_topic(partitions=20)
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"x" * 1000, partition=n % 20) for n in range(2000)])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.max.bytes": 20_000,
                                         "message.max.bytes": 20_000})  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(20)])
    read: set[tuple[int, int]] = set()
    try:

        def more() -> bool:
            read.update((m.partition(), m.offset()) for m in consumer.consume(1000, timeout=0.2))
            return len(read) == 2000

        eventually(more, what="every record of every partition")
    finally:
        consumer.close()


def test_the_ends_of_a_partition_are_known(bootstrap, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")] * 7)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20) == (0, 7)
    finally:
        consumer.close()


def test_an_offset_beyond_the_end_is_an_error_or_a_reset_as_the_client_wants(bootstrap, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")] * 3)
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused"}

    strict = confluent_kafka.Consumer({**settings, "auto.offset.reset": "error"})
    strict.assign([confluent_kafka.TopicPartition(topic, 0, 1000)])
    message = strict.poll(20)
    strict.close()
    assert message is not None
    assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET

    lenient = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    lenient.assign([confluent_kafka.TopicPartition(topic, 0, 1000)])
    message = lenient.poll(20)
    lenient.close()
    assert message is not None
    assert (message.error(), message.offset()) == (None, 0)


def test_kcat_reads_the_last_records_and_stops_at_the_end(kcat, bootstrap, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"%d" % n) for n in range(10)])
    assert run_kcat("-C", "-q", "-e", "-b", bootstrap, "-t", topic, "-o", "-3").split() == [b"7", b"8", b"9"]
    assert len(run_kcat("-C", "-q", "-e", "-b", bootstrap, "-t", topic, "-o", "beginning").split()) == 10


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement_is_written(bootstrap, new_topic, acks) -> None:
    topic = new_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": acks})
    for n in range(100):
        producer.produce(topic, b"%d" % n, partition=0)
    assert producer.flush(20) == 0
    assert [r.value for r in CONSUMERS["confluent"](bootstrap, topic, 100)] == [b"%d" % n for n in range(100)]


def test_many_producers_at_once_lose_nothing(bootstrap, new_topic) -> None:
    topic = new_topic(partitions=2)
    failures: list[BaseException] = []

    def produce(number: int) -> None:
        try:
            sent = [Record(b"%d-%d" % (number, n), partition=n % 2) for n in range(500)]
            PRODUCERS["confluent"](bootstrap, topic, sent, idempotent=True)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []

    for partition in range(2):
        got = [r.value or b"" for r in CONSUMERS["confluent"](bootstrap, topic, 1500, partition=partition)]
        for number in range(6):
            mine = [int(value.partition(b"-")[2]) for value in got if value.startswith(b"%d-" % number)]
            assert mine == list(range(partition, 500, 2))


def test_a_null_key_is_refused_on_a_compacted_topic(bootstrap, new_topic) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})
    codes: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"no key", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    assert producer.flush(20) == 0
    assert codes == [confluent_kafka.KafkaError.INVALID_RECORD]
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"keyed", b"k")])
    assert [r.value for r in CONSUMERS["confluent"](bootstrap, topic, 1)] == [b"keyed"]
