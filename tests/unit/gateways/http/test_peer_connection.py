"""A connection to another node: answers in the order of the requests, and an end for every one of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.gateways.http.peer_connection import HEAD_BYTES_MAX, NodeLost, PeerConnection
from tests.support.http_node import becomes
from tests.support.scripted_node import Answer, Asked, ScriptedNode

GET = b"GET /x HTTP/1.1\r\nhost: test\r\n\r\n"


class Ends:
    """One connection, and what it told of itself."""

    def __init__(self, node: ScriptedNode) -> None:
        self._node = node
        self.free: list[PeerConnection] = []
        self.lost: list[PeerConnection] = []

    async def connect(self) -> PeerConnection:
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(
            lambda: PeerConnection(self.free.append, self.lost.append), "127.0.0.1", self._node.port
        )
        return self.connection


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with ScriptedNode() as node:
        ends = Ends(node)
        await ends.connect()
        yield ends
        ends.connection.abort()


def answers(ends: Ends, answer: Answer) -> None:
    ends._node._answer = answer


async def test_answers_come_in_the_order_of_the_requests(ends: Ends) -> None:
    async def number(asked: Asked) -> None:
        asked.answer(200 + len(ends._node.asked), b"x" * len(ends._node.asked))

    answers(ends, number)
    asked = [ends.connection.begin(GET) for _ in range(3)]
    assert ends.connection.count == 3
    assert [(await each.head).status for each in asked] == [201, 202, 203]
    assert [await each.body(10) for each in asked] == [b"x", b"xx", b"xxx"]
    assert (ends.connection.count, ends.free) == (0, [ends.connection])


async def test_an_answer_without_a_body_ends_with_its_head(ends: Ends) -> None:
    async def nothing(asked: Asked) -> None:
        asked.writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    answers(ends, nothing)
    exchange = ends.connection.begin(GET)
    assert (await exchange.head).status == 204
    assert await exchange.body(0) == b""


async def test_a_node_that_closes_behind_its_answer_is_not_asked_again(ends: Ends) -> None:
    async def last(asked: Asked) -> None:
        asked.answer(200, b"{}", "connection: close")

    answers(ends, last)
    exchange = ends.connection.begin(GET)
    assert await exchange.body(10) == b"{}"
    assert (ends.free, ends.lost) == ([], [ends.connection])


async def test_every_request_is_told_when_the_node_is_lost(ends: Ends) -> None:
    async def cut(asked: Asked) -> None:
        if len(ends._node.asked) == 3:
            asked.cut()

    answers(ends, cut)
    for exchange in [ends.connection.begin(GET) for _ in range(3)]:
        with pytest.raises(NodeLost):
            await exchange.head
    assert ends.lost == [ends.connection]


async def test_a_body_that_never_comes_whole_is_lost_with_its_node(ends: Ends) -> None:
    async def half(asked: Asked) -> None:
        asked.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await asked.writer.drain()
        asked.writer.close()

    answers(ends, half)
    exchange = ends.connection.begin(GET)
    assert (await exchange.head).header(b"content-length") == b"10"
    with pytest.raises(NodeLost):
        await exchange.body(10)


@pytest.mark.parametrize(
    "sent",
    [
        b"this is no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
)
async def test_what_is_no_answer_ends_the_connection(ends: Ends, sent: bytes) -> None:
    async def nonsense(asked: Asked) -> None:
        asked.writer.write(sent)

    answers(ends, nonsense)
    with pytest.raises(NodeLost):
        await ends.connection.begin(GET).head
    await becomes(lambda: ends._node.lost == 1)


async def test_an_answer_that_nobody_asked_for_ends_the_connection(ends: Ends) -> None:
    async def twice(asked: Asked) -> None:
        asked.answer()
        asked.answer()

    answers(ends, twice)
    assert (await ends.connection.begin(GET).head).status == 200
    await becomes(lambda: ends.lost)


async def test_a_body_that_is_larger_than_wanted_is_not_kept(ends: Ends) -> None:
    async def large(asked: Asked) -> None:
        asked.answer(200, b"x" * 100)

    answers(ends, large)
    with pytest.raises(ValueError, match="more than 99 bytes"):
        await ends.connection.begin(GET).body(99)


async def test_closing_an_exchange_that_has_ended_keeps_the_connection(ends: Ends) -> None:
    exchange = ends.connection.begin(GET)
    await exchange.body(10)
    exchange.close()
    assert not ends.connection.is_lost
    assert (await ends.connection.begin(GET).head).status == 200
