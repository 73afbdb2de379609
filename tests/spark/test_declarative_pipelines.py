"""The example of a Spark Declarative Pipeline, run twice by Spark's own command: a topic to tables and to another topic."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.spark import java
from tests.spark.test_standalone_cluster import values_of

# Each run is a Java process of its own: what the next one knows of it is on disk.
pytestmark = pytest.mark.timeout(900)

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "declarative"
RUN_TIMEOUT_S = 400


@pytest.fixture
def project(tmp_path):
    """The example, with its state in its own folder, as its README has it."""
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder)
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text()
    changed = re.sub(r"^storage: .*", f"storage: file://{folder}/storage", text, flags=re.MULTILINE)
    assert changed != text
    spec.write_text(changed)
    return folder


@pytest.fixture
def own_broker(penstock_broker_factory):
    """The example's topics have fixed names."""
    with (
        penstock_broker_factory({"listeners.http": "127.0.0.1:0"}) as broker,
        Cluster(str(broker.bootstrap)) as cluster,
    ):
        for name in ("orders", "large-orders"):
            Admin(cluster).create_topic(name, partitions=2)
        yield cluster, str(broker.bootstrap)


def command():
    """As the example's README says it."""
    (line,) = re.findall(r"^spark-pipelines (run .*)$", (EXAMPLE / "README.md").read_text(), flags=re.MULTILINE)
    return line.split()


def run(project, bootstrap):
    program = os.path.join(os.path.dirname(sys.executable), "spark-pipelines")
    env = os.environ | {
        "JAVA_HOME": java.find().home,
        "PYSPARK_PYTHON": sys.executable,
        "PENSTOCK_BOOTSTRAP": bootstrap,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [program, *command()],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-5000:]
    return said


def ours(said):
    """Warnings of what the example sets, or of a port that the broker has: the others are Spark's own, and many."""
    return re.findall(r".*(?:\w+Warning: |could not bind).*", said)


@pytest.fixture
def port_of_somebody_else(project):
    """Where Spark's web page would be, as in the README port 4040 is the broker's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with (project / "spark.conf").open("a") as conf:
            conf.write(f"\nspark.ui.port {server.getsockname()[1]}\n")
        yield


def order(number, total):
    return json.dumps({"id": number, "customer": f"c{number % 2}", "total": total}).encode()


def table(spark, project, name):
    return spark.read.parquet(str(project / "spark-warehouse" / name))


@pytest.mark.usefixtures("port_of_somebody_else")
def test_the_example_takes_each_order_once_and_warns_of_nothing_that_is_ours(spark, own_broker, project) -> None:
    cluster, bootstrap = own_broker
    with Producer(cluster) as producer:
        for number in range(10):
            producer.send("orders", order(number, 50.0 * number))
    assert ours(run(project, bootstrap)) == []
    assert table(spark, project, "orders").count() == 10
    assert sorted(json.loads(value)["id"] for value in values_of(cluster, "large-orders")) == list(range(2, 10))
    with Producer(cluster) as producer:
        producer.send("orders", order(10, 1000.0))
    assert ours(run(project, bootstrap)) == []
    large = sorted(json.loads(value)["id"] for value in values_of(cluster, "large-orders"))
    assert large == list(range(2, 11)), "the second run went on where the first ended"
    revenue = {row.customer: (row.orders, row.total) for row in table(spark, project, "revenue").collect()}
    assert revenue == {"c0": (6, 2000.0), "c1": (5, 1250.0)}
