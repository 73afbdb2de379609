"""One connection: answers in the order of the requests, nothing lost, nothing without bound, and a mistake ends one client alone."""

import asyncio
import logging
import socket
import struct
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from penstock.gateways.kafka.answer import Answer
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.limits import CONNECTION_ENDED_MS_MAX, RECEIVE_BACKLOG_BYTES_MAX, RECEIVE_SCRATCH_BYTES, REQUEST_BYTES_MAX
from penstock.settings import LimitSettings
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.headers import decode_response_header
from penstock.wire.kafka.list_offsets_generated import ListOffsetsRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataResponse
from tests.support.kafka_wire import (
    FETCH,
    METADATA,
    PRODUCE,
    WireClient,
    WireNode,
    batch,
    create,
    encode,
    fetch,
    fetched,
    produce,
    produced,
    until,
    values,
)

ONE = batch(b"one")


def waits(topic: str = "t", offset: int = 0, **fields: Any) -> Any:
    """A fetch that would wait for minutes."""
    return fetch(topic, offset, max_wait_ms=100_000, **fields)


async def test_a_fetch_that_is_ended_early_returns_what_was_appended_meanwhile(wire: WireNode) -> None:
    client, other = await wire.connect(), await wire.connect()
    client.send(FETCH, waits(min_bytes=10_000), 12)
    await until(lambda: wire.broker.partition("t", 0)._readers)
    await other.ask(PRODUCE, produce("t", ONE), 9)
    # What a broker that stops does.
    for answer_now in list(wire.gateway.unhurried):
        answer_now()
    assert values(fetched((await client.answer(FETCH, 12))[1]).records) == [b"one"]


async def test_a_mix_of_pipelined_requests_is_answered_in_its_order(wire: WireNode) -> None:
    client = await wire.connect()
    mix = [
        (PRODUCE, produce("t", ONE, acks=1), 9),
        (FETCH, fetch("t", 0), 12),
        (PRODUCE, produce("t", ONE, acks=-1), 9),
        (METADATA, MetadataRequest(), 12),
        (ApiKey.CREATE_TOPICS, create("fresh"), 7),
        (PRODUCE, produce("fresh", ONE, acks=-1), 9),
        (PRODUCE, produce("t", ONE, acks=1), 7),
        (ApiKey.INIT_PRODUCER_ID, API[ApiKey.INIT_PRODUCER_ID].decode_request(b"\xff\xff\0\0\0\0", 0, 0), 0),
        (FETCH, waits(offset=3), 12),
        (ApiKey.API_VERSIONS, ApiVersionsRequest("a", "1"), 3),
        (PRODUCE, produce("t", ONE, ONE, acks=-1), 9),
        (ApiKey.LIST_OFFSETS, ListOffsetsRequest(), 6),
    ]
    sent = client.send_all(mix)
    answers = []
    for number, (key, _, version) in enumerate(mix):
        if number == 8:
            # What stands behind the fetch is not begun, so nobody but another client can end its wait.
            other = await wire.connect()
            await until(lambda: wire.broker.partition("t", 0)._readers)
            assert produced(await other.ask(PRODUCE, produce("t", ONE), 9)).base_offset == 3
        answers.append(await client.answer(key, version))
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert [produced(answers[n][1]).base_offset for n in (0, 2, 5, 6)] == [0, 1, 0, 2]
    assert values(fetched(answers[8][1]).records) == [b"one"]
    assert [p.base_offset for p in answers[10][1].responses[0].partition_responses] == [4, 0]


async def test_produces_behind_a_suspended_request_keep_their_order(wire: WireNode) -> None:
    client, other = await wire.connect(), await wire.connect()
    count = 300
    client.send_all(
        [(FETCH, waits(partition=1), 12)]
        + [(PRODUCE, produce("t", batch(b"%d" % n), acks=n % 3 - 1), 9) for n in range(count)]
    )
    await until(lambda: wire.broker.partition("t", 1)._readers)
    assert wire.broker.partition("t", 0).log.next_offset == 0
    await other.ask(PRODUCE, produce("t", ONE, partition=1), 9)
    await client.receive()
    offsets = [produced((await client.answer(PRODUCE, 9))[1]).base_offset for n in range(count) if n % 3 != 1]
    assert offsets == [n for n in range(count) if n % 3 != 1]
    stored = await other.ask(FETCH, fetch("t", 0), 12)
    assert values(fetched(stored).records) == [b"%d" % n for n in range(count)]


async def test_without_acknowledgement_nothing_is_answered(wire: WireNode) -> None:
    client = await wire.connect()
    for version in (3, 9):
        for _ in range(3):
            client.send(PRODUCE, produce("t", ONE, acks=0), version)
    sent = client.send(METADATA, MetadataRequest(), 1)
    assert (await client.answer(METADATA, 1))[0] == sent
    assert wire.broker.partition("t", 0).log.next_offset == 6


@pytest.mark.parametrize("earlier", [0, 1, 2], ids=["general", "general again", "lane"])
async def test_a_refusal_that_cannot_be_answered_closes_the_connection(wire: WireNode, earlier: int) -> None:
    client = await wire.connect()
    for _ in range(earlier):
        client.send(PRODUCE, produce("t", ONE, acks=0), 9)
    client.send(PRODUCE, produce("t", ONE[:-1], acks=0), 9)
    client.send(PRODUCE, produce("t", ONE, acks=0), 9)
    assert await client.closed_by_peer()
    assert wire.broker.partition("t", 0).log.next_offset == earlier


async def test_a_client_that_has_said_all_gets_every_answer(wire: WireNode) -> None:
    client, other = await wire.connect(), await wire.connect()
    mix = [
        (PRODUCE, produce("t", ONE, acks=-1), 9),
        (FETCH, waits(partition=1), 12),
        (METADATA, MetadataRequest(), 12),
        (PRODUCE, produce("t", ONE, acks=0), 9),
        (PRODUCE, produce("t", ONE, acks=1), 9),
        (FETCH, fetch("t", 0), 12),
    ]
    sent = client.send_all(mix)
    client.writer.write_eof()
    await until(lambda: wire.broker.partition("t", 1)._readers)
    await other.ask(PRODUCE, produce("t", ONE, partition=1), 9)
    got = [(await client.answer(key, version))[0] for key, request, version in mix if getattr(request, "acks", 1)]
    assert got == [correlation_id for n, correlation_id in enumerate(sent) if n != 3]
    assert await client.closed_by_peer()
    await until(lambda: len(wire.connections()) == 1)


async def test_a_client_that_has_said_all_and_wants_no_answer_is_let_go(wire: WireNode) -> None:
    await wire.create("packed", compression_type="gzip")
    client = await wire.connect()
    client.send(PRODUCE, produce("packed", ONE, acks=0), 9)
    client.writer.write_eof()
    assert await client.closed_by_peer()
    assert wire.broker.partition("packed", 0).log.next_offset == 1
    await until(lambda: not wire.connections())


async def test_half_a_frame_behind_the_last_answer_does_not_keep_the_connection(wire: WireNode) -> None:
    client, other = await wire.connect(), await wire.connect()
    client.send(FETCH, waits(), 12)
    client.writer.write(encode(METADATA, MetadataRequest(), 12)[:-1])
    client.writer.write_eof()
    await until(lambda: wire.broker.partition("t", 0)._readers)
    await other.ask(PRODUCE, produce("t", ONE), 9)
    await client.receive()
    assert await client.closed_by_peer()


async def test_a_slow_reader_that_has_said_all_still_gets_every_answer(tmp_path: Path) -> None:
    async with WireNode(tmp_path, limits=LimitSettings(connection_pending_output_bytes_max=100_000)) as node:
        await node.create("t", 2)
        other = await node.connect()
        await other.ask(PRODUCE, produce("t", batch(bytes(900_000))), 9)
        client = await slow_client(node)
        count = 20
        client.send_all([(FETCH, waits(partition=1), 12)] + [(FETCH, fetch("t", 0), 12)] * count)
        client.writer.write_eof()
        await until(lambda: node.broker.partition("t", 1)._readers)
        await other.ask(PRODUCE, produce("t", ONE, partition=1), 9)
        await client.receive()
        for _ in range(count):
            assert len(fetched((await client.answer(FETCH, 12))[1]).records) > 900_000
        assert await client.closed_by_peer()


async def slow_client(node: WireNode) -> WireClient:
    """A client with small buffers, so that what it does not read stays with the broker."""
    plain = socket.socket(socket.AF_INET)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (node.address.host, node.address.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
    client = WireClient(reader, writer)
    node._stack.push_async_callback(client.close)
    return client


def peer(node: WireNode, client: WireClient) -> KafkaConnection:
    """The broker's side of a client's connection."""
    port = client.writer.get_extra_info("sockname")[1]
    return next(each for each in node.connections() if each._transport.get_extra_info("peername")[1] == port)


class Watched(deque[Answer]):
    """A connection's answers, which remember how many there were at most, and how many bytes."""

    count_max = bytes_max = 0

    def append(self, answer: Answer) -> None:
        super().append(answer)
        self.count_max = max(self.count_max, len(self))
        self.bytes_max = max(self.bytes_max, sum(len(part) for each in self for part in each.parts or []))


async def test_answers_that_nobody_reads_are_bounded_and_none_is_lost(tmp_path: Path) -> None:
    bound, size, count = 300_000, 100_000, 100
    async with WireNode(tmp_path, limits=LimitSettings(connection_pending_output_bytes_max=bound)) as node:
        await node.create("t")
        await (await node.connect()).ask(PRODUCE, produce("t", batch(bytes(size))), 9)
        client = await slow_client(node)
        ours = peer(node, client)
        answers = ours._answers = Watched()
        client.send_all([(FETCH, fetch("t", 0), 12)] * count)
        await until(lambda: ours._paused)
        held = 0
        for _ in range(300):
            await asyncio.sleep(0)
            held = max(held, ours._transport.get_write_buffer_size())
        # The size of an answer is known only when it is there, so the last one may pass the bound.
        assert answers.bytes_max < bound + size
        assert bound < held < 2 * (bound + size + 1000)
        for _ in range(count):
            assert len(fetched((await client.answer(FETCH, 12))[1]).records) > size
        await until(lambda: not ours._paused)


async def test_requests_without_an_answer_are_bounded_and_none_is_lost(tmp_path: Path) -> None:
    async with WireNode(tmp_path, limits=LimitSettings(connection_pending_requests_max=10)) as node:
        await node.create("t")
        client = await node.connect()
        await until(node.connections)
        ours = peer(node, client)
        answers = ours._answers = Watched()
        sent = client.send_all([(PRODUCE, produce("t", ONE, acks=n % 2 or -1), 9) for n in range(200)])
        for number, correlation_id in enumerate(sent):
            came, response = await client.answer(PRODUCE, 9)
            assert (came, produced(response).base_offset) == (correlation_id, number)
        assert answers.count_max == 10


async def test_bytes_behind_a_suspended_request_are_bounded(wire: WireNode) -> None:
    client, other = await wire.connect(), await wire.connect()
    ours = peer(wire, client)
    client.send(FETCH, waits(partition=1), 12)
    count, size = 100, 50_000
    client.send_all([(PRODUCE, produce("t", batch(bytes(size))), 9)] * count)
    await until(lambda: ours._paused)
    assert ours._frames.unread < RECEIVE_BACKLOG_BYTES_MAX + RECEIVE_SCRATCH_BYTES + size
    await other.ask(PRODUCE, produce("t", ONE, partition=1), 9)
    await client.receive()
    for number in range(count):
        assert produced((await client.answer(PRODUCE, 9))[1]).base_offset == number
    assert not ours._paused


async def test_frames_byte_by_byte_are_requests_too(wire: WireNode) -> None:
    client = await wire.connect()
    stream = encode(PRODUCE, produce("t", ONE), 9, 1) + encode(PRODUCE, produce("t", ONE), 9, 2)
    ours = peer(wire, client)
    for n in range(len(stream)):
        ours.get_buffer(-1)[:1] = stream[n : n + 1]
        ours.buffer_updated(1)
    assert produced((await client.answer(PRODUCE, 9))[1]).base_offset == 0
    assert produced((await client.answer(PRODUCE, 9))[1]).base_offset == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", 7) + bytes(7), id="no room for a header"),
        pytest.param(struct.pack(">i", REQUEST_BYTES_MAX + 1), id="over the limit"),
        pytest.param(struct.pack(">ihhi", 8, 9999, 0, 1), id="unknown API"),
        pytest.param(struct.pack(">ihhi", 8, 17, 0, 1), id="API that is not served"),
        pytest.param(struct.pack(">ihhi", 8, 3, 99, 1), id="version that is not served"),
        pytest.param(struct.pack(">ihhi", 8, 3, -1, 1), id="negative version"),
        pytest.param(struct.pack(">ihhi", 8, 3, 1, 1), id="no client id"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, 500), id="client id longer than the frame"),
        pytest.param(encode(METADATA, MetadataRequest(), 1)[:-1] + b"\xee", id="count that lies"),
    ],
)
async def test_what_is_no_request_closes_the_connection_and_nothing_else(wire: WireNode, data: bytes, caplog) -> None:
    client, other = await wire.connect(), await wire.connect()
    sent = client.send(METADATA, MetadataRequest(), 1)
    client.writer.write(data)
    assert (await client.answer(METADATA, 1))[0] == sent
    assert await client.closed_by_peer()
    assert (await other.ask(METADATA, MetadataRequest(), 1)).brokers
    await until(lambda: len(wire.connections()) == 1)
    assert [record.levelno for record in caplog.records if record.name == "penstock.kafka"] == [logging.WARNING]


async def test_a_mistake_of_ours_costs_one_connection_and_is_told_to_the_operator(wire: WireNode, caplog) -> None:
    def fails(request: object, context: object) -> None:
        raise RuntimeError("a bug")

    async def fails_later(request: object, context: object) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a later bug")

    other = await wire.connect()
    for number, handler in enumerate((fails, fails_later), start=1):
        wire.gateway.served[int(ApiKey.LIST_OFFSETS)].handle = handler
        client = await wire.connect()
        client.send(METADATA, MetadataRequest(), 1)
        client.send(ApiKey.LIST_OFFSETS, ListOffsetsRequest(), 6)
        await client.receive()
        assert await client.closed_by_peer()
        assert caplog.text.count("Traceback") == number
    assert (await other.ask(METADATA, MetadataRequest(), 1)).brokers


async def test_an_answer_that_cannot_be_encoded_ends_its_connection(wire: WireNode, caplog) -> None:
    async def too_long(request: object, context: object) -> MetadataResponse:
        return MetadataResponse(cluster_id="x" * 2**15)

    wire.gateway.served[int(METADATA)].handle = too_long
    client = await wire.connect()
    client.send(METADATA, MetadataRequest(), 2)
    assert await client.closed_by_peer()
    assert "Traceback" in caplog.text


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0_and_the_connection_stays(
    wire: WireNode,
) -> None:
    client = await wire.connect()
    for version in (5, 99, 32767, -1):
        client.writer.write(struct.pack(">ihhih", 12, 18, version, 77, 2) + b"me"[:2])
        frame = await client.receive()
        correlation_id, position = decode_response_header(frame, 0, 0)
        answer = API[ApiKey.API_VERSIONS].decode_response(frame, position, 0)
        assert (correlation_id, answer.error_code) == (77, 35)
        assert {key.api_key for key in answer.api_keys} == set(wire.gateway.served)
    assert (await client.ask(METADATA, MetadataRequest(), 1)).brokers


async def test_a_connection_that_is_silent_too_long_is_closed(tmp_path: Path) -> None:
    async with WireNode(tmp_path, limits=LimitSettings(connection_idle_ms_max=5000)) as node:
        await node.create("t")
        silent, busy, waiting = await node.connect(), await node.connect(), await node.connect()
        waiting.send(FETCH, waits(), 12)
        await until(lambda: node.broker.partition("t", 0)._readers)
        for _ in range(3):
            node.gateway._look_after()
            await busy.ask(METADATA, MetadataRequest(), 1)
            node.clock.advance(3000)
        node.gateway._look_after()
        assert await silent.closed_by_peer()
        await busy.ask(PRODUCE, produce("t", ONE), 9)
        assert values(fetched((await waiting.answer(FETCH, 12))[1]).records) == [b"one"]


async def test_a_client_that_has_closed_its_side_and_gets_no_answer_is_let_go_after_a_while(tmp_path: Path) -> None:
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        waiting, ended, other = await node.connect(), await node.connect(), await node.connect()
        for client in (waiting, ended):
            client.send_all([(FETCH, waits(), 12), (FETCH, waits(partition=1), 12)])
        ended.writer.write_eof()
        ours = peer(node, ended)
        await until(lambda: ours._ended and node.broker.partition("t", 0)._readers)

        def look_after(passed_ms: int) -> None:
            node.gateway._look_after()
            node.clock.advance(passed_ms)
            node.gateway._look_after()

        look_after(CONNECTION_ENDED_MS_MAX)
        assert ours in node.connections()
        # An answer is a sign that it may be read.
        await other.ask(PRODUCE, produce("t", ONE), 9)
        await ended.receive()
        await until(lambda: node.broker.partition("t", 1)._readers)
        look_after(CONNECTION_ENDED_MS_MAX)
        assert ours in node.connections()
        look_after(1)
        assert await ended.closed_by_peer()
        await until(lambda: len(node.connections()) == 2)


async def test_a_silent_connection_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    limits = LimitSettings(connection_idle_ms_max=5000, connection_pending_output_bytes_max=10_000)
    async with WireNode(tmp_path, limits=limits) as node:
        await node.create("t")
        await (await node.connect()).ask(PRODUCE, produce("t", batch(bytes(900_000))), 9)
        client = await slow_client(node)
        ours = peer(node, client)
        client.send_all([(FETCH, fetch("t", 0), 12)] * 10)
        await until(lambda: ours._choked and not ours._answers)
        node.gateway._look_after()
        node.clock.advance(6000)
        node.gateway._look_after()
        await until(lambda: ours not in node.connections())


async def test_a_client_that_vanishes_while_it_waits_leaves_nothing_behind(wire: WireNode) -> None:
    partition = wire.broker.partition("t", 0)
    for _ in range(5):
        client = await wire.connect()
        client.send_all([(FETCH, waits(), 12), (PRODUCE, produce("t", ONE), 9)])
        await until(lambda: partition._readers)
        linger = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.writer.transport.abort()
        await until(lambda: not partition._readers)
    await until(lambda: not wire.connections())
    assert partition.log.next_offset == 0


async def test_a_client_that_closes_while_it_waits_is_forgotten_when_its_wait_ends(wire: WireNode) -> None:
    """A closed client looks like one that only has nothing more to say, until an answer is sent."""
    partition = wire.broker.partition("t", 0)
    client = await wire.connect()
    client.send(FETCH, fetch("t", 0, max_wait_ms=50), 12)
    await until(lambda: partition._readers)
    await client.close()
    await until(lambda: not partition._readers and not wire.connections())


async def test_an_answer_that_takes_longer_than_the_client_gave_says_so_once(tmp_path: Path) -> None:
    """The disk is held up: what is appended is neither written nor synced before the time is up."""
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        for requests in (
            [produce("t", ONE, ONE, timeout_ms=1500), produce("t", ONE, timeout_ms=100_000)],
            [produce("t", ONE, timeout_ms=1500), produce("t", ONE, timeout_ms=100_000)],
        ):
            client = await node.connect()
            ours = peer(node, client)
            # The lane needs an example first.
            await client.ask(PRODUCE, produce("t", ONE, timeout_ms=1500), 9)
            for number, request in enumerate(requests):
                frame = encode(PRODUCE, request, 9, number)
                ours.get_buffer(-1)[: len(frame)] = frame
                ours.buffer_updated(len(frame))
            # Still in the turn in which they came: nothing is written.
            node.clock.advance(3000)
            ours.look_after(node.clock.monotonic_ms())
            late = (await client.answer(PRODUCE, 9))[1].responses[0].partition_responses
            assert {(each.error_code, each.base_offset) for each in late} == {(7, -1)}
            assert produced((await client.answer(PRODUCE, 9))[1]).error_code == 0
            await client.ask(METADATA, MetadataRequest(), 1)
