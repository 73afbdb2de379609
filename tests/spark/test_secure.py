"""Spark against a broker with TLS and a login: it works, and no secret is in what Spark shows, logs or keeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client import Admin, Cluster
from penstock.spark.security import options_for
from penstock.testing.secure import SecureBroker

pytestmark = pytest.mark.timeout(600)
DRIVER = Path(__file__).with_name("secure_driver.py")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with SecureBroker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker


def jaas(broker):
    """The options as programs for Spark's own connector have them."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="{broker.user}" password="{broker.password}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": broker.ca_file.read_text(),
    }


def test_a_program_reads_and_writes_and_shows_no_secret(broker, tmp_path) -> None:
    command = [sys.executable, str(DRIVER), broker.bootstrap, str(tmp_path), json.dumps(jaas(broker))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    lines = done.stdout.splitlines()
    assert {"READ 20", "COPIED 20", "TABLES 1"} <= set(lines), shown
    assert any(line.startswith("FAILED") for line in lines)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    events = [data for path, data in kept.items() if b"SparkListenerJobEnd" in data]
    assert events, "Spark wrote its event log"
    assert broker.password not in shown
    assert [path for path, data in kept.items() if broker.password.encode() in data] == []
    assert not events[0].count(b"jaas.config")


def test_the_command_line_runs_pipelines_and_sql_as_the_user(broker, tmp_path) -> None:
    with Cluster(broker.bootstrap, security=broker.security) as cluster:
        Admin(cluster).create_topic("pipe-in")
    environment = {
        **os.environ,
        "PENSTOCK_BOOTSTRAP": broker.bootstrap,
        "PENSTOCK_TLS_CA": str(broker.ca_file),
        "PENSTOCK_USER": broker.user,
        "PENSTOCK_PASSWORD": broker.password,
        "PENSTOCK_STATE_DIR": str(tmp_path / "state"),
    }

    def run(*words, stdin=""):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert broker.password not in done.stdout + done.stderr
        return done.stdout

    run("produce", "pipe-in", stdin='{"id": 1}\n{"id": 2}\n')
    file = tmp_path / "copy.toml"
    file.write_text(
        '[pipeline]\nname = "copy"\n[source]\ntopics = "pipe-in"\nschema = "id INT"\n'
        '[[steps]]\nsql = "SELECT id + 1 AS id FROM `pipe-in`"\n[[sinks]]\nkind = "topic"\ntopic = "pipe-out"\n'
    )
    run("pipeline", "run", str(file), "--once")
    assert run("consume", "pipe-out").splitlines() == ['{"id":2}', '{"id":3}']
    assert json.loads(run("sql", "SELECT count(*) AS n FROM `pipe-out`", "-o", "ndjson"))["n"] == 2
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if broker.password.encode() in path.read_bytes()] == []


def test_a_pipeline_file_may_have_the_options_of_the_connection(broker, tmp_path) -> None:
    with Cluster(broker.bootstrap, security=broker.security) as cluster:
        Admin(cluster).create_topic("file-in")
    kafka = "\n".join(
        f'"{name.removeprefix("kafka.")}" = {json.dumps(value)}' for name, value in options_for(broker.security).items()
    )
    file = tmp_path / "copy.toml"
    file.write_text(
        f'[pipeline]\nname = "copy-file"\nbootstrap = "{broker.bootstrap}"\n[pipeline.kafka]\n{kafka}\n'
        '[source]\ntopics = "file-in"\n[[sinks]]\nkind = "topic"\ntopic = "file-out"\n'
    )
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(file), "--once"]
    environment = {**os.environ, "PENSTOCK_STATE_DIR": str(tmp_path / "state")}
    environment.pop("PENSTOCK_BOOTSTRAP", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    with Cluster(broker.bootstrap, security=broker.security) as cluster:
        assert "file-out" in {topic.name for topic in Admin(cluster).topics()}
