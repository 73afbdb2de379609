"""A real ``penstock serve`` for the transcripts: one for those that share it, one of its own for those that kill it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.conformance.driftq.client import Driftq

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("driftq") / "data", {"log.flush": "os"}, http="127.0.0.1:0")
    with broker:
        yield broker


@pytest.fixture
def driftq(shared_broker: BrokerProcess) -> Iterator[Driftq]:
    client = Driftq(shared_broker.addresses["http"])
    yield client
    client.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Synced as in production: what is acknowledged must survive being killed."""
    with BrokerProcess(tmp_path / "data", http="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def topic(driftq: Driftq) -> str:
    """A fresh topic of one partition."""
    return driftq.create(f"t{next(_numbers)}")
