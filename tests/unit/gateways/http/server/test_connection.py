"""What one connection may hold, how long it may stand still, and how it is told so."""

import asyncio
import json
from pathlib import Path

import pytest

from penstock.core.publish import Placed
from penstock.gateways.http.server.connection import HttpConnection
from penstock.gateways.http.server.gateway import HttpBounds
from penstock.limits import KIB, MIB
from penstock.settings import HttpSettings
from tests.support.http_node import HttpNode, becomes, body_of, post, request, status_of

MESSAGES = "/topics/orders/messages"
HEALTH = request("GET", "/health")


def connections(node: HttpNode) -> list[HttpConnection]:
    return list(node.http._server.server_state.connections)  # type: ignore[arg-type]


async def until(node: HttpNode, count: int) -> None:
    await becomes(lambda: node.http.connection_count == count)


@pytest.mark.parametrize(
    ("path", "shape"),
    [("/topics", {"error"}), ("/v1/topics", {"error", "message"})],
)
async def test_a_head_that_is_too_large_is_refused_in_shape(tmp_path: Path, path: str, shape: set[str]) -> None:
    async with HttpNode(tmp_path, HttpBounds(head_bytes_max=1024)) as node:
        for header in (f"X-Long: {'x' * 4096}", "\r\n".join(f"X-{n}: {n}" for n in range(500))):
            raw = await node.connect()
            answer = await raw.ask(request("GET", path, headers=[header]))
            assert status_of(answer) == 431
            body = json.loads(body_of(answer))
            assert set(body) == shape
            assert "The headers of a request can have at most 1024 bytes. Send fewer headers." in body.values()
            assert await raw.rest() == b""
            await raw.close()


@pytest.mark.parametrize("begin", [b"GET /topics HTTP/1.1\r\nX: ", b"POST " + b"/" * 100, b"GET /"])
async def test_a_head_without_an_end_is_refused_though_it_came_at_once(tmp_path: Path, begin: bytes) -> None:
    async with HttpNode(tmp_path, HttpBounds(head_bytes_max=1024)) as node:
        raw = await node.connect()
        await raw.send(begin + b"x" * 2000)
        assert status_of(await raw.answer()) == 431


async def test_a_head_that_begins_behind_a_large_body_is_not_too_large(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(head_bytes_max=1024)) as node:
        raw = await node.connect()
        large = request("POST", "/topics", b'{"name": "' + b"n" * 3000 + b'"}')
        await raw.send(large + b"GET /health HTTP/1.1\r\nX: ")
        assert status_of(await raw.answer()) == 400
        await raw.send(b"1\r\n\r\n")
        assert status_of(await raw.answer()) == 200


@pytest.mark.parametrize("begin", [b"GET /topics HTTP/1.1\r\nX: ", b"POST " + b"/" * 100, b"GET /"])
async def test_a_head_without_an_end_is_refused(tmp_path: Path, begin: bytes) -> None:
    async with HttpNode(tmp_path, HttpBounds(head_bytes_max=1024)) as node:
        raw = await node.connect()
        await raw.send(begin)
        for _ in range(64):
            if raw.writer.is_closing():
                break
            raw.writer.write(b"x" * 256)
        assert status_of(await raw.answer()) == 431
        await raw.close()


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x00\x05hello\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"])
async def test_noise_is_refused_in_json_and_disturbs_nobody(node: HttpNode, noise: bytes) -> None:
    raw = await node.connect()
    answer = await raw.ask(noise)
    assert status_of(answer) == 400
    assert json.loads(body_of(answer)) == {"error": "The request is not valid HTTP/1.1. Check the client."}
    assert await raw.rest() == b""
    assert (await node.client.get("/health")).status_code == 200
    await raw.close()


async def test_connections_over_the_limit_are_told_so_in_shape(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(connections_max=2)) as node:
        served = [await node.connect() for _ in range(2)]
        for raw in served:
            assert status_of(await raw.ask(HEALTH)) == 200
        text = "There are 2 open connections. Close some, or try again later."
        for path, shape in (("/health", {"error": text}), ("/v1/x", {"error": "UNAVAILABLE", "message": text})):
            raw = await node.connect()
            answer = await raw.ask(request("GET", path))
            assert status_of(answer) == 503
            assert json.loads(body_of(answer)) == shape
            assert await raw.rest() == b""
            await raw.close()
        assert status_of(await served[0].ask(HEALTH)) == 200
        await served[1].close()
        await until(node, 1)
        raw = await node.connect()
        assert status_of(await raw.ask(HEALTH)) == 200
        for each in (raw, served[0]):
            await each.close()
        assert node.broker.meters.connections_refused.total == 2


async def test_far_too_many_connections_are_cut(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(connections_max=1)) as node:
        opened = [await node.connect() for _ in range(120)]
        await becomes(lambda: sum(raw.reader.at_eof() or raw.reader.exception() is not None for raw in opened) >= 15)
        assert status_of(await opened[0].ask(HEALTH)) == 200
        for raw in opened:
            await raw.close()


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(body_bytes_max=1000)) as node:
        await node.create("orders", 1)
        text = "The body is larger than 1000 bytes. Send it in smaller parts."
        raw = await node.connect()
        answer = await raw.ask(b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n")
        assert (status_of(answer), json.loads(body_of(answer))) == (413, {"error": text})
        assert await raw.rest() == b""
        await raw.close()
        raw = await node.connect()
        chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
        await raw.send(
            b"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + chunk
        )
        answer = await raw.answer()
        assert (status_of(answer), json.loads(body_of(answer))) == (413, {"error": text})
        await raw.close()


@pytest.mark.parametrize(
    ("begin", "idle_ms"),
    [
        (b"", 75_000),
        (HEALTH, 75_000),
        (post(MESSAGES, b'{"value":"x"}'), 75_000),
        (b"GET /hea", 30_000),
        (b"POST /topics/orders/mess", 30_000),
        (post(MESSAGES, b'{"value":"x"}')[:-3], 30_000),
        (request("POST", "/topics", b"{", headers=["Content-Length: 9"], length=False), 30_000),
    ],
)
async def test_a_connection_that_stands_still_is_closed(node: HttpNode, begin: bytes, idle_ms: int) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    await raw.send(begin)
    if idle_ms > 30_000 and begin:
        await raw.answer()
    await until(node, 1)
    # The first look finds it active, and counts from there.
    await _look_until(node, lambda connection: not connection._active)
    node.clock.advance(idle_ms)
    node.http.look_after()
    assert node.http.connection_count == 1
    node.clock.advance(1)
    node.http.look_after()
    assert await raw.rest() == b""
    await raw.close()


async def _look_until(node: HttpNode, condition) -> None:
    [connection] = connections(node)
    for _ in range(5):
        # What was sent a moment ago is to be read first.
        await asyncio.sleep(0)
        node.http.look_after()
    assert condition(connection)


async def test_a_request_under_way_is_waited_for(node: HttpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.create("orders", 1)
    done = []
    monkeypatch.setattr(node.broker.publisher, "publish", lambda *arguments: done.append(arguments[-1]))
    raw = await node.connect()
    await raw.send(post(MESSAGES, b'{"value":"x"}'))
    await becomes(lambda: done)
    node.http.look_after()
    node.clock.advance(3_600_000)
    node.http.look_after()
    monkeypatch.undo()
    done[0]([Placed(0, 5, 0)])
    assert json.loads(body_of(await raw.answer()))["offset"] == 5
    await raw.close()


async def test_a_client_that_takes_no_answers_is_not_read_from_and_then_closed(tmp_path: Path) -> None:
    bounds = HttpBounds(output_bytes_max=64 * KIB)
    async with HttpNode(tmp_path, bounds) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        raw.writer.transport.set_write_buffer_limits(high=0)
        # Each answer is a good deal larger than its request.
        batch = post(MESSAGES, b"[" + b",".join([b'{"value":""}'] * 200) + b"]")
        sending = asyncio.ensure_future(raw.send(batch * 2000))
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        [connection] = connections(node)
        await becomes(lambda: connection.flow.write_paused)
        for _ in range(200):
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() < 2 * 64 * KIB
        assert len(connection._answers) <= 1024
        assert connection._held_bytes < 1024 * KIB
        assert connection.flow.read_paused
        node.http.look_after()
        node.clock.advance(30_001)
        node.http.look_after()
        await until(node, 0)
        sending.cancel()
        await asyncio.wait([sending])


async def test_answers_under_way_leave_before_the_gateway_stops(tmp_path: Path) -> None:
    async with HttpNode(tmp_path) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        await raw.send(post(MESSAGES, b'{"value":"x"}') * 50)
        await becomes(lambda: node.broker.partition("orders", 0).log.next_offset)
        await node.http.stop()
        answers = await raw.rest()
        assert answers.count(b"HTTP/1.1 200") == node.broker.partition("orders", 0).log.next_offset
        await raw.close()


@pytest.mark.parametrize("cut", [2, 60])
async def test_a_head_that_is_cut_may_be_followed_by_more_requests_than_a_head_has_room(
    node: HttpNode, cut: int
) -> None:
    one = request("GET", "/health", headers=["X-Cut: " + "y" * 60])
    raw = await node.connect()
    await raw.send(one[:cut])
    # By the time another is answered, the piece was taken by itself.
    other = await node.connect()
    assert status_of(await other.ask(HEALTH)) == 200
    await other.close()
    count = 2 * node.http.bounds.head_bytes_max // len(one) + 2
    await raw.send(one[cut:] + one * count)
    for _ in range(count + 1):
        assert status_of(await raw.answer()) == 200
    await raw.close()


@pytest.mark.parametrize("cut", range(1, 7))
async def test_a_hot_request_that_is_cut_in_its_first_word_stays_in_the_lane(node: HttpNode, cut: int) -> None:
    await node.create("orders", 1)
    one = post(MESSAGES, b'{"value":"x"}')
    raw = await node.connect()
    await raw.send(one[:cut])
    await becomes(lambda: [connection._held_bytes for connection in connections(node)] == [cut])
    assert status_of(await raw.ask(one[cut:])) == 200
    assert node.through_asgi == 0
    await raw.close()


STREAMS = ["/v1/consume?topic=orders&group=g&owner=o", "/topics/orders/tail"]


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_ends_with_its_client_though_other_requests_wait_behind_it(node: HttpNode, path: str) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    await raw.send(request("GET", path) + HEALTH * 3)
    await becomes(lambda: node.http.streams)
    await raw.close()
    await becomes(lambda: not node.http.streams)


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("behind", [HEALTH, post(MESSAGES, b"x" * 100 * KIB)[: 90 * KIB]])
async def test_a_client_that_leaves_is_noticed_though_its_next_request_came_while_the_stream_ran(
    node: HttpNode, path: str, behind: bytes
) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    await raw.send(request("GET", path))
    await raw.reader.readuntil(b"\r\n\r\n")
    (connection,) = connections(node)
    await raw.send(behind)
    await becomes(lambda: connection.pipeline and connection.flow.read_paused)
    raw.writer.close()

    def noticed() -> bool:
        node.http.look_after()
        return not node.http.streams

    await becomes(noticed)
    await until(node, 0)


async def test_more_requests_than_anybody_waits_for_behind_a_stream_end_it(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    await raw.send(request("GET", STREAMS[0]))
    await raw.reader.readuntil(b"\r\n\r\n")
    (connection,) = connections(node)
    await raw.send(HEALTH * 1001)
    await becomes(lambda: connection.flow.read_paused)

    def ended() -> bool:
        node.http.look_after()
        return not node.http.streams

    await becomes(ended)
    await raw.close()


@pytest.mark.parametrize("path", STREAMS)
async def test_a_head_request_begins_no_stream(node: HttpNode, path: str) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    await raw.send(request("HEAD", path) + HEALTH)
    async with asyncio.timeout(20):
        head = await raw.reader.readuntil(b"\r\n\r\n")
    assert status_of(head) == 200
    assert b"ndjson" in head or b"event-stream" in head
    assert json.loads(body_of(await raw.answer())) == {"status": "healthy"}
    assert not node.http.streams
    await raw.close()


async def test_unfinished_bodies_of_all_clients_together_are_bounded(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(held_bytes_max=1 * MIB)) as node:
        await node.create("orders", 1)
        large = post(MESSAGES, b'{"value":"%s"}' % (b"x" * 900 * KIB))
        patient, other = await node.connect(), await node.connect()
        await patient.send(large[:-1])
        await becomes(lambda: node.http.held_bytes > 900 * KIB)
        assert status_of(await other.ask(large)) == 503
        await other.close()
        other = await node.connect()
        assert status_of(await other.ask(post(MESSAGES, b'{"value":"short"}', "Connection: close"))) == 200
        assert status_of(await patient.ask(large[-1:])) == 200
        assert node.http.held_bytes == 0
        await patient.send(large[:-1])
        await becomes(lambda: node.http.held_bytes > 900 * KIB)
        await patient.close()
        await becomes(lambda: node.http.held_bytes == 0)
        await other.close()


@pytest.mark.parametrize(
    "large",
    [
        request("GET", "/topics/orders/partitions/0/messages"),
        post("/v1/lease?topic=orders&group=g&owner=o&max_records=100", b""),
    ],
)
async def test_answers_that_nobody_takes_are_bounded_for_all_clients_together(tmp_path: Path, large: bytes) -> None:
    async with HttpNode(tmp_path, HttpBounds(unsent_bytes_max=1 * MIB)) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        await raw.ask(post(MESSAGES, json.dumps([{"value": "\1" * 100_000}] * 20).encode()))
        # Each character takes six in JSON.
        idle = await node.connect()
        await idle.send(request("GET", "/topics/orders/partitions/0/messages"))
        await becomes(lambda: node.http.unsent_bytes > 1 * MIB)
        assert status_of(await raw.ask(large)) == 503
        assert status_of(await raw.ask(HEALTH)) == 200
        await idle.close()
        await becomes(lambda: node.http.unsent_bytes == 0)
        assert status_of(await raw.ask(request("GET", "/topics/orders/partitions/0/messages"))) == 200
        await raw.close()
