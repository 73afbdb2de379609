"""How many connections, and how fast, through the real acceptor."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Cluster
from penstock.client.quota_admin import QuotaAdmin
from penstock.testing.process import BrokerProcess
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import ApiKey
from tests.support.kafka_wire import RawClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", http="127.0.0.1:0") as broker:
        yield broker


def is_served(broker: BrokerProcess) -> bool:
    client = RawClient(broker.bootstrap)
    with client:
        try:
            client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("test", "1"), 3)
        except (EOFError, ConnectionError):
            return False
    return True


def test_an_address_that_connects_too_often_is_refused_and_served_again_later(broker: BrokerProcess) -> None:
    with Cluster(broker.bootstrap) as cluster:
        admin = QuotaAdmin(cluster)
        admin.alter({"ip": "127.0.0.1"}, {"connection_creation_rate": 1.0})
        assert [is_served(broker) for _ in range(11)].count(False) >= 1
        http_port = int(broker.addresses["http"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", http_port)) as http:
            assert http.recv(1) == b"", "the rate is that of the address, whatever it connects to"
        admin.remove({"ip": "127.0.0.1"}, ["connection_creation_rate"])
        assert is_served(broker)
