"""Topics as streams, in real Spark: checkpoints, restarts, and topics and brokers that change under way."""

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from penstock.client import Admin, Cluster, GroupAdmin, Producer
from tests.spark.reading import Reading


@pytest.fixture
def reading(spark, bootstrap, topic, tmp_path):
    return Reading(spark, bootstrap, topic, str(tmp_path))


def offsets(first, end, *partitions):
    return [(partition, offset) for partition in partitions or (0, 1) for offset in range(first, end)]


@pytest.fixture
def more(produce, topic):
    """``more(3, 2)``: so many records into partition 0, 1, ..."""

    def send(*counts) -> None:
        for partition, count in enumerate(counts):
            produce(topic, [(None, b"v")] * count, partition=partition)

    return send


def test_a_checkpoint_continues_where_it_ended_and_is_readable(reading, more, topic, tmp_path) -> None:
    more(5, 5)
    frame = reading.stream(startingOffsets="earliest", maxOffsetsPerTrigger=6)
    rows, progress = reading.run(frame, "c")
    assert rows == offsets(0, 5)
    assert [batch["numInputRows"] for batch in progress] == [6, 4]
    assert json.loads(progress[-1]["sources"][0]["endOffset"]) == {topic: {"0": 5, "1": 5}}
    assert json.loads(Path(tmp_path, "c", "offsets", "1").read_text().splitlines()[2]) == {topic: {"0": 5, "1": 5}}
    more(2)
    assert reading.run(frame, "c")[0] == offsets(5, 7, 0)
    assert reading.run(frame, "c")[0] == []


def test_a_stream_starts_at_the_latest_and_follows(spark, reading, more, topic, cluster) -> None:
    more(3, 3)
    query = reading.into_memory(reading.stream(kafka__group__id="followers"), "followed").start()
    try:
        query.processAllAvailable()
        assert spark.table("followed").count() == 0
        more(2)
        query.processAllAvailable()
        assert spark.table("followed").count() == 2
        Admin(cluster).add_partitions(topic, 3)
        more(0, 0, 4)
        query.processAllAvailable()
        rows = sorted((row.partition, row.offset) for row in spark.table("followed").collect())
        assert rows == [*offsets(3, 5, 0), *offsets(0, 4, 2)]
        committed = GroupAdmin(cluster).offsets("followers")
        assert committed[topic, 0].offset == 5, "the group's lag shows what the query has read"
    finally:
        query.stop()


def test_a_first_batch_that_failed_is_read_again_from_where_the_stream_began(reading, more) -> None:
    """The stream starts at the latest, and no record that came after that is lost though its first batch with any fails."""
    assert reading.run(reading.stream(), "c")[0] == []
    more(3)
    frame = reading.stream()

    def fail(some, _) -> None:
        if some.count():
            raise RuntimeError("the sink is away")

    writer = frame.writeStream.foreachBatch(fail).option("checkpointLocation", f"{reading.checkpoints}/c")
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        writer.trigger(availableNow=True).start().awaitTermination()
    more(1)
    assert reading.run(frame, "c")[0] == offsets(0, 4, 0)


def test_a_topic_that_is_deleted_stops_the_query_or_not_as_configured(reading, more, topic, cluster) -> None:
    more(5, 5)
    other = f"{topic}-other"
    Admin(cluster).create_topic(other, partitions=1)
    both = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", "fetchOffset__retryIntervalMs": 1}
    assert len(reading.run(reading.stream(**both), "c")[0]) == 10
    Admin(cluster).delete_topic(topic)
    with Producer(cluster) as producer:
        producer.send(other, b"v", partition=0)
    with pytest.raises(StreamingQueryException, match=f"{topic}/0, {topic}/1 are missing"):
        reading.run(reading.stream(**both), "c")
    # Created again in the meantime: its records are read from the beginning.
    Admin(cluster).create_topic(topic, partitions=1)
    more(2)
    rows, _ = reading.run(reading.stream(**both, failOnDataLoss="false"), "c")
    assert rows == [(0, 0), (0, 0), (0, 1)]


def test_a_broker_that_restarts_is_waited_for(spark, penstock_broker_factory, tmp_path) -> None:
    broker = penstock_broker_factory()
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic("t", partitions=1)
        reading = Reading(spark, broker.bootstrap, "t", str(tmp_path))
        query = reading.into_memory(reading.stream(startingOffsets="earliest"), "restarted").start()
        try:
            for round_ in range(3):
                with Producer(cluster) as producer:
                    for _ in range(5):
                        producer.send("t", b"v", partition=0)
                query.processAllAvailable()
                assert spark.table("restarted").count() == 5 * (round_ + 1)
                broker.restart()
        finally:
            query.stop()
    broker.stop()


def test_a_broker_that_stays_away_is_a_clear_failure_and_the_query_continues_when_it_is_back(
    spark, penstock_broker_factory, tmp_path
) -> None:
    broker = penstock_broker_factory()
    reading = Reading(spark, broker.bootstrap, "t", str(tmp_path))
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic("t", partitions=1)
        with Producer(cluster) as producer:
            producer.send("t", b"v", partition=0)
    quick = {
        "startingOffsets": "earliest",
        "fetchOffset__numRetries": 2,
        "fetchOffset__retryIntervalMs": 1,
        "kafka__request__timeout__ms": 300,
    }
    assert reading.run(reading.stream(**quick), "c")[0] == [(0, 0)]
    broker.stop()
    with pytest.raises(StreamingQueryException, match="Cannot connect to"):
        reading.run(reading.stream(**quick), "c")
    broker.restart()
    with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
        producer.send("t", b"v", partition=0)
    assert reading.run(reading.stream(**quick), "c")[0] == [(0, 1)]
    broker.stop()
