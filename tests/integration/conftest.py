"""A broker in a process of its own for the files of this suite that ask for one."""

from collections.abc import Iterator

import pytest

from penstock.testing.process import BrokerProcess

SETTINGS = {
    "groups.initial_rebalance_delay_ms": 0,
    "groups.offsets_topic_partitions": 4,
    # A record that is nacked comes again at once, so that nobody has to wait for it.
    "queues.backoff_ms": 0,
}


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """``penstock serve`` on free ports, with all that it serves."""
    folder = tmp_path_factory.mktemp("broker")
    free = "127.0.0.1:0"
    with BrokerProcess(folder / "data", SETTINGS, http=free, tcp=free, grpc=free) as broker:
        yield broker
