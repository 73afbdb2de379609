"""What is carried to another node, as that node sees it, and what comes back of its answer."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import httpx
import msgspec
import pytest

from penstock.core.access import Access, Action, Caller, Principal
from penstock.core.cluster_image import NodeRecord, node_key
from penstock.core.topic_names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC
from penstock.core.topics import NewTopic, Topics
from penstock.gateways.carrying import Carrying
from penstock.gateways.http import carry, peer_connection
from penstock.gateways.http.gateway import HttpBounds, HttpGateway
from penstock.metadata.port import Delete, Event, Put
from penstock.types import Gateway, NodeId
from tests.support.http_node import RawHttp, becomes, post, request, status_of
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE
from tests.support.scripted_node import Answer, Asked, ScriptedNode

MESSAGES = "/topics/t/partitions/0/messages"
TOPIC = "t"
GROUP_TOPICS = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)


class World:
    """Node 7 with its gateway; node 8 leads t/0 and is scripted, and so is 9."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stack = AsyncExitStack()
        self._raws: list[RawHttp] = []

    async def start(self, answer: Answer | None = None, third: Answer | None = None, **bounds: int) -> ScriptedNode:
        self.node = await self.stack.enter_async_context(ClusterNode(self._folder))
        self.node.cluster.secret = b"s" * 32
        other = await self.scripted(OTHER, answer)
        self.third = await self.scripted(THIRD, third)
        self.topic = await self.node.place(TOPIC, (OTHER, THIRD))
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self.gateway = HttpGateway(
            self.node.broker, self.node.flusher.turn, self.node.settings.http, lambda: True, bounds=HttpBounds(**bounds)
        )
        self.gateway.start(listener)
        self.stack.push_async_callback(self.gateway.stop)
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        self.stack.push_async_callback(self.client.aclose)
        return other

    async def scripted(self, node_id: int, answer: Answer | None) -> ScriptedNode:
        made = await self.stack.enter_async_context(ScriptedNode(answer))
        record = NodeRecord(UUID(int=node_id), UUID(int=node_id), {"http": f"127.0.0.1:{made.port}"})
        await self.node.store.txn([], [Put(node_key(node_id), msgspec.json.encode(record))])
        return made

    async def move(self, node_id: int) -> None:
        """Another node leads t/0."""
        record = self.node.broker.topics.partition(self.topic, 0)
        await self.node.set_record(self.topic, 0, leader=node_id, leader_epoch=record.leader_epoch + 1)

    async def raw(self) -> RawHttp:
        raw = RawHttp(*await asyncio.open_connection("127.0.0.1", self.port))
        self._raws.append(raw)
        self.stack.callback(raw.writer.transport.abort)
        return raw

    def mark(self, request: bytes, principal: str = "User:alice") -> str:
        """As another node of the cluster makes it."""
        return Carrying(self.node.broker).mark(NODE, Caller(Principal(principal), Gateway.HTTP, "10.0.0.9"), request)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with world.stack:
        yield world


async def test_a_request_comes_to_its_owner_as_it_was_sent(world: World) -> None:
    other = await world.start()
    await world.client.get(
        f"{MESSAGES}?offset=1&max_records=2",
        headers={"traceparent": "00-abc-def-01", "X-Request-Id": "mine", "X-Own": "1", "Connection": "keep-alive"},
    )
    (asked,) = other.asked
    assert asked.line == f"GET {MESSAGES}?offset=1&max_records=2 HTTP/1.1"
    assert asked.headers["traceparent"] == "00-abc-def-01"
    assert asked.headers["x-request-id"] == "mine"
    assert asked.headers["x-own"] == "1"
    assert asked.headers["host"] == f"127.0.0.1:{other.port}"
    assert "connection" not in asked.headers
    assert "content-length" not in asked.headers


async def test_a_request_without_an_id_is_carried_with_the_one_that_it_gets(world: World) -> None:
    async def echo(asked: Asked) -> None:
        asked.answer(200, b"{}", f"x-request-id: {asked.headers['x-request-id']}")

    other = await world.start(echo)
    answer = await world.client.get(MESSAGES)
    assert answer.headers.get_list("x-request-id") == [other.asked[0].headers["x-request-id"]]


async def test_an_answer_comes_back_as_it_was_given(world: World) -> None:
    async def teapot(asked: Asked) -> None:
        asked.answer(418, b'{"error": "tea"}', "retry-after: 7", "x-own: yes", "date: yesterday")

    await world.start(teapot)
    answer = await world.client.get(MESSAGES)
    assert (answer.status_code, answer.content) == (418, b'{"error": "tea"}')
    assert (answer.headers["retry-after"], answer.headers["x-own"]) == ("7", "yes")
    assert answer.headers.get_list("content-length") == ["16"]
    assert len(answer.headers.get_list("date")) == 1
    assert "yesterday" not in answer.headers["date"]


async def test_a_body_is_carried_with_its_request(world: World) -> None:
    other = await world.start()
    await own_groups(world)
    body = b'{"topic_name": "t", "consumer_id": "a"}'
    await world.client.post("/consumers/a%2Fb/members", content=body)
    (asked,) = other.asked
    assert (asked.line, asked.body) == ("POST /consumers/a%2Fb/members HTTP/1.1", body)


async def test_head_is_carried_without_waiting_for_a_body(world: World) -> None:
    async def head_alone(asked: Asked) -> None:
        asked.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")

    other = await world.start(head_alone)
    answer = await world.client.head(MESSAGES)
    assert (answer.status_code, answer.headers["content-length"]) == (200, "500")
    assert other.asked[0].line.startswith("HEAD ")


async def test_connections_are_kept_for_the_next_request(world: World) -> None:
    other = await world.start()
    for _ in range(5):
        assert (await world.client.get(MESSAGES)).status_code == 200
    assert [asked.connection for asked in other.asked] == [1] * 5


async def test_short_calls_share_a_connection_and_keep_their_order(world: World) -> None:
    held = asyncio.Event()

    async def hold(asked: Asked) -> None:
        if len(other.asked) == 1:
            await held.wait()
        asked.answer(204, b"")

    other = await world.start(hold)
    await own_groups(world)
    raw = await world.raw()
    calls = [post(f"/v1/ack?topic=t&group=g&owner=w&partition=0&offset={n}", b"") for n in range(20)]
    await raw.send(b"".join(calls))
    await becomes(lambda: other.asked)
    held.set()
    for _ in calls:
        assert status_of(await raw.answer()) == 204
    assert [asked.line.rpartition("offset=")[2] for asked in other.asked] == [f"{n} HTTP/1.1" for n in range(20)]
    assert other.connections == 1


async def test_headers_that_the_other_node_would_refuse_are_refused_before_they_cost_others_their_connection(
    world: World,
) -> None:
    other = await world.start(head_bytes_max=2_000)
    await own_groups(world)
    path = "/v1/ack?topic=t&group=g&owner=w&partition=0&offset=0"
    refused = await world.client.post(path, headers={"x-long": "x" * 1_700})
    assert (refused.status_code, other.asked) == (431, [])
    assert (await world.client.post(path)).status_code == 200
    assert other.connections == 1


async def own_groups(world: World) -> None:
    """Node 8 speaks for all groups."""
    for name in GROUP_TOPICS:
        await world.node.broker.topics.create(NewTopic(name, assignments={0: [OTHER, THIRD]}), internal=True)


# Once only.


async def test_a_node_that_is_not_the_one_either_makes_the_first_look_again(world: World) -> None:
    async def not_here(asked: Asked) -> None:
        if len(other.asked) == 2:
            await world.move(THIRD)
        asked.answer(503, b'{"error": "not here"}', "x-penstock-elsewhere: NOT_LEADER_OR_FOLLOWER")

    other = await world.start(not_here)
    answer = await world.client.get(MESSAGES)
    assert (answer.status_code, answer.content) == (200, b"{}")
    assert (len(other.asked), len(world.third.asked)) == (2, 1)


async def test_when_nobody_is_found_in_time_the_client_is_told_to_come_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry, "LOOK_AGAIN_SECONDS_MAX", 0.1)

    async def not_here(asked: Asked) -> None:
        asked.answer(503, b"{}", "x-penstock-elsewhere: NOT_LEADER_OR_FOLLOWER")

    await world.start(not_here)
    answer = await world.client.get(MESSAGES)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"error": "Another node now leads this partition. Send the request again."}
    assert "x-penstock-elsewhere" not in answer.headers


async def test_a_marked_request_is_not_carried_further(world: World) -> None:
    other = await world.start()
    mark = world.mark(f"GET {MESSAGES}".encode())
    answer = await world.client.get(MESSAGES, headers={"X-Penstock-Carried": mark})
    assert (answer.status_code, answer.headers["x-penstock-elsewhere"]) == (503, "NOT_LEADER_OR_FOLLOWER")
    assert not other.asked


async def test_a_marked_call_of_the_fast_lane_is_not_carried_further(world: World) -> None:
    other = await world.start()
    await own_groups(world)
    target = "/v1/ack?topic=t&group=g&owner=w&partition=0&offset=0"
    raw = await world.raw()
    answer = await raw.ask(post(target, b"", f"X-Penstock-Carried: {world.mark(f'POST {target}'.encode())}"))
    assert status_of(answer) == 503
    assert b"x-penstock-elsewhere: NOT_COORDINATOR" in answer
    assert not other.asked


@pytest.mark.parametrize("of", ["GET /other", None])
async def test_a_mark_that_is_not_good_for_this_request_is_nothing(world: World, of: str | None) -> None:
    other = await world.start()
    mark = world.mark(of.encode()) if of else "made-up"
    answer = await world.client.get(MESSAGES, headers={"X-Penstock-Carried": mark})
    assert answer.status_code == 200
    (asked,) = other.asked
    assert asked.headers["x-penstock-carried"] != mark


async def test_access_is_asked_for_the_client_that_the_first_node_saw(world: World) -> None:
    class Recording(Access):
        def require_topic(self, caller: Caller, action: Action, topic: str) -> None:
            callers.append((caller.principal, caller.client, topic))

    await world.start()
    callers: list[tuple[str, str, str]] = []
    await world.node.place("mine", (NODE,))
    world.node.broker.access = Recording()
    target = "/topics/mine/partitions/0/messages"
    await world.client.get(target, headers={"X-Penstock-Carried": world.mark(f"GET {target}".encode())})
    await world.client.get(target)
    assert callers == [("User:alice", "10.0.0.9", "mine"), ("User:ANONYMOUS", "127.0.0.1", "mine")]


# When the other node is lost.


async def test_what_only_looks_is_asked_again_when_its_node_is_lost(world: World) -> None:
    async def cut(asked: Asked) -> None:
        await world.move(THIRD)
        asked.cut()

    await world.start(cut)
    answer = await world.client.get(MESSAGES)
    assert answer.status_code == 200
    assert len(world.third.asked) == 1


async def test_what_may_have_been_done_is_not_sent_again(world: World) -> None:
    async def cut(asked: Asked) -> None:
        asked.cut()

    other = await world.start(cut)
    await own_groups(world)
    for headers in ({}, {"Expect": "100-continue"}):
        answer = await world.client.post(
            "/v1/ack", json={"topic": "t", "group": "g", "owner": "w", "partition": 0, "offset": 0}, headers=headers
        )
        assert (answer.status_code, answer.json()["error"]) == (504, "DEADLINE_EXCEEDED")
        assert "may be done" in answer.json()["message"]
    assert len(other.asked) == 2


async def test_a_node_that_cannot_be_reached_was_asked_nothing_so_another_is(world: World) -> None:
    other = await world.start()
    await own_groups(world)
    other._server.close()
    topics = world.node.broker.topics
    asking = asyncio.ensure_future(world.client.post("/v1/ack?topic=t&group=g&owner=w&partition=0&offset=0"))
    await becomes(lambda: world.gateway.carry is not None and world.gateway.carry._tasks)
    for name in GROUP_TOPICS:
        life = world.node.cluster.nodes.live()[THIRD]
        await world.node.set_record(topics.require(name), 0, leader=THIRD, leader_epoch=1, leader_node_epoch=life)
    assert (await asking).status_code == 200
    assert len(world.third.asked) == 1


async def test_who_waits_for_a_node_that_is_taken_for_dead_is_told(world: World) -> None:
    async def silence(_: Asked) -> None:
        pass

    other = await world.start(silence)
    await own_groups(world)
    waits = asyncio.ensure_future(world.client.post("/v1/ack?topic=t&group=g&owner=w&partition=0&offset=0"))
    await becomes(lambda: other.asked)
    await world.node.store.txn([], [Delete(node_key(OTHER))])
    assert (await waits).status_code == 504


# Streams.


async def consuming(world: World) -> tuple[RawHttp, bytes]:
    raw = await world.raw()
    await raw.send(request("GET", "/v1/consume?topic=t&group=g&owner=w"))
    async with asyncio.timeout(20):
        return raw, await raw.reader.readuntil(b"\r\n\r\n")


async def test_a_stream_comes_piece_by_piece(world: World) -> None:
    go_on = asyncio.Event()

    async def stream(asked: Asked) -> None:
        asked.begin_stream()
        await go_on.wait()
        go_on.clear()
        asked.piece(b"one\n")
        await go_on.wait()
        asked.piece(b"two\n")

    await world.start(stream)
    await own_groups(world)
    raw, head = await consuming(world)
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: application/x-ndjson" in head
    go_on.set()
    async with asyncio.timeout(20):
        assert await raw.reader.readuntil(b"one\n")
        go_on.set()
        assert await raw.reader.readuntil(b"two\n")


async def test_a_client_that_leaves_ends_the_carried_request_at_once(world: World) -> None:
    async def stream(asked: Asked) -> None:
        asked.begin_stream()

    other = await world.start(stream)
    await own_groups(world)
    raw, _ = await consuming(world)
    assert len(world.gateway.on_stop) == 1
    raw.writer.transport.abort()
    await becomes(lambda: other.lost == 1)
    await becomes(lambda: not world.gateway.on_stop)


async def test_a_client_that_leaves_while_it_waits_for_records_is_leased_none(world: World) -> None:
    async def silence(_: Asked) -> None:
        pass

    other = await world.start(silence)
    await own_groups(world)
    for headers in ((), ("Connection: close",)):
        raw = await world.raw()
        before = len(other.asked)
        await raw.send(post("/v1/lease?topic=t&group=g&owner=w&wait_ms=10000", b"", *headers))
        await becomes(lambda before=before: len(other.asked) > before)
        raw.writer.transport.abort()
        await becomes(lambda before=before: other.lost == before + 1)


async def test_a_slow_reader_holds_the_other_node_up(world: World) -> None:
    sent = 0

    async def flood(asked: Asked) -> None:
        nonlocal sent
        asked.begin_stream()
        asked.writer.transport.set_write_buffer_limits(high=64 * 1024)
        while True:
            asked.piece(b"x" * 65_535 + b"\n")
            await asked.writer.drain()
            sent += 65_536

    await world.start(flood)
    await own_groups(world)
    raw, _ = await consuming(world)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    before = -1
    async with asyncio.timeout(20):
        while before != sent:
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
    # Two sockets' buffers and ours, but not all that there is to send.
    assert sent < 40 * 2**20
    (connection,) = next(iter(world.gateway.carry.pool._nodes.values())).all  # type: ignore[union-attr]
    assert connection._exchanges[0].buffered_bytes < 2 * peer_connection.BUFFER_BYTES_MAX


async def lost_behind(world: World, piece: bytes) -> RawHttp:
    """A client of a stream that has this piece of it when the other node is taken for dead."""

    async def stream(asked: Asked) -> None:
        asked.begin_stream()
        asked.piece(piece)

    await world.start(stream)
    await own_groups(world)
    raw, _ = await consuming(world)
    async with asyncio.timeout(20):
        await raw.reader.readuntil(piece)
    await world.node.store.txn([], [Delete(node_key(OTHER))])
    return raw


async def test_a_stream_of_a_node_that_is_lost_ends_well_behind_a_whole_line(world: World) -> None:
    raw = await lost_behind(world, b"one\n")
    async with asyncio.timeout(20):
        assert await raw.reader.readuntil(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
    assert status_of(await raw.ask(request("GET", "/health"))) == 200


async def test_a_stream_that_is_cut_in_the_middle_of_a_line_is_not_ended_as_if_it_were_whole(world: World) -> None:
    raw = await lost_behind(world, b"one\ntw")
    assert await raw.rest() == b"\r\n"


async def test_streams_of_others_count_among_ours(world: World) -> None:
    async def stream(asked: Asked) -> None:
        asked.begin_stream()

    other = await world.start(stream, streams_max=1)
    await own_groups(world)
    await consuming(world)
    refused = await world.client.get("/v1/consume?topic=t&group=g&owner=x")
    assert (refused.status_code, refused.json()["error"]) == (503, "UNAVAILABLE")
    await becomes(lambda: other.lost == 1)


async def test_a_gateway_that_stops_ends_the_streams_that_it_carries(world: World) -> None:
    async def stream(asked: Asked) -> None:
        asked.begin_stream()
        asked.piece(b"one\n")

    other = await world.start(stream)
    await own_groups(world)
    raw, _ = await consuming(world)
    async with asyncio.timeout(20):
        await raw.reader.readuntil(b"one\n")
    stopping = asyncio.ensure_future(world.gateway.stop())
    assert (await raw.rest()).endswith(b"0\r\n\r\n")
    await stopping
    assert other.lost == 1
    assert NodeId(OTHER) in world.node.cluster.nodes.nodes


async def test_a_tail_begins_where_the_leader_says_that_the_topic_ends(world: World) -> None:
    async def watermarks(asked: Asked) -> None:
        asked.answer(200, b'{"high_watermark": 5, "low_watermark": 2}')

    other = await world.start(watermarks)
    async with world.client.stream("GET", "/topics/t/tail") as stream:
        lines = stream.aiter_lines()
        assert [await anext(lines) for _ in range(2)] == [": tail of t", "id: t/* 0@5"]
    assert [asked.line for asked in other.asked] == ["GET /topics/t/partitions/0/offsets HTTP/1.1"]


# A topic that another node made just now.


async def made_elsewhere(world: World, name: str) -> Callable[[], None]:
    """A topic that is agreed on, and not known here before the function is called that this gives."""
    broker = world.node.broker
    held: list[Event] = []
    broker.topics._held_events = held
    others = Topics(world.node.store, broker.clock, broker.entropy, broker.settings)
    await others.load()
    others.placer = broker.topics.placer
    await others.create(NewTopic(name, assignments={0: [NODE]}))

    def learn() -> None:
        broker.topics._held_events = None
        broker.topics._take(held)

    return learn


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/topics/new", b""),
        ("POST", "/topics/new/messages", b'{"value": "v", "acks": "none"}'),
        ("POST", "/v1/produce", b'{"topic": "new", "value": "v"}'),
    ],
)
async def test_a_topic_that_another_node_made_is_known_before_it_is_refused(
    world: World, method: str, path: str, body: bytes
) -> None:
    await world.start()
    learn = await made_elsewhere(world, "new")
    assert world.gateway.carry is not None
    asking = asyncio.ensure_future(world.client.request(method, path, content=body))
    await becomes(lambda: world.gateway.carry._learning)  # type: ignore[union-attr]
    learn()
    answer = await asking
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "status"), [("/topics/none/messages", 404), ("/v1/produce?topic=none&value=v", 400), ("/v1/lease", 400)]
)
async def test_a_topic_that_nobody_made_is_refused_at_once(world: World, path: str, status: int) -> None:
    await world.start()
    answer = await world.client.post(path, content=b'{"value": "v"}' if "topics" in path else b"")
    assert answer.status_code == status
