"""Lines in and lines out over one connection: in order, at once, and never more in memory than there may be."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from penstock.gateways.http.server.gateway import HttpBounds
from penstock.limits import KIB
from tests.support.http_node import HttpNode, becomes, request

PATH = "/topics/orders/messages"
LINES = {"Content-Type": "application/x-ndjson"}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def begin(node: HttpNode, query: str = ""):
    """A connection on which lines may be sent in chunks; the head of the answer is there already."""
    raw = await node.connect()
    headers = ["Transfer-Encoding: chunked", "Content-Type: application/x-ndjson"]
    await raw.send(request("POST", PATH + query, headers=headers, length=False))
    head = await raw.reader.readuntil(b"\r\n\r\n")
    assert b" 200 OK" in head
    assert b"content-type: application/x-ndjson" in head
    return raw


async def read_chunk(raw) -> bytes:
    async with asyncio.timeout(20):
        size = int(await raw.reader.readline(), 16)
        data = await raw.reader.readexactly(size)
        await raw.reader.readexactly(2)
        return data


async def test_a_line_is_answered_while_the_request_goes_on(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await begin(node)
    for number in range(3):
        await raw.send(chunk(b'{"value":"%d"}\n' % number))
        assert json.loads(await read_chunk(raw))["offset"] == number
    await raw.send(b"0\r\n\r\n")
    assert await read_chunk(raw) == b""
    await raw.close()


async def test_many_lines_are_answered_in_order(node: HttpNode) -> None:
    await node.create("orders", 1)
    count = 20_000

    async def lines() -> AsyncIterator[bytes]:
        for first in range(0, count, 100):
            # Cut in the middle of lines.
            text = "".join(f'{{"value":"{number}"}}\n' for number in range(first, first + 100)).encode()
            yield text[:777]
            yield text[777:]

    async with node.client.stream("POST", PATH, content=lines(), headers=LINES) as answer:
        offsets = [json.loads(line)["offset"] async for line in answer.aiter_lines()]
    assert offsets == list(range(count))


async def test_what_arrives_together_is_published_together(node: HttpNode) -> None:
    await node.create("orders", 1)
    published: list[int] = []
    publish = node.broker.publisher.publish

    def counted(caller, topic, records, *more) -> None:
        published.append(len(records))
        publish(caller, topic, records, *more)

    node.broker.publisher.publish = counted  # type: ignore[method-assign]
    answer = await node.client.post(PATH, content=b'{"value":"x"}\n' * 4000, headers=LINES)
    assert len(answer.text.splitlines()) == 4000
    assert sum(published) == 4000
    assert max(published) > 1000


async def test_a_line_that_is_too_long_is_refused_and_skipped(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(line_bytes_max=100)) as node:
        await node.create("orders", 1)
        raw = await begin(node)
        long = b'{"value":"%s"}' % (b"x" * 100)
        await raw.send(chunk(b'{"value":"a"}\n' + long[:90]))
        assert json.loads(await read_chunk(raw))["offset"] == 0
        await raw.send(chunk(long[90:] + b"more of it"))
        assert json.loads(await read_chunk(raw)) == {"error": "A line has at most 100 bytes. Send a smaller message."}
        await raw.send(chunk(b"x" * 1000))
        await raw.send(chunk(b'and its end\n{"value":"b"}\n' + long + b'\n{"value":"c"}\n'))
        answers = [json.loads(line) for line in (await read_chunk(raw)).splitlines()]
        assert [answer.get("offset") for answer in answers] == [1, None, 2]
        await raw.close()


async def test_the_last_line_needs_no_end(node: HttpNode) -> None:
    await node.create("orders", 1)
    answer = await node.client.post(PATH, content=b'{"value":"a"}\n\n \r\n{"value":"b"}', headers=LINES)
    assert [json.loads(line)["offset"] for line in answer.text.splitlines()] == [0, 1]


async def test_acks_of_the_query_are_for_lines_that_do_not_say(node: HttpNode) -> None:
    await node.create("orders", 1)
    lines = b'{"value":"a"}\n{"value":"b","acks":"all"}'
    answer = await node.client.post(PATH + "?acks=none", content=lines, headers=LINES)
    assert [json.loads(line)["acked"] for line in answer.text.splitlines()] == [False, True]
    answer = await node.client.post(PATH + "?acks=some", content=lines, headers=LINES)
    assert (answer.status_code, answer.json()) == (400, {"error": "The value of acks must be all, leader or none"})


async def test_an_unknown_topic_is_refused_at_once(node: HttpNode) -> None:
    answer = await node.client.post("/topics/nobody/messages", content=b"{}", headers=LINES)
    assert (answer.status_code, answer.json()) == (404, {"error": "Topic not found"})


async def test_lines_for_a_topic_that_goes_are_refused_one_by_one(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await begin(node)
    await raw.send(chunk(b'{"value":"a"}\n'))
    await read_chunk(raw)
    await node.broker.topics.delete("orders")
    await raw.send(chunk(b'{"value":"a"}\n{"value":"b"}\n'))
    assert (await read_chunk(raw)).splitlines() == [b'{"error":"Topic not found"}'] * 2
    await raw.close()


async def test_a_client_that_goes_leaves_what_it_published(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await begin(node)
    await raw.send(chunk(b'{"value":"a"}\n{"value":"half'))
    await becomes(lambda: node.broker.partition("orders", 0).log.next_offset == 1)
    raw.writer.transport.abort()
    await becomes(lambda: node.http.connection_count == 0)
    assert node.broker.partition("orders", 0).log.next_offset == 1
    await becomes(lambda: not node.http._server.server_state.tasks)


async def test_a_client_that_reads_no_answers_is_not_read_from(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(output_bytes_max=16_384)) as node:
        await node.create("orders", 1)
        raw = await begin(node)
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        data = chunk(b'{"value":""}\n' * 5000)
        sending = asyncio.ensure_future(raw.send(data * 1000))
        [connection] = node.http._server.server_state.connections
        await becomes(lambda: connection.flow.write_paused and connection.flow.read_paused)  # type: ignore[union-attr]
        for _ in range(100):
            await asyncio.sleep(0)
        written = node.broker.partition("orders", 0).log.next_offset
        for _ in range(100):
            await asyncio.sleep(0)
        assert node.broker.partition("orders", 0).log.next_offset == written
        sending.cancel()
        await asyncio.wait([sending])


async def test_a_line_that_is_not_utf_8_is_refused_alone(node: HttpNode) -> None:
    await node.create("orders", 1)
    lines = b'{"value":"a"}\n{"value":"\xff"}\n\n{"value":"b"}'
    answer = await node.client.post(PATH, content=lines, headers=LINES)
    first, bad, last = map(json.loads, answer.text.splitlines())
    assert (first["offset"], last["offset"]) == (0, 1)
    assert bad["error"].startswith("The message is not JSON: ")


async def test_unfinished_lines_of_all_clients_together_are_bounded(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(held_bytes_max=300 * KIB)) as node:
        await node.create("orders", 1)
        patient, other = await begin(node), await begin(node)
        await patient.send(chunk(b'{"value":"' + b"x" * 200 * KIB))
        await becomes(lambda: node.http.held_bytes > 200 * KIB)
        await other.send(chunk(b'{"value":"' + b"x" * 200 * KIB))
        assert "error" in json.loads(await read_chunk(other))
        await other.send(chunk(b'"}\n{"value":"short"}\n'))
        assert json.loads(await read_chunk(other))["offset"] == 0
        await patient.send(chunk(b'"}\n'))
        assert json.loads(await read_chunk(patient))["offset"] == 1
        assert node.http.held_bytes == 0
        await patient.send(chunk(b'{"value":"' + b"x" * 200 * KIB))
        await becomes(lambda: node.http.held_bytes > 200 * KIB)
        await patient.close()
        await becomes(lambda: node.http.held_bytes == 0)
        await other.close()
