"""Channels to a server of the test's own; who is up is what the test says."""

import asyncio
from uuid import UUID

import grpc
import pytest
import pytest_asyncio

from penstock.address import parse_address
from penstock.core.cluster_image import ClusterImage, Node
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc import channels as module
from penstock.gateways.grpc.channels import Channels
from penstock.metadata.memory import MemoryStore
from penstock.types import NodeId

THERE = NodeId(2)


class Image(ClusterImage):
    """Who is up."""

    def say(self, epoch: int | None, address: str = "127.0.0.1:1") -> None:
        self.nodes.clear()
        if epoch is not None:
            listeners = {"grpc": parse_address(address)}
            self.nodes[THERE] = Node(THERE, epoch, None, False, UUID(int=1), listeners, "", 0)
        for hook in self.on_changed:
            hook()


class Where:
    """The part of carrying that is asked for addresses."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def address(self, node, listener):
        return self._image.address(node, listener.value)


@pytest.fixture
def image():
    return Image(MemoryStore())


@pytest_asyncio.fixture
async def channels(image):
    made = Channels(Where(image), image)
    yield made
    await made.close()
    assert image.on_changed == []


@pytest.fixture
def waited_for():
    """Set when a call has come that is not answered."""
    return asyncio.Event()


@pytest_asyncio.fixture
async def server(waited_for):
    """Answers ``/s/echo`` with what it gets, and ``/s/wait`` never."""

    async def wait(_request, _context) -> None:
        waited_for.set()
        await asyncio.Event().wait()

    async def echo(request, _context):
        return request

    made = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {
        "echo": grpc.unary_unary_rpc_method_handler(echo),
        "wait": grpc.unary_unary_rpc_method_handler(wait),
    }
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    yield f"127.0.0.1:{port}"
    await made.stop(None)


async def test_calls_share_a_channel(channels, image, server) -> None:
    image.say(1, server)
    async with channels.to(THERE) as first, channels.to(THERE) as second:
        assert first is second
        assert await first.unary_unary("/s/echo")(b"x", timeout=20) == b"x"


async def test_a_channel_that_is_full_gets_a_second_beside_it(channels, image, server, monkeypatch) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", 1)
    image.say(1, server)
    async with channels.to(THERE) as first:
        async with channels.to(THERE) as second:
            assert first is not second
        async with channels.to(THERE) as third:
            assert third is second


@pytest.mark.parametrize("epoch", [None, 1])
async def test_a_node_that_cannot_be_reached_is_told_as_such(channels, image, monkeypatch, epoch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    image.say(epoch)
    with pytest.raises(PenstockError) as caught:
        async with channels.to(THERE):
            pass
    assert caught.value.reason is Reason.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("epoch", [None, 2])
async def test_calls_end_with_the_life_of_the_node(channels, image, server, waited_for, epoch) -> None:
    image.say(1, server)
    async with channels.to(THERE) as channel:
        call = channel.unary_unary("/s/wait")(b"", timeout=20)
        await waited_for.wait()
        image.say(epoch, server)
        assert await call.code() is grpc.StatusCode.CANCELLED
    if epoch is not None:
        async with channels.to(THERE) as again:
            assert again is not channel
            assert await again.unary_unary("/s/echo")(b"x", timeout=20) == b"x"
