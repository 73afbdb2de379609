"""Records in and out, on a real broker, and with librdkafka on the other side."""

import confluent_kafka
import pytest

from penstock.client import Acks, At, BrokerRefused, Cluster, Consumer, Producer, list_offsets, watermarks
from penstock.records.batch import Compression
from penstock.types import TimestampType


def read_all(cluster, topic, count, partitions=2):
    consumer = Consumer(cluster)
    places = [(topic, partition) for partition in range(partitions)]
    consumer.assign({place: bounds[0] for place, bounds in watermarks(cluster, places).items()})
    records = []
    while len(records) < count:
        some = consumer.poll(10_000)
        assert some, f"{len(records)} of {count} records came"
        records += some
    return records


def test_a_record_comes_back_as_it_was_sent(cluster, topic) -> None:
    headers = [("a", b"1"), ("a", None), ("ü", b"\xff")]
    with Producer(cluster) as producer:
        producer.send(topic, b"value", key=b"key", partition=1, headers=headers, timestamp_ms=1234)
        producer.send(topic, None, key=b"", partition=1, timestamp_ms=1235)
    first, second = read_all(cluster, topic, 2)
    assert first == (topic, 1, 0, 1234, TimestampType.CREATE_TIME, b"key", b"value", tuple(headers))
    assert (second.offset, second.key, second.value, second.headers) == (1, b"", None, ())


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("acks", Acks)
def test_every_compression_and_every_acknowledgement(cluster, topic, compression, acks) -> None:
    values = [b"%d " % number * 20 for number in range(5_000)]
    with Producer(cluster, acks=acks, compression=compression, batch_bytes=50_000) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    assert [record.value for record in read_all(cluster, topic, len(values))] == values


def test_librdkafka_reads_what_we_write_and_finds_keys_where_it_would_put_them(cluster, topic, penstock_broker) -> None:
    keys = [b"key-%d" % number for number in range(50)]
    with Producer(cluster, compression=Compression.SNAPPY) as producer:
        ours = {key: producer.send(topic, b"ours", key=key) for key in keys}
    theirs = {}
    librdkafka = confluent_kafka.Producer(
        {"bootstrap.servers": penstock_broker.bootstrap, "partitioner": "murmur2_random"}
    )
    for key in keys:
        librdkafka.produce(topic, b"theirs", key=key, on_delivery=lambda _, m: theirs.update({m.key(): m.partition()}))
    assert librdkafka.flush(20) == 0
    assert ours == theirs
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": penstock_broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    messages = consumer.consume(100, timeout=20)
    consumer.close()
    assert sorted(message.key() for message in messages if message.value() == b"ours") == sorted(keys)
    assert len(read_all(cluster, topic, 100)) == 100


def test_moments_are_looked_up(cluster, topic) -> None:
    with Producer(cluster) as producer:
        for moment in (1000, 2000, 3000):
            producer.send(topic, b"v", partition=0, timestamp_ms=moment)
            producer.flush()
    place = (topic, 0)
    asked = {moment: list_offsets(cluster, {place: moment})[place] for moment in (0, 1000, 1001, 3000, 3001)}
    assert {moment: found.offset for moment, found in asked.items()} == {0: 0, 1000: 0, 1001: 1, 3000: 2, 3001: -1}
    assert asked[1001].timestamp_ms == 2000
    assert list_offsets(cluster, {place: At.MAX_TIMESTAMP})[place].offset == 2


def test_a_topic_is_made_by_its_first_record(cluster) -> None:
    assert Producer(cluster).produce("records-made-on-demand", b"x") == (0, 0)


def test_a_record_that_is_too_large_is_refused(cluster, topic) -> None:
    with pytest.raises(BrokerRefused) as caught:
        Producer(cluster).produce(topic, bytes(2_000_000))
    assert caught.value.name == "MESSAGE_TOO_LARGE"


def test_a_record_without_a_key_on_a_compacted_topic_is_refused(cluster, topic) -> None:
    from penstock.client import Admin

    Admin(cluster).alter_configs(topic, {"cleanup.policy": "compact"})
    with pytest.raises(BrokerRefused) as caught:
        Producer(cluster).produce(topic, b"x")
    assert caught.value.name == "INVALID_RECORD"


def test_a_producer_and_a_consumer_live_through_a_restart(penstock_broker_factory) -> None:
    broker = penstock_broker_factory()
    with Cluster(broker.bootstrap, timeout_ms=20_000) as cluster:
        producer, consumer = Producer(cluster), Consumer(cluster)
        producer.produce("restarted", b"before")
        consumer.assign({("restarted", 0): 0})
        assert [record.value for record in consumer.poll(10_000)] == [b"before"]
        broker.restart()
        assert producer.produce("restarted", b"after") == (0, 1)
        assert [record.value for record in consumer.poll(10_000)] == [b"after"]
    broker.stop()


def test_a_poll_that_waits_is_woken_by_a_record(cluster, topic, penstock_broker) -> None:
    import threading

    found = []

    def wait() -> None:
        with Cluster(penstock_broker.bootstrap) as own:
            consumer = Consumer(own, wait_ms_max=20_000)
            consumer.assign({(topic, 0): 0})
            ready.set()
            found.extend(consumer.poll(20_000))

    ready = threading.Event()
    waiting = threading.Thread(target=wait)
    waiting.start()
    ready.wait(10)
    Producer(cluster).produce(topic, b"x", partition=0)
    waiting.join(15)
    assert [record.value for record in found] == [b"x"]
