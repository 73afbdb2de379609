"""A real ``penstock serve`` for the transcripts: one for those that share it, one of its own for those that kill it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.conformance.tarantoolmq.client import Curl

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"log.flush": "os", "http.session_timeout_ms": 600, "groups.offsets_topic_partitions": 4}
    with BrokerProcess(tmp_path_factory.mktemp("tarantoolmq") / "data", settings, http="127.0.0.1:0") as broker:
        yield broker
        assert broker.running, f"the broker died under the suite:\n{broker.log_text()}"
        assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.fixture
def curl(shared_broker: BrokerProcess) -> Curl:
    return Curl(shared_broker.addresses["http"])


@pytest.fixture
def topic(curl: Curl) -> str:
    """A fresh topic of two partitions."""
    name = f"t{next(_numbers)}"
    assert curl.post("/topics", {"name": name, "partitions": 2}).status == 201
    return name


@pytest.fixture
def new_name() -> str:
    """A topic that nobody made yet."""
    return f"n{next(_numbers)}"


@pytest.fixture
def group() -> str:
    """A group that nobody knows."""
    return f"g{next(_numbers)}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Synced as in production: what is acknowledged must survive being killed."""
    settings = {"groups.offsets_topic_partitions": 4}
    with BrokerProcess(tmp_path / "data", settings, http="127.0.0.1:0") as broker:
        yield broker
