"""kill -9 of the driver and of Python workers in the middle of an archive: nothing lost, nothing twice."""

import json
import os
import signal
import uuid
from collections import Counter

import pytest

from penstock.client import Admin, Producer
from penstock.client.group_admin import GroupAdmin
from penstock.spark.lake.formats import LakeFormat
from tests.spark.archiving import PipelineProcess, run_builtin
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

RECORDS = 12_000
BATCH = 500
SECONDS = 180


@pytest.fixture
def filled(cluster):
    name = f"t-{uuid.uuid4().hex[:12]}"
    Admin(cluster).create_topic(name, partitions=2)
    with Producer(cluster) as producer:
        for n in range(RECORDS):
            producer.send(name, b"%d" % n, partition=n % 2)
    return name


@pytest.mark.parametrize("lake_format", list(LakeFormat))
def test_an_archive_that_is_killed_again_and_again_has_every_record_once(
    spark, bootstrap, cluster, filled, tmp_path, lake_format
) -> None:
    lake, checkpoint, log = tmp_path / "lake", tmp_path / "checkpoint", tmp_path / "pipeline.log"
    words = ["archive", filled, "--to", str(lake), "--format", lake_format, "--bootstrap", bootstrap]
    words += ["--checkpoint", str(checkpoint), "--state-dir", str(tmp_path / "state"), "--name", "killed"]
    words += ["--rate", str(BATCH), "--master", "local[2,4]", "--conf", "spark.driver.memory=1g"]

    def batch():
        """The last batch that the lake knows of."""
        manifests = list((lake / "_penstock" / "commits").glob("*.json"))
        return json.loads(manifests[0].read_bytes())["batch"] if manifests else -1

    def until(condition, what):
        def check():
            assert process.running, log.read_text()[-3000:]
            return condition()

        return eventually(check, SECONDS, what)

    with PipelineProcess(*words, log=log) as process:
        until(lambda: batch() >= 0, "the first batch is in the lake")
        # A worker while it writes: its task is tried again, with files of its own.
        until(lambda: list((lake / "_penstock" / "staging").glob("*/*/*")), "a task writes")
        victim = until(process.python_workers, "a worker runs")[0]
        os.kill(victim, signal.SIGKILL)
        at = batch()
        until(lambda: batch() > at + 1, "the archive goes on")
        # The driver, when the lake has a batch that Spark's own log does not have yet.
        until(lambda: not (checkpoint / "query" / "commits" / str(batch())).exists(), "a batch is between the two")
        process.kill()
    assert Counter(rows(spark, lake, lake_format)).most_common(1)[0][1] == 1
    given = {"topics": (filled,), "to": str(lake), "format": lake_format}
    run_builtin(
        spark,
        "archive",
        given,
        bootstrap=bootstrap,
        state=tmp_path / "state",
        name="killed",
        checkpoint=str(checkpoint),
    )
    assert sorted(rows(spark, lake, lake_format)) == sorted((n % 2, n // 2, b"%d" % n) for n in range(RECORDS))
    assert not list(lake.rglob("*.staged"))
    offsets = GroupAdmin(cluster).offsets("penstock.archive.killed")
    assert {place[1]: each.offset for place, each in offsets.items() if place[0] == filled} == {0: 6000, 1: 6000}


def rows(spark, lake, lake_format):
    frame = spark.read.format("penstock-lake").option("path", str(lake)).option("lake", lake_format).load()
    return [
        (row.partition, row.offset, bytes(row.value)) for row in frame.select("partition", "offset", "value").collect()
    ]
