"""One real ``penstock serve`` for the suite, on free ports.

``PENSTOCK_TEST_BOOTSTRAP=HOST:PORT`` runs the suite against another broker that is already there, Apache Kafka above all:
that is how the tests themselves are tested.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing.process import BrokerProcess
from tests.support.dropped_sockets import pytest_configure, pytest_sessionfinish
from tests.support.local_cluster import LocalCluster

__all__ = ["pytest_configure", "pytest_sessionfinish"]

EXTERNAL = os.environ.get("PENSTOCK_TEST_BOOTSTRAP", "")

SETTINGS = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.session_timeout_ms_min": 100,
    "groups.offsets_topic_partitions": 4,
}


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if EXTERNAL:
        yield EXTERNAL
        return
    with BrokerProcess(tmp_path_factory.mktemp("interop") / "data", SETTINGS) as broker:
        yield broker.bootstrap
        assert broker.running, f"the broker died under the suite:\n{broker.log_text()}"
        assert broker.stop() == 0, broker.log_text()
        assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, in racks a, b and c, that leave nothing behind."""
    if EXTERNAL:
        pytest.skip("PENSTOCK_TEST_BOOTSTRAP is set: this test is about Penstock alone")
    folder = tmp_path_factory.mktemp("three")
    with LocalCluster(folder, racks="a,b,c", is_kept=False) as cluster:
        yield cluster
        logs = {file.name: file.read_text() for file in folder.glob("*/node-*.log")}
        assert len(logs) == 3
        assert cluster.stop() == 0, cluster.said()
        assert {name: text for name, text in logs.items() if "Traceback" in text} == {}
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


_numbers = itertools.count()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A name that no other test uses."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")

    def name(prefix: str = "t") -> str:
        return f"{prefix}-{worker}-{os.getpid()}-{next(_numbers)}"

    return name


@pytest.fixture
def new_topic(admin: AdminClient, unique: Callable[[str], str]) -> Callable[..., str]:
    """Make a topic: ``new_topic(partitions=3, **{"compression.type": "zstd"})``."""

    def make(partitions: int = 1, **config: str) -> str:
        name = unique("topic")
        made = admin.create_topics([NewTopic(name, partitions, 1, config=config)], request_timeout=20)
        made[name].result(20)
        return name

    return make


@pytest.fixture
def kcat() -> str:
    path = shutil.which("kcat")
    if path is None:
        pytest.skip("kcat is not installed: apt-get install kcat (make test does it when it may)")
    return path


@pytest.fixture
def is_penstock() -> None:
    if EXTERNAL:
        pytest.skip("PENSTOCK_TEST_BOOTSTRAP is set: this test is about Penstock alone")
