"""How many records a worker holds: the queue is real, and the client's side of the stream is this test."""

import pytest_asyncio

from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.leasing import Working
from penstock.wire.mq import mq_generated as mq

LONG_MS = 60_000


class Context:
    """What a handler asks of grpc."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


@pytest_asyncio.fixture
async def call(gateways, unary):
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    for number in range(6):
        await unary("Publish", mq.PublishRequest(topic="t", payload=b"%d" % number))
    return GrpcCall(gateways[0], Context())


def worker(call, **fields):
    request = mq.SubscribeRequest(topic="t", consumer_group="g", consumer_id="w", lease_ms=LONG_MS, **fields)
    return Working(request, call, call.broker.topics.require("t"))


async def taken(source):
    """The next records, sent."""
    await source.ready()
    while not (items := source.take(100, 1_000_000)):
        source.woken.clear()
        await source.woken.wait()
    messages = [mq.Message.FromString(source.message(item)) for item in items]
    source.sent(items, 0)
    return [message.offset for message in messages]


async def test_without_a_bound_what_was_sent_makes_room_for_more(call) -> None:
    source = worker(call)
    got = await taken(source)
    while len(got) < 6:
        got += await taken(source)
    assert got == list(range(6))
    source.close()


async def test_with_a_bound_only_what_is_settled_makes_room(call, unary) -> None:
    source = worker(call, max_in_flight=2)
    assert await taken(source) == [0, 1]
    names = {"topic": "t", "consumer_group": "g", "consumer_id": "w", "partition": 0}
    await unary("Ack", mq.AckRequest(offsets=[1], **names))
    assert await taken(source) == [2]
    await unary("Ack", mq.AckRequest(offsets=[2], cumulative=True, **names))
    assert sorted(await taken(source)) == [3, 4]
    await unary("Nack", mq.NackRequest(offsets=[3], **names))
    assert (await taken(source))[0] in (3, 5)
    status = call.broker.queues.status("t", "g")
    assert sum(part.leased for part in status.partitions) == 2
    source.close()
