"""Links to a node that is this test: what it answers, and when it hangs up, is scripted; who is up is what the test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from penstock.address import Address
from penstock.core.access import ANONYMOUS, Caller
from penstock.core.broker import Broker
from penstock.core.cluster_image import Node
from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import Carrying
from penstock.gateways.tcp.gateway import TcpGateway
from penstock.gateways.tcp.links import IDLE_MS_MAX, Links, Refused, signed_part
from penstock.settings import LimitSettings, TcpSettings
from penstock.types import Gateway, NodeId
from tests.support.kafka_cluster import ClusterNode

THERE = NodeId(8)
CLIENT = Caller(ANONYMOUS, Gateway.TCP, "192.0.2.1")
Answer = Callable[[dict[str, Any]], bytes | None]


class Other:
    """The other node: greets as one, then answers each line as it is told; None hangs up."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: b'{"ok":true,"data":{}}\n'
        self.greeting = b'{"ok":true,"data":{"nonce":"once"}}\n'
        self.marks: list[str] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        while line := await reader.readline():
            request = json.loads(line)
            if request["type"] != "carry":
                answer = self.answer(request)
            elif "mark" in request:
                self.marks.append(request["mark"])
                answer = b'{"ok":true,"data":{}}\n'
            else:
                answer = self.greeting
            if answer is None:
                break
            writer.write(answer)
        writer.close()


class World:
    """A node of a cluster, and the other one."""

    def __init__(self, broker: Broker, gateway: TcpGateway, other: Other) -> None:
        assert broker.cluster is not None
        self.broker = broker
        self.gateway = gateway
        self.other = other
        self.nodes = broker.cluster.nodes
        self.links = Links(gateway, self.nodes)

    def say(self, epoch: int, address: Address) -> None:
        """The other node listens there, in this life."""
        self.nodes.nodes[THERE] = Node(THERE, epoch, None, False, UUID(int=1), {"tcp": address}, "", 0)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    other = Other()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    async with ClusterNode(tmp_path) as node:
        node.cluster.secret = b"secret"
        made = World(node.broker, TcpGateway(node.broker, node.flusher.turn, TcpSettings(), LimitSettings()), other)
        made.say(1, Address(*server.sockets[0].getsockname()))
        yield made
        made.links.close()
    server.close()
    for writer in other.writers:
        writer.close()
        await writer.wait_closed()


async def refused(asked: Awaitable[object]) -> Reason:
    with pytest.raises(PenstockError) as caught:
        await asked
    return caught.value.reason


async def test_lines_go_over_one_connection_that_says_whose_they_are(world: World) -> None:
    for _ in range(2):
        link = await world.links.to(THERE, CLIENT)
        assert await link.ask(b'{"type":"listTopics"}') == b'{"ok":true,"data":{}}\n'
    assert world.other.connections == 1
    (mark,) = world.other.marks
    carrying = Carrying(world.broker)
    assert mark == carrying.mark(THERE, CLIENT, signed_part("once"))


async def test_a_refusal_has_its_reason_only_if_nothing_was_done(world: World) -> None:
    link = await world.links.to(THERE, CLIENT)
    world.other.answer = lambda _: b'{"ok":false,"error":"no","reason":"NOT_COORDINATOR"}\n'
    assert await link.ask(b'{"type":"x"}') == Refused("no", "NOT_COORDINATOR")
    world.other.answer = lambda _: b'{"ok":false,"error":"no"}\n'
    assert await link.ask(b'{"type":"x"}') == Refused("no", "")


async def test_a_line_that_was_sent_and_not_answered_is_lost_and_the_next_connects_again(world: World) -> None:
    answer, world.other.answer = world.other.answer, lambda _: None
    link = await world.links.to(THERE, CLIENT)
    assert await refused(link.ask(b'{"type":"x"}')) is Reason.LINK_LOST
    world.other.answer = answer
    again = await world.links.to(THERE, CLIENT)
    assert again is not link
    assert await again.ask(b'{"type":"x"}') == b'{"ok":true,"data":{}}\n'


async def test_a_node_that_does_not_listen_was_not_asked(world: World) -> None:
    listener = await asyncio.start_server(world.other.serve, "127.0.0.1", 0)
    address = Address(*listener.sockets[0].getsockname())
    listener.close()
    await listener.wait_closed()
    world.say(1, address)
    assert await refused(world.links.to(THERE, CLIENT)) is Reason.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("greeting", [b'{"ok":false,"error":"Unknown type: carry"}\n', b"what?\n"])
async def test_one_that_is_no_node_was_not_asked(world: World, greeting: bytes) -> None:
    world.other.greeting = greeting
    assert await refused(world.links.to(THERE, CLIENT)) is Reason.LEADER_NOT_AVAILABLE
    assert world.other.marks == []


async def test_whoever_waits_is_told_when_the_nodes_life_ends(world: World) -> None:
    came = asyncio.Event()

    def silent(_: dict[str, Any]) -> bytes:
        came.set()
        return b""

    world.other.answer = silent
    link = await world.links.to(THERE, CLIENT)
    asking = asyncio.ensure_future(link.ask(b'{"type":"x"}'))
    await came.wait()
    world.links.look_after(link.used_ms)
    assert not asking.done()
    del world.nodes.nodes[THERE]
    world.links.look_after(link.used_ms)
    assert await refused(asking) is Reason.LINK_LOST


async def test_a_link_that_was_not_used_for_long_is_closed(world: World) -> None:
    link = await world.links.to(THERE, CLIENT)
    world.links.look_after(link.used_ms + IDLE_MS_MAX)
    assert link.is_open
    world.links.look_after(link.used_ms + IDLE_MS_MAX + 1)
    assert not link.is_open


async def test_a_client_that_is_gone_gets_no_new_link(world: World) -> None:
    link = await world.links.to(THERE, CLIENT)
    world.links.close()
    assert not link.is_open
    assert await refused(world.links.to(THERE, CLIENT)) is Reason.SHUTTING_DOWN
