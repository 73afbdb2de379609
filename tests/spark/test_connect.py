"""Pipelines through Spark Connect: the file that runs locally runs on a server elsewhere, in every mode."""

import json
import subprocess
import sys

import pytest

from penstock.client import Admin, Cluster, Producer, SinkClient, http_addresses
from tests.spark.standalone import FOR_CONNECT, SPARKS_OWN, bare_python, connect_server
from tests.spark.test_standalone_cluster import values_of

pytestmark = pytest.mark.timeout(600)

TOTALS = """
[pipeline]
name = "totals"

[source]
topics = "{source}"
schema = "item STRING, amount INT"

[[steps]]
sql = "SELECT item, sum(amount) AS total FROM `{source}` GROUP BY item"

[[sinks]]
kind = "topic"
topic = "{target}"
key = "item"
mode = "update"

[[sinks]]
kind = "topic"
topic = "{target}-big"
key = "item"
value = "CAST(total AS STRING)"
mode = "update"
name = "plain"
"""


def pipeline(*words, bootstrap, expect=0):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", *map(str, words), "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == expect, done.stderr[-5000:]
    return done.stderr


def test_running_totals_and_archives_on_a_server_continue_where_they_were(
    tmp_path, penstock_broker_factory, spark
) -> None:
    bootstrap = penstock_broker_factory({"listeners.http": "127.0.0.1:0"}).bootstrap
    file = tmp_path / "totals.toml"
    file.write_text(TOTALS.format(source="sold", target="totals"))
    lake = tmp_path / "lake"
    with Cluster(bootstrap) as cluster, connect_server(tmp_path, sys.executable) as server:
        Admin(cluster).create_topic("sold", partitions=2)
        common = {"--master": server, "--state-dir": tmp_path / "state"}
        words = [word for pair in common.items() for word in pair]
        for round_ in range(2):
            with Producer(cluster) as producer:
                for number in range(10):
                    sold = {"item": f"i{number % 2}", "amount": number}
                    producer.send("sold", json.dumps(sold).encode(), partition=number % 2)
            pipeline("run", file, "--once", "--checkpoint", tmp_path / "totals", *words, bootstrap=bootstrap)
            archive = ["archive", "sold", "--to", lake, "--format", "delta", "--once", "--checkpoint", tmp_path / "arc"]
            pipeline(*archive, *words, bootstrap=bootstrap)
            last = {}
            for value in map(json.loads, values_of(cluster, "totals")):
                last[value["item"]] = max(value["total"], last.get(value["item"], 0))
            assert last == {"i0": 20 * (round_ + 1), "i1": 25 * (round_ + 1)}
            assert sorted(map(int, values_of(cluster, "totals-big")))[-2:] == [20 * (round_ + 1), 25 * (round_ + 1)]
        # A row whenever it changed, once: each query has a sink of its own, under its id.
        assert len(values_of(cluster, "totals")) == len(values_of(cluster, "totals-big")) == 4
        with SinkClient(http_addresses(cluster)) as sinks:
            found = {sink.sink: sink.last_batch_id for sink in sinks.list()}
        ids = {
            json.loads((tmp_path / "totals" / name / "metadata").read_text())["id"]
            for name in ("topic-totals", "plain")
        }
        assert set(found) == ids
    frame = spark.read.format("penstock-lake").option("path", str(lake)).option("lake", "delta").load()
    assert frame.count() == 20


def test_a_server_without_penstock_says_what_streams_need_there(tmp_path, bootstrap, topic, produce) -> None:
    produce(topic, [(None, b"one")])
    python = bare_python(tmp_path / "python", SPARKS_OWN | FOR_CONNECT)
    with connect_server(tmp_path, python) as server:
        words = ["transform", "--from", topic, "--sql", f"SELECT * FROM `{topic}`", "--to", f"{topic}-copy", "--once"]
        words += ["--master", server, "--state-dir", tmp_path / "state", "--checkpoint", tmp_path / "checkpoint"]
        said = pipeline(*words, bootstrap=bootstrap, expect=1)
    assert "not installed in the Python of the Spark Connect server" in said
    assert "pip install 'penstock[spark]' there" in said
