"""Topics as tables, in real Spark: what only Spark can show. Each option by itself is in tests/unit/spark/source."""

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, expr
from pyspark.sql.functions import sum as total

from penstock.client import Admin, Producer
from tests.spark.reading import Reading

NOON_MS = 1_700_000_000_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def reading(spark, bootstrap, topic, tmp_path):
    return Reading(spark, bootstrap, topic, str(tmp_path))


@pytest.fixture
def topic(topic, cluster):
    """Records of long ago stay."""
    Admin(cluster).alter_configs(topic, {"retention.ms": "-1"})
    return topic


@pytest.fixture
def filled(cluster, topic) -> None:
    """Ten records a partition, a second apart."""
    with Producer(cluster) as producer:
        for partition in (0, 1):
            for index in range(10):
                at = NOON_MS + index * 1000
                producer.send(topic, b"%d" % index, partition=partition, timestamp_ms=at)


def test_a_query_of_the_kafka_connector_runs_as_it_is(reading, cluster, topic) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"hello", key=b"k", partition=0, timestamp_ms=NOON_MS, headers=[("a", b"1")])
        producer.send(topic, None, key=None, partition=1, timestamp_ms=NOON_MS)
    frame = reading.batch(includeHeaders="true", startingOffsets="earliest", endingOffsets="latest")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr(
        "CAST(key AS STRING)",
        "CAST(value AS STRING)",
        "topic",
        "partition",
        "offset",
        "unix_millis(timestamp)",
        "timestampType",
        "transform(headers, h -> concat(h.key, '=', CAST(h.value AS STRING)))",
    ).collect()
    assert sorted(map(tuple, rows), key=lambda row: row[3]) == [
        ("k", "hello", topic, 0, 0, NOON_MS, 0, ["a=1"]),
        (None, None, topic, 1, 0, NOON_MS, 0, None),
    ]


def test_an_empty_topic_is_an_empty_table(reading) -> None:
    assert reading.batch().count() == 0


def test_offsets_times_and_cuts_come_together(reading, filled, topic) -> None:
    rows = reading.batch(
        startingOffsets=json.dumps({topic: {"0": 3, "1": -2}}),
        endingTimestamp=str(NOON_MS + 5000),
        minPartitions="4",
    )
    assert rows.rdd.getNumPartitions() == 4
    assert sorted((row.partition, row.offset) for row in rows.collect()) == [
        *((0, offset) for offset in range(3, 5)),
        *((1, offset) for offset in range(5)),
    ]


def test_columns_that_are_not_asked_for_are_not_read(reading, filled) -> None:
    frame = reading.batch(schema="value binary, partition int")
    assert frame.columns == ["value", "partition"]
    assert frame.groupBy("partition").agg(total(expr("CAST(CAST(value AS STRING) AS INT)"))).count() == 2


def test_a_dataframe_has_what_came_since_it_was_used_last(reading, filled, produce, topic) -> None:
    frame = reading.batch()
    assert frame.count() == 20
    produce(topic, [(None, b"later")], partition=0)
    assert frame.count() == 21


@pytest.fixture
def pushing(spark):
    before = spark.conf.get(PUSHDOWN)
    yield lambda on: spark.conf.set(PUSHDOWN, on)
    spark.conf.set(PUSHDOWN, before)


@pytest.mark.parametrize("on", ["true", "false"])
def test_filters_give_the_same_rows_pushed_down_or_not(reading, filled, pushing, on) -> None:
    pushing(on)
    frame = reading.batch(pushdown="true").where(
        (col("partition") == 1)
        & (col("offset") >= 3)
        & (col("timestamp") > expr(f"timestamp_millis({NOON_MS + 6000})"))
    )
    assert sorted(row.offset for row in frame.collect()) == [7, 8, 9]
    left_to_spark = frame._jdf.queryExecution().executedPlan().toString().split("Filter")[1].splitlines()[0]
    assert ("partition" in left_to_spark) is (on == "false")
    assert "timestamp" in left_to_spark


def test_a_pushed_filter_reads_fewer_records_from_the_broker(reading, cluster, topic) -> None:
    """Records that would be a data loss are never asked for, so the query does not fail: nothing shows it better."""
    with Producer(cluster) as producer:
        for _ in range(20):
            producer.send(topic, b"v", partition=0)
    Admin(cluster).delete_records({(topic, 0): 10})
    start = json.dumps({topic: {"0": 0, "1": 0}})
    assert reading.batch(startingOffsets=start, pushdown="true").where("offset >= 10").count() == 10
    with pytest.raises(PySparkException, match=r"DataLossError: .* now starts at offset 10: offsets 0 to 9"):
        reading.batch(startingOffsets=start).where("offset >= 10").count()


def test_one_dataframe_in_several_filters_has_the_rows_of_each(reading, filled, pushing) -> None:
    """Spark keeps the filters that were pushed last for every use of a DataFrame, so by itself nothing is pushed."""
    pushing("true")
    frame = reading.batch()
    assert frame.where("partition = 0 AND offset < 3").union(frame.where("partition = 1")).count() == 13
    assert frame.count() == 20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kafka__auto__offset__reset": "earliest"}, "startingOffsets"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "exactly one of the options"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"subscribe": "not-there"}, "Topic not-there does not exist"),
        ({"schema": "value string"}, r"CAST\(value AS STRING\)"),
        ({"schema": "price double"}, "Unknown column 'price'"),
    ],
)
def test_what_is_wrong_reaches_the_user_in_words(reading, options, text) -> None:
    with pytest.raises(PySparkException, match=text):
        reading.batch(**options).count()


def test_records_of_a_megabyte_are_read(reading, cluster, topic) -> None:
    with Producer(cluster) as producer:
        for index in range(30):
            producer.send(topic, bytes([index]) * 1_000_000, partition=index % 2)
    row = (
        reading.batch()
        .selectExpr("count(*) AS n", "sum(length(value)) AS bytes", "count(DISTINCT value) AS kinds")
        .first()
    )
    assert tuple(row) == (30, 30_000_000, 30)
