"""Following a topic: nothing is missed over a reconnect, a slow reader costs nothing, and an end comes."""

import asyncio
import json
from pathlib import Path

import pytest

from penstock.core.publish import NewRecord
from penstock.gateways.http.server.gateway import HttpBounds
from penstock.gateways.http.tarantoolmq import tail
from penstock.records.batch import Compression, read_header
from penstock.records.builder import build_batch, seal
from penstock.records.records import Record
from penstock.types import Acks
from tests.support.http_node import HttpNode, becomes, request, status_of


async def follow(node: HttpNode, query: str = "", last: str = ""):
    raw = await node.connect()
    await raw.send(request("GET", f"/topics/orders/tail{query}", headers=[f"Last-Event-ID: {last}"] if last else []))
    async with asyncio.timeout(20):
        head = await raw.reader.readuntil(b"\r\n\r\n")
        assert b" 200 OK" in head
        assert b"cache-control: no-store" in head
        assert b": tail of orders\n" in await raw.reader.readuntil(b"\n\n")
    return raw


async def event(raw) -> tuple[str, dict]:
    """The next event: its id and its message."""
    async with asyncio.timeout(20):
        while not (line := await raw.reader.readline()).startswith(b"id: "):
            pass
        data = await raw.reader.readline()
        return line[4:-1].decode(), json.loads(data.removeprefix(b"data: "))


async def publish(node: HttpNode, value: str, partition: int = 0) -> None:
    placed = asyncio.get_running_loop().create_future()
    record = NewRecord(None, value.encode(), partition=partition)
    node.broker.publisher.publish(node.caller, "orders", [record], Acks.ALL, placed.set_result)
    await placed


async def test_messages_are_events_as_they_come(node: HttpNode) -> None:
    await node.create("orders", 1)
    await publish(node, "before")
    raw = await follow(node)
    for number in range(3):
        await publish(node, str(number))
        event_id, message = await event(raw)
        assert (event_id, message["value"]) == (f"orders/0@{number + 1}", str(number))
    await raw.close()


async def test_a_client_that_comes_back_misses_nothing_in_any_partition(node: HttpNode) -> None:
    await node.create("orders", 3)
    await publish(node, "old", 2)
    raw = await follow(node)
    for value, partition in (("a", 1), ("a", 1), ("a", 0)):
        await publish(node, value, partition)
        last, _ = await event(raw)
    assert last == "orders/0@0 1@2 2@1"
    await raw.close()
    for partition in range(3):
        await publish(node, f"b{partition}", partition)
    raw = await follow(node, last=last)
    assert {(await event(raw))[1]["value"] for _ in range(3)} == {"b0", "b1", "b2"}
    await raw.close()


async def test_a_client_that_is_cut_off_before_the_first_message_misses_nothing(node: HttpNode) -> None:
    await node.create("orders", 2)
    raw = await node.connect()
    await raw.send(request("GET", "/topics/orders/tail"))
    greeting = await raw.reader.readuntil(b"\n\n")
    assert greeting.endswith(b"id: orders/* 0@0 1@0\n\n")
    await raw.close()
    await publish(node, "meanwhile", 1)
    raw = await follow(node, last="orders/* 0@0 1@0")
    assert (await event(raw))[1]["value"] == "meanwhile"
    await raw.close()


async def test_a_topic_of_many_partitions_has_the_messages_id_alone(
    node: HttpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RESUMED_PARTITIONS_MAX", 2)
    await node.create("orders", 3)
    raw = await follow(node, "?from=earliest")
    await publish(node, "a", 1)
    assert (await event(raw))[0] == "orders/1@0"
    await raw.close()


async def test_a_silent_topic_sends_a_comment_now_and_then(node: HttpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_KEEP_ALIVE_SECONDS", 0.01)
    await node.create("orders", 1)
    raw = await follow(node)
    async with asyncio.timeout(20):
        for _ in range(2):
            await raw.reader.readuntil(b": keep-alive\n\n")
    await publish(node, "x")
    assert (await event(raw))[1]["value"] == "x"
    await raw.close()


async def test_nothing_is_read_for_a_reader_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with HttpNode(tmp_path, HttpBounds(output_bytes_max=16_384)) as node:
        await node.create("orders", 1)
        for _ in range(40):
            await publish(node, "x" * 500_000)
        taken = []
        take = tail.Tail.take  # type: ignore[attr-defined]

        def counted(self, *arguments):
            found = take(self, *arguments)
            taken.extend(found)
            return found

        monkeypatch.setattr(tail.Tail, "take", counted)  # type: ignore[attr-defined]
        raw = await follow(node, "?from=earliest")
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        [connection] = node.http._server.server_state.connections
        await becomes(lambda: connection.flow.write_paused)  # type: ignore[union-attr]
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(taken) < 30
        raw.reader._transport.resume_reading()  # type: ignore[attr-defined]
        raw.reader._limit = 2**30
        assert [(await event(raw))[1]["offset"] for _ in range(40)] == list(range(40))
        await raw.close()


async def test_a_client_that_goes_leaves_nothing_behind(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await follow(node)
    assert len(node.http.streams) == 1
    raw.writer.transport.abort()
    await becomes(lambda: not node.http.streams)
    assert not node.broker.partition("orders", 0)._readers


async def test_a_tail_ends_with_its_topic(node: HttpNode) -> None:
    await node.create("orders", 2)
    raw = await follow(node)
    await node.broker.topics.delete("orders")
    async with asyncio.timeout(20):
        # What is left of the last chunk, and the end of the answer; the connection may be used again.
        assert await raw.reader.readuntil(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
    assert status_of(await raw.ask(request("GET", "/health"))) == 200
    assert not node.http.streams
    await raw.close()


async def test_a_tail_ends_with_the_gateway(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await follow(node)
    await node.http.stop()
    assert (await raw.rest()).endswith(b"0\r\n\r\n")
    await raw.close()


async def test_streams_have_a_bound(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(streams_max=1)) as node:
        await node.create("orders", 1)
        raw = await follow(node)
        answer = await node.client.get("/topics/orders/tail")
        assert answer.status_code == 503
        assert answer.json() == {"error": "There are 1 open streams. Close some, or try again later."}
        await raw.close()
        await becomes(lambda: not node.http.streams)
        raw = await follow(node)
        await raw.close()


async def test_a_batch_that_cannot_be_opened_ends_the_stream_behind_what_comes_before_it(node: HttpNode) -> None:
    await node.create("orders", 1)
    await publish(node, "before")
    partition = node.broker.partition("orders", 0)
    header = read_header(build_batch([Record(0, 0, None, b"v")]))
    partition.append(seal(b"\xff" * 50, header, Compression.NONE), 0)
    raw = await follow(node, "?from=earliest")
    assert (await event(raw))[1]["value"] == "before"
    await publish(node, "behind")
    async with asyncio.timeout(20):
        rest = await raw.reader.readuntil(b"\r\n0\r\n\r\n")
    assert b'event: error\ndata: {"error":"A number has more than ten bytes: the batch is malformed' in rest
    await raw.close()
    raw = await node.connect()
    answer = await raw.ask(request("GET", "/topics/orders/partitions/0/messages?offset=1"))
    assert status_of(answer) == 500
    await raw.close()
