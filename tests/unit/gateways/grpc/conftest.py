import grpc
import pytest
import pytest_asyncio

from penstock.config import load
from penstock.gateways.grpc import gateway as gateway_module
from penstock.gateways.grpc.call import Serving
from penstock.server import Server
from penstock.testing.broker import TEST_SETTINGS
from penstock.wire.mq import mq_generated as mq


@pytest.fixture
def gateways(monkeypatch):
    """What each gateway that starts shares with its calls."""
    found = []

    def made(broker, listener):
        found.append(Serving(broker, listener))
        return found[-1]

    monkeypatch.setattr(gateway_module, "Serving", made)
    return found


@pytest_asyncio.fixture
async def server(tmp_path, gateways):
    settings = {**TEST_SETTINGS, "listeners.grpc": "127.0.0.1:0", "server.data_dir": str(tmp_path)}
    node = Server(load(flags=settings))
    await node.start()
    yield node
    await node.stop()


@pytest_asyncio.fixture
async def channel(server):
    async with grpc.aio.insecure_channel(str(server.addresses["grpc"])) as connected:
        yield connected


@pytest.fixture
def unary(channel):
    """Make a call with one answer: ``await unary("Publish", mq.PublishRequest(...))``."""

    def call(name, request):
        read = getattr(mq, f"{name}Response").FromString
        method = channel.unary_unary(f"/mq.MessageQueueService/{name}", response_deserializer=read)
        return method(request.SerializeToString(), timeout=20)

    return call
