"""The fast lane and ASGI give the same bytes, in the same order, whatever is sent and however it is cut."""

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.publish import Placed
from penstock.gateways.http.server import lane
from penstock.gateways.http.server.gateway import HttpBounds
from penstock.limits import MIB
from tests.support.http_node import HttpNode, becomes, body_of, masked, post, request, status_of

MESSAGES = "/topics/orders/messages"

PUBLISHING = {
    "one": (MESSAGES, b'{"value":"x"}'),
    "one with all fields": (
        MESSAGES,
        b'{"value":"/w==","encoding":"base64","key":"k","partition":1,"headers":{"a":"b"},"acks":"all"}',
    ),
    "acks none": (MESSAGES, b'{"value":"x","acks":"none"}'),
    "space before it": (MESSAGES, b' \r\n\t{"value":"x"} '),
    "query string": (MESSAGES + "?a=b", b'{"value":"x"}'),
    "unicode": (MESSAGES, '{"value":"\u00e9\\ud83d\\ude00"}'.encode()),
    "array": (MESSAGES, b'[{"value":"a"},{"value":"b","partition":0}]'),
    "object of messages": (MESSAGES, b'{"messages":[{"value":"a"},{"value":"b"}],"acks":"all"}'),
    "array with wrong ones": (MESSAGES, b'[{"value":"a"},{"value":1},{},7,{"value":"b","partition":9}]'),
    "object with wrong ones": (MESSAGES, b'{"messages":[{"value":1},{"value":"a"}],"acks":"none"}'),
    "empty array": (MESSAGES, b"[]"),
    "no value": (MESSAGES, b"{}"),
    "wrong value": (MESSAGES, b'{"value":1}'),
    "wrong acks": (MESSAGES, b'{"value":"x","acks":"many"}'),
    "both": (MESSAGES, b'{"value":"x","messages":[]}'),
    "not base64": (MESSAGES, b'{"value":"?","encoding":"base64"}'),
    "partition not there": (MESSAGES, b'{"value":"x","partition":9}'),
    "unknown topic": ("/topics/nobody/messages", b'{"value":"x"}'),
    "unknown topic, array": ("/topics/nobody/messages", b'[{"value":"x"}]'),
    "internal topic": ("/topics/__consumer_offsets/messages", b'{"value":"x"}'),
    "empty body": (MESSAGES, b""),
    "not JSON": (MESSAGES, b"{"),
    "not JSON, array": (MESSAGES, b'[{"value":"a"},'),
    "not UTF-8": (MESSAGES, b'{"value":"\xff"}'),
    "a number": (MESSAGES, b"7"),
    "deep": (MESSAGES, b"[" * 5000),
    "no body": (MESSAGES, b""),
    "a value that is not UTF-8": (MESSAGES, b'{"value":"\xff"}'),
    "messages one of which is not UTF-8": (MESSAGES, b'[{"value":"a"},{"value":"\xff"}]'),
    "too large a record": (MESSAGES, b'{"value":"' + b"x" * 1_100_000 + b'"}'),
    "v1 produce": ("/v1/produce", b'{"topic":"orders","value":"x"}'),
    "v1 produce by query": ("/v1/produce?topic=orders&value=x&key=k", b""),
    "v1 produce with an envelope": (
        "/v1/produce",
        b'{"topic":"orders","value":"x","envelope":{"run_id":"r","idempotency_key":"i","retry_policy":{"max_attempts":2}}}',
    ),
    "v1 produce, unknown topic": ("/v1/produce", b'{"topic":"nobody","value":"x"}'),
    "v1 produce, unknown field": ("/v1/produce", b'{"topic":"orders","value":"x","more":1}'),
    "v1 produce, nothing": ("/v1/produce", b""),
    "v1 produce, not JSON": ("/v1/produce", b"{"),
    "v1 lease of nobody": (
        "/v1/ack",
        b'{"topic":"orders","group":"g","owner":"o","partition":0,"offset":0}',
    ),
    "v1 ack by query": ("/v1/ack?topic=orders&group=g&owner=o&partition=0&offset=0", b""),
    "v1 ack, nothing": ("/v1/ack", b""),
    "v1 ack, unknown topic": ("/v1/ack", b'{"topic":"nobody","group":"g","owner":"o","partition":0,"offset":0}'),
    "v1 nack": ("/v1/nack", b'{"topic":"orders","group":"g","owner":"o","partition":0,"offset":0,"reason":"r"}'),
    "v1 nack, not JSON": ("/v1/nack", b"["),
}


@pytest.fixture
async def lanes(tmp_path: Path) -> AsyncIterator[tuple[HttpNode, HttpNode]]:
    """Two nodes that are alike; the second has no fast lane."""
    async with (
        HttpNode(tmp_path / "fast", HttpBounds(lane_body_bytes_max=2 * MIB)) as fast,
        HttpNode(tmp_path / "slow", HttpBounds(fast_lane=False)) as slow,
    ):
        for node in (fast, slow):
            await node.create("orders", 2)
        yield fast, slow


async def test_every_case_has_the_same_answer_through_both(lanes: tuple[HttpNode, HttpNode]) -> None:
    fast, slow = lanes
    one, other = await fast.connect(), await slow.connect()
    differences = {}
    for name, (path, body) in PUBLISHING.items():
        for header in ("X-Request-Id: mine", "Content-Type: application/json; charset=utf-8"):
            sent = post(path, body, header)
            # Ids that are made count up alike in both.
            answers = [masked(await one.ask(sent)), masked(await other.ask(sent))]
            if answers[0] != answers[1]:
                differences[name] = answers
    assert differences == {}
    assert fast.through_asgi == 0
    assert slow.through_asgi == 2 * len(PUBLISHING)
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    ("headers", "closes"),
    [
        (("Expect: 100-continue",), False),
        (("Connection: close",), True),
        (("Connection: Upgrade", "Upgrade: h2c"), False),
        (("Content-Type: application/x-ndjson",), False),
        (("Transfer-Encoding: chunked",), False),
    ],
)
async def test_what_is_unusual_goes_through_asgi(node: HttpNode, headers: tuple[str, ...], *, closes: bool) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    body = b'{"value":"x"}'
    chunked = "chunked" in headers[0]
    sent = request("POST", MESSAGES, b"d\r\n%s\r\n0\r\n\r\n" % body if chunked else body, headers, length=not chunked)
    await raw.send(sent)
    answer = await raw.answer()
    if b" 100 " in answer:
        answer = await raw.answer()
    assert status_of(answer) == 200
    if closes:
        assert b"connection: close" in answer
        assert await raw.rest() == b""
    assert node.broker.partition("orders", 0).log.next_offset == 1
    await raw.close()


async def test_a_large_body_goes_through_asgi(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(lane_body_bytes_max=100)) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        for size, through_asgi in ((50, 0), (200, 1), (50, 1)):
            assert status_of(await raw.ask(post(MESSAGES, b'{"value":"%s"}' % (b"x" * size)))) == 200
            assert node.through_asgi == through_asgi
        await raw.close()


async def test_a_path_in_percent_signs_is_the_same_topic(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    assert status_of(await raw.ask(post("/topics/order%73/messages", b'{"value":"x"}'))) == 200
    assert node.through_asgi == 1
    await raw.close()


COLD = request("GET", "/health")


def hot(number: int) -> bytes:
    return post(MESSAGES, b'{"value":"%d"}' % number)


@settings(max_examples=20)
# A request for ASGI that is cut while the answer of the lane is awaited.
@example(kinds=[True, False], cuts=[len(hot(0)) + 7, 3])
@given(
    kinds=st.lists(st.booleans(), min_size=1, max_size=30), cuts=st.lists(st.integers(1, 400), min_size=1, max_size=20)
)
def test_pipelined_requests_are_answered_in_order_however_they_are_cut(kinds: list[bool], cuts: list[int]) -> None:
    asyncio.run(_pipelined(kinds, cuts))


_folders = itertools.count()
_root: Path | None = None


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _root  # noqa: PLW0603 - hypothesis and fixtures of a function do not go together
    _root = tmp_path_factory.mktemp("pipelined")


async def _pipelined(kinds: list[bool], cuts: list[int]) -> None:
    assert _root is not None
    async with HttpNode(_root / str(next(_folders)), HttpBounds(pipelined_max=4)) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        data = b"".join(hot(number) if is_hot else COLD for number, is_hot in enumerate(kinds))
        sending = asyncio.ensure_future(_send_in_pieces(raw, data, cuts))
        offset = 0
        for is_hot in kinds:
            answer = json.loads(body_of(await raw.answer()))
            if is_hot:
                assert answer["offset"] == offset
                offset += 1
            else:
                assert answer == {"status": "healthy"}
        await sending
        await raw.close()


async def _send_in_pieces(raw, data: bytes, cuts: list[int]) -> None:
    sizes = itertools.cycle(cuts)
    while data:
        size = next(sizes)
        await raw.send(data[:size])
        # Let the other end read it, so that pieces arrive as pieces.
        await asyncio.sleep(0)
        data = data[size:]


async def test_a_request_for_asgi_waits_for_an_answer_of_the_lane_that_takes_its_time(
    node: HttpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create("orders", 1)
    waiting = []
    monkeypatch.setattr(node.broker.publisher, "publish", lambda *arguments: waiting.append(arguments[-1]))
    raw = await node.connect()
    await raw.send(hot(0) + COLD + hot(1))
    await becomes(lambda: waiting)
    # Another connection is not held up.
    assert (await node.client.get("/health")).status_code == 200
    assert node.through_asgi == 1
    waiting[0]([Placed(0, 7, 0)])
    assert json.loads(body_of(await raw.answer()))["offset"] == 7
    assert json.loads(body_of(await raw.answer())) == {"status": "healthy"}
    await becomes(lambda: len(waiting) == 2)
    waiting[1]([Placed(0, 8, 0)])
    assert json.loads(body_of(await raw.answer()))["offset"] == 8
    await raw.close()


async def test_an_old_client_is_answered_and_let_go(node: HttpNode) -> None:
    await node.create("orders", 1)
    raw = await node.connect()
    body = b'{"value":"x"}'
    await raw.send(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (MESSAGES.encode(), len(body), body))
    answer = await raw.rest()
    assert status_of(answer) == 200
    assert b"connection: close" in answer
    assert node.through_asgi == 1
    await raw.close()


async def test_many_pipelined_requests_wait_for_a_reader_that_is_slow(tmp_path: Path) -> None:
    async with HttpNode(tmp_path, HttpBounds(output_bytes_max=4096, pipelined_max=8)) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        count = 5000
        sending = asyncio.ensure_future(raw.send(b"".join(hot(number) for number in range(count))))
        offsets = [json.loads(body_of(await raw.answer()))["offset"] for _ in range(count)]
        assert offsets == list(range(count))
        await sending
        await raw.close()


async def test_heads_are_remembered_within_bounds(node: HttpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HEADS_MAX", 3)
    await node.create("orders", 1)
    raw = await node.connect()
    for number in range(10):
        await raw.ask(post(MESSAGES, b'{"value":"%s"}' % (b"x" * number)))
        assert 1 <= len(node.http.lane.known) <= 3
    known = set(node.http.lane.known)
    await raw.ask(post(MESSAGES, b'{"value":"x"}', "X-Request-Id: only once"))
    await raw.ask(post(MESSAGES, b'{"value":"x"}', f"X-Long: {'x' * lane.HEAD_BYTES_MAX}"))
    assert set(node.http.lane.known) == known
    await raw.close()


@pytest.mark.parametrize("fast_lane", [True, False])
async def test_a_mistake_of_ours_is_a_500_and_the_connection_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, fast_lane: bool
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    async with HttpNode(tmp_path, HttpBounds(fast_lane=fast_lane)) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(node.broker.publisher, "publish", fail)
            answer = await raw.ask(post(MESSAGES, b'{"value":"x"}', "X-Request-Id: r7"))
        assert status_of(answer) == 500
        assert json.loads(body_of(answer)) == {
            "error": "The broker had an internal error; its log has details under request r7."
        }
        assert "request r7 failed" in caplog.text
        assert "boom" in caplog.text
        assert status_of(await raw.ask(post(MESSAGES, b'{"value":"x"}'))) == 200
        await raw.close()
