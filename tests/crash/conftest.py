"""Real processes, killed and damaged, on folders of the test's own."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from penstock.encryption.keys import ENVIRONMENT
from penstock.testing.process import BrokerProcess
from tests.support.dropped_sockets import pytest_configure, pytest_sessionfinish
from tests.support.encrypted import ENCRYPTS, KEY_TEXT

__all__ = ["pytest_configure", "pytest_sessionfinish"]

if ENCRYPTS:
    # For every broker and every command that a test starts.
    os.environ[ENVIRONMENT] = KEY_TEXT

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "8"))
"""How often the broker is killed. The default fits the whole test run; hundreds are for a night."""

SETTINGS: Mapping[str, object] = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.session_timeout_ms_min": 100,
    "groups.offsets_topic_partitions": 2,
    # Often, so that a round meets a checkpoint that is old, new, and half written.
    "log.checkpoint_interval_ms": 100,
    "log.housekeeping_interval_ms": 100,
}


StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start a broker that is killed at the end of the test: ``start_broker({"log.flush": "os"}, data_dir=...)``."""
    started: list[BrokerProcess] = []

    def start(settings: Mapping[str, object] | None = None, data_dir: Path | None = None) -> BrokerProcess:
        broker = BrokerProcess(data_dir or tmp_path / "data", {**SETTINGS, **(settings or {})})
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.kill()
