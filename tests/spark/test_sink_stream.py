"""``df.writeStream.format("penstock")``: every micro-batch once, across failures and restarts from a checkpoint."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Never

import pytest
from pyspark.errors import PySparkException

from penstock.client import Admin
from penstock.client.discovery import http_addresses
from penstock.client.sinks import SinkClient
from tests.spark.sinking import seen_in, values_in

pytestmark = pytest.mark.timeout(600)


class Files:
    """A folder of text files, one a micro-batch, that holds numbered rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.rows: list[bytes] = []

    def add(self, count: int = 10) -> None:
        rows = [f"{number:06d}" for number in range(len(self.rows), len(self.rows) + count)]
        # Spark looks at names without a dot in front alone, and must not see half a file.
        hidden = self.folder / f".{uuid.uuid4().hex}"
        hidden.write_text("\n".join(rows) + "\n")
        hidden.rename(self.folder / f"{len(self.rows):06d}.txt")
        self.rows += [row.encode() for row in rows]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def start(spark, bootstrap, files, tmp_path):
    """Start the query: one file a batch, until all are read."""

    def start(topic, *, format="penstock", change=lambda frame: frame, mode="append", **options):  # noqa: A002
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(files.folder))
        writer = change(frame).writeStream.format(format).outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}).start()

    return start


@pytest.fixture
def run(start):
    def run(topic, **more):
        query = start(topic, **more)
        assert query.awaitTermination(120), "the query did not end"
        return query

    return run


@pytest.fixture
def sinks(cluster):
    with SinkClient(http_addresses(cluster)) as client:
        yield client


def query_id(checkpoint):
    return json.loads((checkpoint / "metadata").read_text())["id"]


def test_every_row_arrives_and_the_broker_knows_the_query_and_its_batch(
    run, files, bootstrap, topic, sinks, tmp_path
) -> None:
    for _ in range(3):
        files.add()
    run(topic)
    assert values_in(bootstrap, topic) == files.rows
    assert sinks.status(query_id(tmp_path / "checkpoint")).last_batch_id == 2
    files.add()
    run(topic)
    assert values_in(bootstrap, topic) == files.rows
    assert sinks.status(query_id(tmp_path / "checkpoint")).last_batch_id == 3


def test_a_batch_that_comes_again_appends_nothing(run, files, bootstrap, topic, tmp_path) -> None:
    files.add()
    files.add()
    run(topic)
    before = seen_in(bootstrap, topic)
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    query = run(topic)
    assert [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]] == [1]
    assert seen_in(bootstrap, topic) == before
    files.add()
    run(topic)
    assert values_in(bootstrap, topic) == files.rows


def test_a_failure_after_the_commit_undoes_and_repeats_nothing(
    spark, start, run, files, bootstrap, topic, tmp_path
) -> None:
    from penstock.spark.datasource import PenstockDataSource

    class FailsAfterCommit(PenstockDataSource):
        @classmethod
        def name(cls):
            return "penstock-fails-after-commit"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            commit = writer.commit

            def committed_and_failed(messages, batch_id) -> Never:
                commit(messages, batch_id)
                raise RuntimeError("the driver fails after the commit")

            writer.commit = committed_and_failed
            return writer

    spark.dataSource.register(FailsAfterCommit)
    files.add()
    query = start(topic, format="penstock-fails-after-commit")
    with pytest.raises(PySparkException, match="the driver fails after the commit"):
        query.awaitTermination(60)
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    before = seen_in(bootstrap, topic)
    assert [record.value for record in sorted(before, key=lambda record: record.value)] == files.rows
    run(topic)
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()
    assert seen_in(bootstrap, topic) == before
    files.add()
    run(topic)
    assert values_in(bootstrap, topic) == files.rows


def test_a_batch_whose_task_fails_leaves_nothing_and_is_written_by_the_next_start(
    start, run, files, bootstrap, topic, sinks, tmp_path
) -> None:
    marker = tmp_path / "failed"

    def fail_once(batches):
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("a task fails after its rows were staged")

    def change(frame):
        return frame.mapInArrow(fail_once, "value string")

    files.add()
    with pytest.raises(PySparkException, match="a task fails after its rows were staged"):
        start(topic, change=change).awaitTermination(60)
    assert seen_in(bootstrap, topic) == []
    run(topic, change=change)
    assert values_in(bootstrap, topic) == files.rows


def test_an_old_checkpoint_is_reported_and_not_mistaken_for_written_data(
    start, run, files, bootstrap, topic, tmp_path
) -> None:
    files.add()
    run(topic)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    files.add()
    run(topic)
    files.add()
    run(topic)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "old", tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match=r"Batch 1 was started after the sink .* committed batch 2"):
        start(topic).awaitTermination(60)
    assert values_in(bootstrap, topic) == files.rows


def test_the_whole_result_is_appended_in_complete_mode(run, files, bootstrap, topic) -> None:
    def counted(frame):
        return frame.groupBy().count().selectExpr("CAST(count AS STRING) AS value")

    files.add()
    files.add()
    run(topic, change=counted, mode="complete")
    assert values_in(bootstrap, topic) == [b"10", b"20"]


def test_state_is_kept_when_a_batch_comes_again(run, files, bootstrap, topic, tmp_path) -> None:
    def counted(frame):
        return frame.groupBy().count().selectExpr("CAST(count AS STRING) AS value")

    files.add()
    run(topic, change=counted, mode="complete")
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    shutil.rmtree(tmp_path / "checkpoint" / "state")
    files.add()
    run(topic, change=counted, mode="complete")
    assert values_in(bootstrap, topic) == [b"10", b"20"]


@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_batches_without_rows_do_no_harm(run, files, bootstrap, topic, exactly_once) -> None:
    files.add()
    run(topic, change=lambda frame: frame.where("value = 'none'"), exactlyOnce=exactly_once)
    assert seen_in(bootstrap, topic) == []
    files.add()
    run(topic, exactlyOnce=exactly_once)
    assert values_in(bootstrap, topic) == files.rows[10:]


def test_a_function_of_each_batch_is_exactly_once_with_a_named_sink(spark, files, bootstrap, topic, tmp_path) -> None:
    files.add()
    files.add()
    name = f"each-{uuid.uuid4().hex}"
    fails = [True]

    def write(frame, batch_id) -> None:
        writer = frame.write.format("penstock").mode("append").option("kafka.bootstrap.servers", bootstrap)
        writer.options(topic=topic, sinkName=name, batchId=batch_id).save()
        if batch_id == 1 and fails:
            fails.pop()
            raise RuntimeError("fails after it was written")

    def start():
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(files.folder))
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "each"))
        return writer.trigger(availableNow=True).start()

    with pytest.raises(PySparkException, match="fails after it was written"):
        start().awaitTermination(60)
    assert start().awaitTermination(60)
    assert values_in(bootstrap, topic) == files.rows


def test_update_mode_is_exactly_once_through_each_batch(spark, files, bootstrap, cluster, topic, tmp_path) -> None:
    from penstock.spark.sink.each_batch import each_batch

    other = f"t-{uuid.uuid4().hex}"
    Admin(cluster).create_topic(other)
    options = {"kafka.bootstrap.servers": bootstrap}
    to_topic, to_other = each_batch({**options, "topic": topic}), each_batch({**options, "topic": other}, name="other")
    fails = [True]

    def write(frame, batch_id) -> None:
        to_topic(frame, batch_id)
        to_other(frame, batch_id)
        if batch_id == 1 and fails:
            fails.pop()
            raise RuntimeError("fails after it was written")

    def start():
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(files.folder))
        counted = frame.groupBy("value").count().selectExpr("value AS key", "CONCAT(value, '=', count) AS value")
        writer = counted.writeStream.outputMode("update").foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "each")).trigger(availableNow=True).start()

    files.add(3)
    files.add(2)
    with pytest.raises(PySparkException, match="fails after it was written"):
        start().awaitTermination(60)
    assert start().awaitTermination(60)
    expected = [row + b"=1" for row in files.rows]
    assert values_in(bootstrap, topic) == expected
    assert values_in(bootstrap, other) == expected


def test_at_least_once_writes_without_a_sink(run, files, bootstrap, topic, sinks) -> None:
    before = {status.sink for status in sinks.list()}
    files.add()
    run(topic, exactlyOnce="false")
    assert values_in(bootstrap, topic) == files.rows
    assert {status.sink for status in sinks.list()} == before
