"""A real ``penstock serve`` for the transcripts: one for those that share it, one of its own for those that kill it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.conformance.tinymq.client import Tinymq

LINE_BYTES_MAX = 64 * 1024
SESSION_MS = 60_000
"""Longer than any test: a busy machine drops no member."""
IMPATIENT_MS = 2_000
_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"log.flush": "os", "tcp.line_bytes_max": LINE_BYTES_MAX, "tcp.session_timeout_ms": SESSION_MS}
    with BrokerProcess(tmp_path_factory.mktemp("tinymq") / "data", settings, tcp="127.0.0.1:0") as broker:
        yield broker
        assert broker.running, f"the broker died under the suite:\n{broker.log_text()}"
        assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.fixture
def address(shared_broker: BrokerProcess) -> str:
    return shared_broker.addresses["tcp"]


@pytest.fixture
def tinymq(address: str) -> Iterator[Tinymq]:
    with Tinymq(address) as client:
        yield client


@pytest.fixture
def other(address: str) -> Iterator[Tinymq]:
    """A second client of the same broker."""
    with Tinymq(address) as client:
        yield client


@pytest.fixture
def topic(tinymq: Tinymq) -> str:
    """A fresh topic of two partitions."""
    name = f"t{next(_numbers)}"
    assert tinymq.data("createTopic", topic=name, partitions=2) == {"topic": name, "partitions": 2}
    return name


@pytest.fixture
def group() -> str:
    """A group that nobody knows."""
    return f"g{next(_numbers)}"


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that drops who is silent."""
    with BrokerProcess(tmp_path / "data", {"tcp.session_timeout_ms": IMPATIENT_MS}, tcp="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Synced as in production: what is acknowledged must survive being killed."""
    with BrokerProcess(tmp_path / "data", tcp="127.0.0.1:0") as broker:
        yield broker
