"""The consume stream between a queue and a server: what leaves when, and what is granted for it."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from penstock.core.dynamic_configs import DynamicConfigs
from penstock.core.quotas.quotas import Quotas
from penstock.core.security.access import INTERNAL
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.v1.consume import WINDOW_FIRST, WINDOW_MAX, WINDOW_MIN, ConsumeStream
from penstock.metadata.memory import MemoryStore
from penstock.meters import Meters
from penstock.operations.queues import Delivery
from penstock.types import Gateway, NodeId, TopicName
from tests.support.worlds import ManualClock


class RecordingWorker:
    """Notes what the stream tells the queue."""

    def __init__(self) -> None:
        self.granted = 0
        self.detached = 0

    def grant(self, count: int) -> None:
        self.granted += count

    def close(self) -> None:
        self.detached += 1


class Server:
    """The ASGI server's side: what was sent, and a reader that can stop reading or leave."""

    def __init__(self) -> None:
        self.sent: list[dict] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.breaks = False

    async def send(self, message) -> None:
        # As uvicorn does: it waits for the reader before it writes, not after.
        while not self.reads.is_set():
            await self.reads.wait()
        if self.breaks and message["more_body"]:
            raise RuntimeError("the handler is closed")
        self.sent.append(message)

    async def receive(self) -> dict:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def values(self) -> list[str]:
        bodies = b"".join(message.get("body", b"") for message in self.sent)
        return [json.loads(line)["value"] for line in bodies.splitlines()]


def deliveries(*values: str) -> list[Delivery]:
    return [Delivery(TopicName("t"), 0, 0, 1, None, value.encode(), (), 0, None, 0) for value in values]


def quotas_of_nobody() -> Quotas:
    store = MemoryStore()
    return Quotas(store, DynamicConfigs(store, NodeId(1), {}), ManualClock(), Meters())


class World:
    def __init__(self) -> None:
        streams: dict = {}
        self.gateway = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            streams=streams,
            end_stream=lambda end: streams.pop(end),
            broker=SimpleNamespace(meters=Meters(), quotas=quotas_of_nobody()),
        )
        self.worker = RecordingWorker()
        self.server = Server()
        self.stream = ConsumeStream(SimpleNamespace(gateway=self.gateway, caller=INTERNAL, request_id=b"id"), "t")  # type: ignore[arg-type]
        self.stream.flow = self.worker
        streams[self.stream.end] = None
        self.serving = asyncio.ensure_future(self.stream({}, self.server.receive, self.server.send))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def world():
    made = World()
    await made.settle()
    yield made
    made.server.reads.set()
    made.stream.end()
    await asyncio.wait_for(made.serving, 5)
    assert made.gateway.streams == {}


async def test_headers_leave_before_there_is_any_record(world) -> None:
    (start,) = world.server.sent
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"])[b"content-type"] == b"application/x-ndjson"
    assert dict(start["headers"])[b"x-request-id"] == b"id"


async def test_lines_leave_within_the_call_that_delivers_them(world) -> None:
    world.stream.deliver(deliveries("a", "b"))
    assert world.server.values == ["a", "b"]
    assert world.worker.granted >= 2
    flow = world.gateway.broker.meters.flow("t", Gateway.HTTP)
    assert (flow.records_out, flow.bytes_out) == (2, len(world.server.sent[-1]["body"]))


async def test_what_is_delivered_before_the_headers_leaves_after_them() -> None:
    made = World()
    made.stream.deliver(deliveries("early"))
    assert made.server.sent == []
    await made.settle()
    assert made.server.sent[0]["type"] == "http.response.start"
    assert made.server.values == ["early"]
    assert made.worker.granted >= 1
    made.stream.end()
    await made.serving


async def test_a_reader_that_stops_is_granted_nothing_until_it_reads_on(world) -> None:
    world.server.reads.clear()
    world.stream.deliver(deliveries("a"))
    world.stream.deliver(deliveries("b", "c"))
    await world.settle()
    assert (world.server.values, world.worker.granted) == ([], 0)
    world.server.reads.set()
    await world.settle()
    assert world.server.values == ["a", "b", "c"]
    granted = world.worker.granted
    assert granted >= 3
    world.stream.deliver(deliveries("d"))
    assert (world.server.values[-1], world.worker.granted) == ("d", granted + 1)


async def test_a_reader_of_small_records_has_many_under_way(world) -> None:
    world.stream.deliver(deliveries("a"))
    assert WINDOW_FIRST - 1 + world.worker.granted == WINDOW_MAX
    world.stream.deliver(deliveries(*"bcde"))
    assert WINDOW_FIRST - 5 + world.worker.granted == WINDOW_MAX


async def test_a_reader_of_large_records_has_few_under_way(world) -> None:
    for taken in range(1, 40):
        world.stream.deliver(deliveries("x" * 100_000))
        standing = WINDOW_FIRST - taken + world.worker.granted
        assert standing >= 0
    assert standing == WINDOW_MIN
    # And many again when they are small again.
    world.stream.deliver(deliveries("a"))
    assert WINDOW_FIRST - 40 + world.worker.granted == WINDOW_MAX


async def test_a_reader_that_leaves_is_detached(world) -> None:
    world.stream.deliver(deliveries("a"))
    world.server.left.set()
    await world.settle()
    assert world.worker.detached == 1


async def test_a_reader_that_leaves_while_it_does_not_read_is_detached(world) -> None:
    world.server.reads.clear()
    world.stream.deliver(deliveries("a"))
    world.server.left.set()
    await world.settle()
    assert world.worker.detached == 1
    assert world.worker.granted == 0


async def test_the_gateways_stop_ends_the_stream_as_a_whole_answer(world) -> None:
    for end in list(world.gateway.streams):
        end()
    await world.settle()
    assert world.server.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert world.worker.detached == 1


async def test_a_queue_that_is_gone_ends_the_stream(world) -> None:
    world.stream.gone(PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION))
    await world.settle()
    assert world.server.sent[-1]["more_body"] is False


async def test_a_connection_that_is_closed_already_ends_the_stream_and_not_the_queue(world) -> None:
    async def closed(_) -> None:
        raise RuntimeError("the handler is closed")

    world.stream._send = closed
    world.stream.deliver(deliveries("a"))
    world.stream.deliver(deliveries("b"))
    await world.settle()
    assert (world.serving.done(), world.worker.detached, world.worker.granted) == (True, 1, 0)


async def test_a_connection_that_closes_while_its_reader_is_waited_for_ends_the_stream(world) -> None:
    world.server.reads.clear()
    world.server.breaks = True
    world.stream.deliver(deliveries("a"))
    await world.settle()
    world.server.reads.set()
    await world.settle()
    world.server.breaks = False
    assert (world.worker.detached, world.worker.granted) == (1, 0)
