"""Exactly-once sinks on a real broker: staged by our client or anybody's, committed over HTTP, seen by every reader once."""

import itertools
import time

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.client import (
    Admin,
    BatchSender,
    BrokerRefused,
    Cluster,
    Consumer,
    NoHttpListener,
    RequestRefused,
    SinkClient,
    StagedPart,
    http_addresses,
)
from penstock.records.batch import Compression
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.testing.process import BrokerProcess
from tests.support.waiting import eventually

numbers = itertools.count()


@pytest.fixture
def bootstrap(broker_process):
    return broker_process.bootstrap


@pytest.fixture
def cluster(bootstrap):
    with Cluster(bootstrap, timeout_ms=20_000) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    name = f"sink-target-{next(numbers)}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


@pytest.fixture
def sinks(cluster):
    with SinkClient(http_addresses(cluster)) as sinks:
        yield sinks


@pytest.fixture
def opened(sinks):
    return sinks.open(f"query-{next(numbers)}.0")


def batch(*values: bytes, compression: Compression = Compression.NONE) -> bytearray:
    now_ms = int(time.time() * 1000)
    return build_batch([Record(n, now_ms, b"k", value) for n, value in enumerate(values)], compression=compression)


def read(bootstrap: str, topic: str, partition: int, count: int) -> list[bytes]:
    """What a client of others reads, with its defaults but for where it starts."""
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": "read_uncommitted"}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        return [record.value() for record in consumer.consume(count + 1, timeout=1.0)]
    finally:
        consumer.close()


def test_the_broker_says_where_its_http_listener_is(broker_process, cluster) -> None:
    assert http_addresses(cluster) == f"http://{broker_process.addresses['http']}"


def test_a_broker_without_http_says_so(penstock_broker) -> None:
    with Cluster(penstock_broker.bootstrap) as cluster, pytest.raises(NoHttpListener, match="--http"):
        http_addresses(cluster)


def test_what_is_staged_is_seen_when_it_is_committed_and_not_before(bootstrap, cluster, topic, sinks, opened) -> None:
    sender = BatchSender(cluster)
    values = [[b"%d.%d" % (number, n) for n in range(3)] for number in range(8)]
    for number, codec in zip(range(8), itertools.cycle(Compression), strict=False):
        sender.send(opened.staging_topic, 0, batch(*values[number], compression=codec), 3)
    staged = [(0, each.base_offset, each.record_count) for each in sender.flush()]
    assert read(bootstrap, topic, 0, 0) == read(bootstrap, topic, 1, 0) == []
    parts = [StagedPart(topic, 0, staged[::2]), StagedPart(topic, 1, staged[1::2])]
    assert sinks.commit(opened.sink, 0, parts, staging_id=opened.staging_id).records == 24
    assert sinks.commit(opened.sink, 0, parts, staging_id=opened.staging_id).already
    for partition in range(2):
        expected = [value for each in values[partition::2] for value in each]
        assert read(bootstrap, topic, partition, len(expected)) == expected
    assert sinks.status(opened.sink).staged_bytes == 0


def test_targets_that_open_every_batch_get_it_off_the_event_loop(bootstrap, cluster, sinks, opened) -> None:
    name = f"sink-opened-{next(numbers)}"
    Admin(cluster).create_topic(name, configs={"compression.type": "zstd", "cleanup.policy": "compact"})
    sender = BatchSender(cluster)
    for number in range(4):
        sender.send(opened.staging_topic, 0, batch(b"%d" % number, compression=Compression.GZIP), 1)
    staged = [(0, each.base_offset, each.record_count) for each in sender.flush()]
    assert sinks.commit(opened.sink, 0, [StagedPart(name, 0, staged)], staging_id=opened.staging_id).records == 4
    assert read(bootstrap, name, 0, 4) == [b"0", b"1", b"2", b"3"]
    now_ms = int(time.time() * 1000)
    sender.send(opened.staging_topic, 0, build_batch([Record(0, now_ms, None, b"no key")]), 1)
    (keyless,) = sender.flush()
    with pytest.raises(RequestRefused, match="key"):
        sinks.commit(opened.sink, 1, [StagedPart(name, 0, [(0, keyless.base_offset, 1)])], staging_id=opened.staging_id)


def test_a_foreign_producer_can_stage(bootstrap, topic, sinks, opened) -> None:
    placed = []
    producer = ConfluentProducer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50})
    for number in range(5):
        producer.produce(
            opened.staging_topic, b"%d" % number, partition=0, callback=lambda _, record: placed.append(record.offset())
        )
    assert producer.flush(20) == 0
    assert (
        sinks.commit(
            opened.sink, 0, [StagedPart(topic, 0, [(0, min(placed), len(placed))])], staging_id=opened.staging_id
        ).records
        == 5
    )
    assert read(bootstrap, topic, 0, 5) == [b"%d" % number for number in range(5)]


def test_nobody_reads_lists_or_changes_a_staging_topic(bootstrap, cluster, sinks, opened) -> None:
    sender = BatchSender(cluster)
    sender.send(opened.staging_topic, 0, batch(b"secret"), 1)
    sender.flush()
    assert opened.staging_topic not in [topic.name for topic in Admin(cluster).topics()]
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics
    assert opened.staging_topic not in listed
    consumer = Consumer(cluster)
    consumer.assign({(opened.staging_topic, 0): 0})
    with pytest.raises(BrokerRefused, match="INVALID_TOPIC"):
        list(consumer.poll(timeout_ms=1000))
    admin = Admin(cluster)
    for refused in (
        lambda: admin.delete_topic(opened.staging_topic),
        lambda: admin.alter_configs(opened.staging_topic, {"retention.ms": "1"}),
        lambda: admin.add_partitions(opened.staging_topic, 2),
        lambda: admin.create_topic("__staging.mine"),
    ):
        with pytest.raises(BrokerRefused):
            refused()
    sinks.delete(opened.sink)


def test_a_sink_outlives_the_broker(broker_process, topic, sinks, opened) -> None:
    with Cluster(broker_process.bootstrap) as cluster:
        sender = BatchSender(cluster)
        sender.send(opened.staging_topic, 0, batch(b"1"), 1)
        (first,) = sender.flush()
    sinks.commit(opened.sink, 3, [StagedPart(topic, 0, [(0, first.base_offset, 1)])], staging_id=opened.staging_id)
    broker_process.restart()
    assert sinks.open(opened.sink).last_batch_id == 3
    assert sinks.commit(
        opened.sink, 3, [StagedPart(topic, 0, [(0, first.base_offset, 1)])], staging_id=opened.staging_id
    ).already
    with pytest.raises(RequestRefused, match="not staged"):
        sinks.commit(opened.sink, 4, [StagedPart(topic, 0, [(0, first.base_offset, 1)])], staging_id=opened.staging_id)
    assert read(broker_process.bootstrap, topic, 0, 1) == [b"1"]


def test_a_sink_that_nobody_uses_is_forgotten_by_the_clock_alone(tmp_path) -> None:
    with (
        BrokerProcess(tmp_path / "data", {"sinks.remember_ms": 1_000}, http="127.0.0.1:0") as broker,
        SinkClient(broker.addresses["http"]) as sinks,
    ):
        opened = sinks.open("idle")
        sinks.commit("idle", 3, [], staging_id=opened.staging_id)
        eventually(lambda: sinks.list() == [], what="the sink is forgotten")
        again = sinks.open("idle")
        assert again.last_batch_id is None
        assert again.staging_id != opened.staging_id
        with pytest.raises(RequestRefused, match="stage the batch again"):
            sinks.commit("idle", 4, [], staging_id=opened.staging_id)
