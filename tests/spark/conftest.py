"""One warm Spark session and one broker for the whole run: a test takes topic names of its own."""

import os
import uuid
from pathlib import Path

import pytest

from penstock.client import Admin, Cluster, Producer

SECONDS_MAX = 600

# Of every Java that is started in these tests: they live for seconds, and compiling twice costs half of that.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items) -> None:
    """A test that hangs fails. Spark takes its time on a busy machine, and one that is cut off leaves the session broken for all others."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from penstock.spark import session

    spark = session(
        "penstock tests",
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.streaming.stopTimeout": "60s",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.driver.memory": "1g",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def broker(penstock_broker_factory):
    """A broker in this process, with the listeners that the source and the sink speak to."""
    return penstock_broker_factory({"listeners.http": "127.0.0.1:0"})


@pytest.fixture(scope="session")
def bootstrap(broker):
    return str(broker.bootstrap)


@pytest.fixture
def cluster(bootstrap):
    with Cluster(bootstrap) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    """A new, empty topic of two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


@pytest.fixture
def produce(cluster):
    """``produce(topic, [(key, value), ...], partition=...)``."""

    def send(topic, records, partition=None, **more) -> None:
        with Producer(cluster) as producer:
            for key, value in records:
                producer.send(topic, value, key=key, partition=partition, **more)

    return send
