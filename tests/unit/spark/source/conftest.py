"""The source without Spark around it: a reader is asked what Spark would ask it, on a real broker."""

import uuid

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.spark.connections import drop_all
from penstock.spark.schema import RECORDS, RECORDS_WITH_HEADERS
from penstock.spark.source.table import RecordsTable


@pytest.fixture
def cluster(penstock_broker):
    with Cluster(penstock_broker.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster):
    return Admin(cluster)


@pytest.fixture
def topic(admin):
    """A new, empty topic of two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    # Records of long ago stay, whatever else runs at the same time.
    admin.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
    return name


@pytest.fixture
def fill(cluster):
    """``fill(topic, 10, 4)``: this many records to partition 0, 1, ...; their values contain the positions."""

    def send(topic, *counts, timestamp_ms=None, **more) -> None:
        with Producer(cluster, **more) as producer:
            for partition, count in enumerate(counts):
                for index in range(count):
                    at = None if timestamp_ms is None else timestamp_ms + index
                    producer.send(topic, b"%d-%d" % (partition, index), partition=partition, timestamp_ms=at)

    return send


@pytest.fixture
def options(penstock_broker, topic):
    given = {
        "kafka.bootstrap.servers": penstock_broker.bootstrap,
        "subscribe": topic,
        "fetchOffset.retryIntervalMs": "1",
        "kafkaConsumer.pollTimeoutMs": "5000",
    }
    yield given
    drop_all()


@pytest.fixture
def reader(options):
    def make(schema=None, **more):
        given = {**options, **more}
        if "assign" in more or "subscribePattern" in more:
            del given["subscribe"]
        headers = RECORDS_WITH_HEADERS if more.get("includeHeaders") == "true" else RECORDS
        return RecordsTable().reader(given, schema or headers)

    return make


@pytest.fixture
def rows(reader):
    """``rows(startingOffsets="earliest")``: what a batch query reads, as dictionaries."""

    def read(schema=None, **more):
        made = reader(schema, **more)
        return taken(made, made.partitions())

    return read


@pytest.fixture
def stream(options):
    """``stream(startingOffsets="earliest")``: the reader of a stream."""

    def make(**more):
        given = {**options, **more}
        if "subscribePattern" in more:
            del given["subscribe"]
        return RecordsTable().stream_reader(given, RECORDS)

    return make


def taken(reader, parts):
    """Every record of the tasks."""
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
