"""``df.write.format("penstock")``: what arrives, and that a write is all or nothing."""

import datetime as dt
import time
import uuid

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructType

from penstock.client import Admin, RequestRefused
from penstock.client.discovery import http_addresses
from penstock.client.sinks import SinkClient
from penstock.records.partitioner import partition_for_key
from penstock.spark.sink.writers import ONE_OFF_REMEMBER_MS, batch_writer
from tests.spark.sinking import seen_in, values_in

pytestmark = pytest.mark.timeout(600)

HEADERS = "array<struct<key: string, value: binary>>"


@pytest.fixture
def write(bootstrap):
    def write(frame, **options) -> None:
        writer = frame.write.format("penstock").mode("append").option("kafka.bootstrap.servers", bootstrap)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save()

    return write


@pytest.fixture
def sinks(cluster):
    with SinkClient(http_addresses(cluster)) as client:
        yield client


def test_every_column_arrives(spark, write, bootstrap, topic) -> None:
    rows = [
        ("k1", "v1", [("h", b"1"), ("h", None), ("ö", b"")], 1),
        ("k1", "v2", [], 0),
        (None, None, None, 1),
        ("", "", None, 0),
    ]
    frame = spark.createDataFrame(rows, f"key string, value string, headers {HEADERS}, partition int").coalesce(1)
    write(frame, topic=topic, includeHeaders="true")
    found = [(record.partition, record.key, record.value, record.headers) for record in seen_in(bootstrap, topic)]
    assert found == [
        (0, b"k1", b"v2", ()),
        (0, b"", b"", ()),
        (1, b"k1", b"v1", (("h", b"1"), ("h", None), ("ö", b""))),
        (1, None, None, ()),
    ]


def test_keys_go_where_kafkas_clients_send_them_and_stay_in_order(spark, write, bootstrap, topic) -> None:
    frame = spark.range(5000).selectExpr("CAST(id % 17 AS STRING) AS key", "CAST(id AS STRING) AS value").coalesce(1)
    write(frame, topic=topic)
    found = seen_in(bootstrap, topic)
    assert len(found) == 5000
    numbers = {}
    for record in found:
        assert record.partition == partition_for_key(record.key, 2)
        numbers.setdefault(record.key, []).append(int(record.value))
    assert all(series == sorted(series) for series in numbers.values())


def test_rows_without_a_key_reach_every_partition(spark, write, bootstrap, topic) -> None:
    write(spark.range(20_000).selectExpr("repeat('x', 100) AS value"), topic=topic)
    found = seen_in(bootstrap, topic)
    counts = [sum(record.partition == partition for record in found) for partition in (0, 1)]
    assert sum(counts) == 20_000
    assert min(counts) > 5000


def test_the_topic_column_shares_out_and_the_option_wins_over_it(spark, write, bootstrap) -> None:
    one, two, three = (f"t-{uuid.uuid4().hex}" for _ in range(3))
    frame = spark.createDataFrame([(one, "1"), (two, "2"), (one, "3")], "topic string, value string")
    write(frame)
    assert values_in(bootstrap, one) == [b"1", b"3"]
    assert values_in(bootstrap, two) == [b"2"]
    write(frame, topic=three)
    assert values_in(bootstrap, three) == [b"1", b"2", b"3"]
    assert values_in(bootstrap, one) == [b"1", b"3"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_every_codec_is_read_by_a_kafka_client(spark, write, bootstrap, topic, codec, exactly_once) -> None:
    frame = spark.range(3000).selectExpr("CAST(id AS STRING) AS key", "repeat(CAST(id AS STRING), 20) AS value")
    write(frame, topic=topic, exactlyOnce=exactly_once, **{"kafka.compression.type": codec})
    assert values_in(bootstrap, topic) == sorted(b"%d" % number * 20 for number in range(3000))


def test_megabyte_records_arrive_whole(spark, write, bootstrap, topic) -> None:
    frame = spark.range(5).selectExpr("repeat(CAST(id AS STRING), 1000000) AS value")
    write(frame, topic=topic)
    assert values_in(bootstrap, topic) == [b"%d" % number * 1_000_000 for number in range(5)]


def test_a_record_that_the_topic_does_not_take_leaves_nothing_of_the_others(
    spark, write, bootstrap, topic, sinks
) -> None:
    before = {status.sink for status in sinks.list()}
    frame = spark.createDataFrame([("small",), ("x" * 1_100_000,)], "value string")
    with pytest.raises(PySparkException, match=r"max\.message\.bytes|too large|larger"):
        write(frame, topic=topic)
    assert seen_in(bootstrap, topic) == []
    assert {status.sink for status in sinks.list()} == before


def test_batches_fit_a_topic_that_takes_only_small_ones(spark, write, bootstrap, cluster, topic) -> None:
    Admin(cluster).alter_configs(topic, {"max.message.bytes": "20000"})
    write(spark.range(5000).selectExpr("CAST(id AS STRING) AS key", "repeat('y', 100) AS value"), topic=topic)
    assert len(seen_in(bootstrap, topic)) == 5000


@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_nothing_is_written_of_no_rows(spark, write, bootstrap, topic, exactly_once) -> None:
    empty = spark.createDataFrame([], "key string, value string")
    write(empty, topic=topic, exactlyOnce=exactly_once)
    write(empty.repartition(3), topic=topic, exactlyOnce=exactly_once)
    assert seen_in(bootstrap, topic) == []


def test_empty_partitions_among_others_do_no_harm(spark, write, bootstrap, topic) -> None:
    write(spark.range(100).where("id < 3").repartition(7, "id").selectExpr("CAST(id AS STRING) AS value"), topic=topic)
    assert values_in(bootstrap, topic) == [b"0", b"1", b"2"]


def test_records_have_the_time_of_writing_unless_the_column_is_to_be_kept(spark, write, bootstrap, topic) -> None:
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 678_900, tzinfo=dt.UTC)
    frame = spark.createDataFrame([(moment, "v")], "timestamp timestamp, value string")
    before_ms = time.time_ns() // 1_000_000
    write(frame, topic=topic)
    (record,) = seen_in(bootstrap, topic)
    assert before_ms <= record.timestamp_ms <= time.time_ns() // 1_000_000
    write(frame, topic=topic, keepTimestamp="true")
    assert int(moment.timestamp() * 1000) in {record.timestamp_ms for record in seen_in(bootstrap, topic)}


def test_a_write_that_fails_half_way_leaves_nothing(spark, write, bootstrap, topic, sinks) -> None:
    def fail_late(batches):
        for batch in batches:
            yield batch
        if batch["value"][0].as_py() != "0":
            raise RuntimeError("the second task fails when its rows are written")

    before = {status.sink for status in sinks.list()}
    frame = spark.range(20_000).selectExpr("CAST(id AS STRING) AS value").repartitionByRange(2, "value")
    with pytest.raises(PySparkException, match="the second task fails"):
        write(frame.mapInArrow(fail_late, "value string"), topic=topic)
    assert seen_in(bootstrap, topic) == []
    assert {status.sink for status in sinks.list()} == before


def test_a_write_leaves_no_sink_behind(spark, write, topic, sinks) -> None:
    before = {status.sink for status in sinks.list()}
    write(spark.range(3).selectExpr("CAST(id AS STRING) AS value"), topic=topic)
    assert {status.sink for status in sinks.list()} == before


def test_a_named_sink_takes_each_batch_once(spark, write, bootstrap, topic, sinks) -> None:
    name = f"each-{uuid.uuid4().hex}"
    for batch_id, text in [(0, "a"), (1, "b"), (1, "b"), (2, "c")]:
        write(spark.createDataFrame([(text,)], "value string"), topic=topic, sinkName=name, batchId=batch_id)
    assert values_in(bootstrap, topic) == [b"a", b"b", b"c"]
    with pytest.raises(PySparkException, match=r"Batch 1 was started after the sink .* committed batch 2"):
        write(spark.createDataFrame([("d",)], "value string"), topic=topic, sinkName=name, batchId=1)
    assert values_in(bootstrap, topic) == [b"a", b"b", b"c"]
    sinks.delete(name)


def test_a_topic_that_is_not_there_is_made(spark, write, bootstrap) -> None:
    name = f"t-{uuid.uuid4().hex}"
    write(spark.createDataFrame([("v",)], "value string"), topic=name)
    assert values_in(bootstrap, name) == [b"v"]


def test_a_topic_that_may_not_be_made_is_reported_before_anything_is_staged(spark, penstock_broker_factory) -> None:
    broker = penstock_broker_factory({"listeners.http": "127.0.0.1:0", "topics.auto_create": False})
    frame = spark.createDataFrame([("there-is-none", "v")], "topic string, value string")
    writer = frame.write.format("penstock").mode("append").option("kafka.bootstrap.servers", broker.bootstrap)
    for options in ({}, {"topic": "there-is-none"}):
        with pytest.raises(PySparkException, match="'there-is-none' does not exist"):
            writer.options(**options).save()
    with SinkClient(broker.address("http")) as sinks:
        assert sinks.list() == []
    broker.stop()


def test_a_broker_without_http_is_reported_and_written_to_at_least_once(spark, penstock_broker_factory) -> None:
    broker = penstock_broker_factory()
    frame = spark.createDataFrame([("k", "v")], "key string, value string")
    writer = frame.write.format("penstock").mode("append")
    writer = writer.options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": "t"})
    with pytest.raises(PySparkException, match="exactlyOnce=false"):
        writer.save()
    writer.options(**{"exactlyOnce": "false", "kafka.acks": "1"}).save()
    assert values_in(broker.bootstrap, "t") == [b"v"]
    broker.stop()


def writer_of(bootstrap, topic, **options):
    """What Spark makes on the driver, and sends to the tasks."""
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}
    return batch_writer(given, StructType().add("value", StringType()), overwrite=False)


def rows(*values):
    return iter([pa.RecordBatch.from_pydict({"value": list(values)})])


def test_the_sink_of_a_driver_that_died_is_not_remembered_for_long(bootstrap, topic, sinks) -> None:
    before = {status.sink for status in sinks.list()}
    writer = writer_of(bootstrap, topic)
    (left,) = [status for status in sinks.list() if status.sink not in before]
    assert left.remember_ms == ONE_OFF_REMEMBER_MS
    writer.commit([writer.write(rows("1"))])
    assert values_in(bootstrap, topic) == [b"1"]
    assert {status.sink for status in sinks.list()} == before
    named = f"named-{uuid.uuid4().hex}"
    writer_of(bootstrap, topic, sinkName=named, batchId="0")
    assert sinks.status(named).remember_ms > 20 * ONE_OFF_REMEMBER_MS


def test_a_driver_that_was_replaced_does_not_commit_what_its_successor_staged(bootstrap, topic, sinks) -> None:
    name = f"replaced-{uuid.uuid4().hex}"
    old = writer_of(bootstrap, topic, sinkName=name, batchId="0")
    staged = [old.write(rows("old"))]
    sinks.delete(name)
    new = writer_of(bootstrap, topic, sinkName=name, batchId="0")
    restaged = [new.write(rows("new"))]
    assert staged[0].parts == restaged[0].parts, "the offsets alone do not tell them apart"
    with pytest.raises(RequestRefused, match="stage the batch again"):
        old.commit(staged)
    assert values_in(bootstrap, topic) == []
    new.commit(restaged)
    assert values_in(bootstrap, topic) == [b"new"]
