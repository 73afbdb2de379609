"""A real cluster whose Python has no Penstock: what a session sends is enough, and the program is the one that runs locally."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from penstock.client import Admin, Cluster, Consumer, Producer, watermarks
from tests.spark.archiving import PipelineProcess
from tests.spark.standalone import bare_python, standalone_cluster
from tests.support.waiting import eventually

# Six Java processes are started: on a busy machine that alone is a minute.
pytestmark = pytest.mark.timeout(1200)

JOB = Path(__file__).with_name("cluster_job.py")
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.executor.cores": 1,
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
}
JOB_TIMEOUT_S = 900
DEMO_PIPELINE = Path(__file__).resolve().parents[2] / "examples" / "demo" / "orders.toml"
WINDOW_S = 5
ARCHIVED = 6_000
PER_BATCH = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def standalone(folder):
    with standalone_cluster(folder) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def master(standalone):
    return standalone.url


@pytest.fixture(scope="module")
def clusters_python(folder):
    return bare_python(folder / "python")


def conf_words():
    """The settings, for a command line."""
    return [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={str(value).lower()}")]


def values_of(cluster, topic):
    """All there is in it now."""
    places = [(topic, partition.index) for partition in cluster.topic(topic).partitions]
    ends = {place: end for place, (_, end) in watermarks(cluster, places).items()}
    consumer = Consumer(cluster)
    consumer.assign(dict.fromkeys(places, 0))
    values = []
    while any(consumer.positions[place] < ends[place] for place in places):
        values += [record.value.decode() for record in consumer.poll()]
    return sorted(values)


def test_one_program_reads_writes_and_streams_on_executors_without_penstock(
    master, folder, clusters_python, cluster, bootstrap, topic, produce
) -> None:
    produce(topic, [(b"k%d" % number, b"value %d" % number) for number in range(100)])
    written, streamed = f"{topic}-written", f"{topic}-streamed"
    for name in (written, streamed):
        Admin(cluster).create_topic(name, partitions=2)
    done = subprocess.run(
        [sys.executable, JOB, master, bootstrap, topic, written, streamed, folder / "checkpoint"],
        input=json.dumps(SETTINGS),
        env={**os.environ, "PYSPARK_PYTHON": clusters_python},
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    saw = json.loads(done.stdout.splitlines()[-1])
    expected = sorted(f"value {number}" for number in range(100))
    assert saw["values"] == expected
    assert {place["python"] for place in saw["places"]} == {clusters_python}
    assert all(place["file"].startswith(str(folder / "cache" / "penstock")) for place in saw["places"]), saw["places"]
    assert len({place["cwd"] for place in saw["places"]}) == 2, "both workers took part"
    assert values_of(cluster, written) == [value.upper() for value in expected]
    assert values_of(cluster, streamed) == [f"streamed {value}" for value in expected]


def test_the_pipeline_of_the_demo_runs_there_with_no_change(
    master, folder, clusters_python, penstock_broker_factory
) -> None:
    bootstrap = penstock_broker_factory({"listeners.http": "127.0.0.1:0"}).bootstrap
    first = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(minutes=10)
    first -= dt.timedelta(seconds=first.second % WINDOW_S)
    payments: list[dict[str, Any]] = [
        {"id": str(number), "product": f"p{number % 3}", "city": "here", "amount": 1.5, "paid_at": at.isoformat()}
        for number, at in enumerate(first + dt.timedelta(seconds=0.25 * step) for step in range(200))
    ]
    # Five seconds a window, and as much again until it is final: of fifty seconds the first eight windows are.
    expected = Counter(
        (number // 20, payment["product"]) for number, payment in enumerate(payments) if number // 20 < 8
    )
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic("payments", partitions=2)
        with Producer(cluster) as producer:
            for payment in payments:
                producer.send("payments", json.dumps(payment).encode(), key=payment["product"].encode())
        words = ["run", DEMO_PIPELINE, "--once", "--master", master, "--bootstrap", bootstrap]
        words += ["--state-dir", folder / "state", "--set", f"sinks.1.path={folder / 'lake'}"]
        words += ["--set", f"pipeline.checkpoint={folder / 'sales-checkpoint'}"]
        words += conf_words()
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", *words],
            env={**os.environ, "PYSPARK_PYTHON": clusters_python},
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        in_topic = [json.loads(value) for value in values_of(cluster, "sales")]
    in_lake = ds.dataset(folder / "lake", format="parquet").to_table().to_pylist()

    def counted(rows, moment):
        return {
            (int((moment(row["window_start"]) - first).total_seconds()) // WINDOW_S, row["product"]): row["orders"]
            for row in rows
        }

    assert len(in_topic) == len(in_lake) == len(expected)
    assert counted(in_topic, dt.datetime.fromisoformat) == expected
    assert counted(in_lake, lambda moment: moment.replace(tzinfo=dt.UTC)) == expected


def test_an_archive_whose_executors_are_killed_has_every_record_once(
    standalone, folder, clusters_python, cluster, bootstrap, topic, produce, spark
) -> None:
    """kill -9 of a Java process that runs tasks, while one writes: the worker starts another, and the tasks are run again."""
    produce(topic, [(None, b"%d" % number) for number in range(ARCHIVED)])
    lake, log = folder / "archive", folder / "archive.log"
    words = ["archive", topic, "--to", str(lake), "--format", "delta", "--once", "--rate", str(PER_BATCH)]
    words += ["--name", "executors-killed", "--bootstrap", bootstrap, "--master", standalone.url]
    words += ["--state-dir", str(folder / "state"), "--checkpoint", str(folder / "archive-checkpoint"), *conf_words()]
    staging, commits = lake / "_penstock" / "staging", folder / "archive-checkpoint" / "query" / "commits"

    def until(condition, what):
        def check():
            assert process.running, log.read_text()[-5000:]
            return condition()

        return eventually(check, JOB_TIMEOUT_S, what)

    killed = set()
    with PipelineProcess(*words, log=log, environment={"PYSPARK_PYTHON": clusters_python}) as process:
        for _ in range(2):
            until(lambda: list(staging.glob("*/*/*")) and set(standalone.executors()) - killed, "a task writes")
            for executor in set(standalone.executors()) - killed:
                os.kill(executor, signal.SIGKILL)
                killed.add(executor)
            at = len(list(commits.glob("[0-9]*")))
            until(lambda at=at: len(list(commits.glob("[0-9]*"))) > at, "the archive goes on")
        assert process.wait(JOB_TIMEOUT_S) == 0, log.read_text()[-5000:]
    assert len(killed) >= 2
    frame = spark.read.format("penstock-lake").option("path", str(lake)).option("lake", "delta").load()
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(ARCHIVED))
    assert not list(lake.rglob("*.staged"))
