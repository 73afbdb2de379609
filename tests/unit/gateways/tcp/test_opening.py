"""A connection that begins like another protocol: nothing in it is carried out."""

import json
from pathlib import Path

import pytest

from penstock.settings import TcpSettings
from tests.unit.gateways.tcp.pipe import LIST, TcpNode, produce

CREATE = b'{"type": "createTopic", "topic": "made-by-a-page"}\n'

REQUESTS = {
    "a form": b"POST / HTTP/1.1\r\nHost: 127.0.0.1:4040\r\nContent-Type: text/plain\r\nContent-Length: 51\r\n\r\n",
    "a fetch": b"GET /?a=b HTTP/1.1\r\nHost: 127.0.0.1:4040\r\n\r\n",
    "a preflight": b"OPTIONS / HTTP/1.1\r\nHost: 127.0.0.1:4040\r\n\r\n",
    "a short line": b"GET /\n",
    "a target that is too long for a line": b"POST /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a session ticket of TLS with lines in it": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
}


@pytest.mark.parametrize("head", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("size", [1, 3, 8, 10_000])
async def test_a_body_with_lines_of_json_is_not_carried_out(tmp_path: Path, head: bytes, size: int) -> None:
    async with TcpNode(tmp_path, tcp=TcpSettings(line_bytes_max=1024)) as node:
        client = node.connect()
        data = head + CREATE
        for at in range(0, len(data), size):
            client.connection.data_received(data[at : at + size])
        client.connection.eof_received()
        (answer,) = await client.answered(1)
        assert answer["ok"] is False
        assert "This listener" in answer["error"]
        assert client.pipe.closed
        assert "made-by-a-page" not in node.broker.topics
        assert node.broker.meters.request_errors.get(("tcp", "wrong_protocol")) == 1


@pytest.mark.parametrize("first", [b"get / http/1.1\n", b"GET", b"POSTS /\n", b"\x16\n", b"\n\n", b"no json at all\n"])
async def test_other_lines_that_are_not_json_leave_the_connection_open(node: TcpNode, first: bytes) -> None:
    client = node.connect()
    client.pieces(first + b"\n")
    client.send(LIST)
    expected = 2 if first.strip() else 1
    answers = await client.answered(expected)
    assert answers[-1]["ok"]
    assert not client.pipe.closed


async def test_a_line_that_begins_like_http_is_only_an_invalid_line_later_on(node: TcpNode) -> None:
    client = node.connect()
    client.send(produce("a"), b"POST / HTTP/1.1", produce("b"))
    answers = await client.answered(3)
    assert [answer["ok"] for answer in answers] == [True, False, True]


async def test_the_first_line_can_arrive_byte_by_byte(node: TcpNode) -> None:
    client = node.connect()
    client.pieces(*(bytes([byte]) for byte in json.dumps(LIST).encode() + b"\n"))
    assert (await client.answered(1))[0]["ok"]
