import os
import re
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import pytest

from tests.conformance.mq.client import Client, Generated, start_broker

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="session")
def original_code(tmp_path_factory):
    return Generated(HERE / "original.proto", "mq_original", tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="session")
def today_code(tmp_path_factory):
    return Generated(ROOT / "proto" / "mq.proto", "mq_of_today", tmp_path_factory.mktemp("today"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One for the tests of a module, each of which has topics of its own."""
    process = start_broker(tmp_path_factory.mktemp("broker"))
    yield process
    assert process.stop() == 0
    assert [line for line in process.log_text().splitlines() if " info " not in line] == []


@pytest.fixture
def own_broker(tmp_path):
    """One that the test may kill."""
    process = start_broker(tmp_path)
    yield process
    process.kill()


@pytest.fixture
def topic(request):
    return re.sub(r"[^\w.-]+", ".", request.node.name, flags=re.ASCII)[:200]


@pytest.fixture
def original(broker, original_code):
    client = Client(original_code, broker.addresses["grpc"])
    yield client
    client.close()


@pytest.fixture
def client(broker, today_code):
    connected = Client(today_code, broker.addresses["grpc"])
    yield connected
    connected.close()


@pytest.fixture
def others(broker, today_code):
    """More connections."""
    connected = [Client(today_code, broker.addresses["grpc"]) for _ in range(2)]
    yield connected
    for one in connected:
        one.close()
