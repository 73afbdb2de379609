"""Which records a subscription hands out; topics and groups are real, and the client's side of the stream is this test."""

import pytest
import pytest_asyncio

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.following import Following
from penstock.wire.mq import mq_generated as mq


class Context:
    """What a handler asks of grpc."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


@pytest_asyncio.fixture
async def call(gateways, unary):
    await unary("CreateTopic", mq.CreateTopicRequest(name="t", partitions=2))
    for partition in (0, 1, 0, 1):
        await unary("Publish", mq.PublishRequest(topic="t", payload=b"x", partition=partition))
    return GrpcCall(gateways[0], Context())


async def subscribe(call, consumer="a", group="g", **fields):
    request = mq.SubscribeRequest(topic="t", consumer_group=group, consumer_id=consumer, **fields)
    source = Following(request, call, call.broker.topics.require("t"), {})
    try:
        await source.ready()
    except PenstockError:
        source.close()
        raise
    return source


def places(source, taken):
    messages = [source.message(item) for item in taken]
    read = [mq.Message.FromString(message) for message in messages if message is not None]
    return sorted((message.partition, message.offset) for message in read)


async def test_what_was_taken_of_a_partition_that_went_to_another_is_not_handed_out(call) -> None:
    first = await subscribe(call, "a")
    taken = first.take(100, 1_000_000)
    assert places(first, taken) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    second = await subscribe(call, "b")
    assert places(first, taken) == [(0, 0), (0, 1)]
    assert places(second, second.take(100, 1_000_000)) == [(1, 0), (1, 1)]
    second.close()
    first.close()


async def test_a_subscription_that_ends_leaves_nothing_behind(call) -> None:
    topics = call.broker.topics
    before = len(topics.on_deleted), len(topics.on_changed)
    source = await subscribe(call)
    assert len(topics.on_deleted) == before[0] + 1
    assert call.broker.door.memberships
    source.close()
    assert (len(topics.on_deleted), len(topics.on_changed)) == before
    assert not call.broker.door.memberships
    assert call.broker.groups.describe("g").members == ()
    assert not [partition for partition in call.broker.open_partitions() if partition._readers]


async def test_one_that_cannot_be_opened_leaves_nothing_behind_either(call) -> None:
    topics = call.broker.topics
    before = len(topics.on_deleted), len(topics.on_changed)
    with pytest.raises(PenstockError) as caught:
        await subscribe(call, replay_offset=99)
    assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE
    assert (len(topics.on_deleted), len(topics.on_changed)) == before
    assert not call.broker.door.memberships
    assert call.broker.groups.describe("g").members == ()


async def test_a_replaced_subscription_does_not_take_the_newer_ones_place_when_it_ends(call) -> None:
    older = await subscribe(call)
    newer = await subscribe(call)
    with pytest.raises(PenstockError) as caught:
        await older.ready()
    assert caught.value.reason is Reason.FENCED_INSTANCE_ID
    older.close()
    assert call.broker.door.memberships
    assert len(call.broker.groups.describe("g").members) == 1
    assert len(places(newer, newer.take(100, 1_000_000))) == 4
    newer.close()


async def test_after_a_move_of_the_coordinator_it_continues_after_what_was_sent(call) -> None:
    source = await subscribe(call)
    taken = source.take(100, 1_000_000)
    assert len(places(source, taken[:1])) == 1
    (member,) = call.broker.door.memberships.values()
    member._end(PenstockError(Reason.NOT_COORDINATOR))
    # Who has the partitions is not known now, so nothing of them is sent.
    assert places(source, taken[1:]) == []
    assert source.take(100, 1_000_000) == []
    await source.ready()
    rest = [(partition, offset) for partition in range(2) for offset in range(2)]
    rest.remove((taken[0][0].index, taken[0][1].offset))
    assert places(source, source.take(100, 1_000_000)) == rest
    source.close()


async def test_a_partition_that_another_has_after_a_move_of_the_coordinator_is_not_sent(call) -> None:
    first, second = await subscribe(call, "b"), await subscribe(call, "a")
    taken = first.take(100, 1_000_000), second.take(100, 1_000_000)
    assert [places(first, taken[0]), places(second, taken[1])] == [[(1, 0), (1, 1)], [(0, 0), (0, 1)]]
    for member in list(call.broker.door.memberships.values()):
        member._end(PenstockError(Reason.NOT_COORDINATOR))
    await first.ready()
    # As the only member it has partition 0 as well, from the committed offset on.
    assert places(first, first.take(100, 1_000_000)) == [(0, 0), (0, 1)]
    await second.ready()
    assert places(first, taken[0]) == [(1, 0), (1, 1)]
    assert places(first, first.take(100, 1_000_000)) == []
    assert places(second, second.take(100, 1_000_000)) == []
    first.close()
    second.close()
