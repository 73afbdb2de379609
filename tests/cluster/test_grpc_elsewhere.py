"""Calls at a node that does not own what they ask for, over kills and handovers; three real nodes, real channels."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import StatusCode

from penstock.errors import PenstockError, Reason
from penstock.types import Gateway
from penstock.wire.mq import mq_generated as mq
from tests.cluster.commits import begin_and_lose, refuse_first, take_and_say_nothing
from tests.support.gateway_cluster import SECONDS_MAX, GatewayCluster, GatewayNode
from tests.support.waiting import growing

SERVICE = "/mq.MessageQueueService"


class Client:
    """A client of one node."""

    def __init__(self, node: GatewayNode) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        self.channel = grpc.aio.insecure_channel(node.addresses["grpc"], options=options)

    async def ask(self, name: str, metadata: Any = None, **fields: Any) -> Any:
        request = getattr(mq, f"{name}Request")(**fields)
        method = self.channel.unary_unary(
            f"{SERVICE}/{name}", response_deserializer=getattr(mq, f"{name}Response").FromString
        )
        return await method(request.SerializeToString(), timeout=SECONDS_MAX, metadata=metadata)

    async def subscribe(self, seconds: float = SECONDS_MAX, **fields: Any) -> Any:
        """A stream, once it stands."""
        method = self.channel.unary_stream(f"{SERVICE}/Subscribe", response_deserializer=mq.Message.FromString)
        stream = method(mq.SubscribeRequest(**fields).SerializeToString(), timeout=seconds)
        await stream.initial_metadata()
        return stream

    async def publish(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            await self.ask("Publish", topic=topic, payload=value, partition=partition)


async def read(stream: Any, count: int) -> list[bytes]:
    return [(await stream.read()).payload for _ in range(count)]


async def ended(stream: Any) -> tuple[StatusCode, str]:
    """How a stream ends that gives nothing more."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    return caught.value.code(), caught.value.details() or ""


Connect = Callable[[GatewayNode], Client]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Client] = []

    def connect(node: GatewayNode) -> Client:
        clients.append(Client(node))
        return clients[-1]

    yield connect
    for client in clients:
        await client.channel.close()


def streams(node: GatewayNode) -> int:
    """Open streams that a node serves, and those of members of the groups that it coordinates."""
    assert node.grpc._serving is not None
    return len(node.grpc._serving.streams) + len(node.broker.door.memberships)


async def test_a_reader_goes_on_at_the_next_node_when_its_groups_node_is_killed(
    cluster: GatewayCluster, connect: Connect
) -> None:
    owner = cluster.nodes[1]
    asked, other = cluster.nodes[2], cluster.nodes[3]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2, 3))
    client, publisher = connect(asked), connect(other)
    stream = await client.subscribe(topic=topic, consumer_group=group)
    named = dict(await stream.initial_metadata())["consumer-id"]
    await publisher.publish(topic, b"0", b"1", b"2", partition=1)
    assert await read(stream, 3) == [b"0", b"1", b"2"]
    await owner.kill()
    await publisher.publish(topic, b"3", b"4", partition=1)
    assert await read(stream, 2) == [b"3", b"4"]
    status = await connect(other).ask("GroupStatus", consumer_group=group)
    assert [member.consumer_id for member in status.members] == [named]
    stream.cancel()


async def test_a_reader_goes_on_when_its_own_node_speaks_for_the_group_no_more(
    cluster: GatewayCluster, connect: Connect
) -> None:
    owner, other = cluster.nodes[1], cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    client, publisher = connect(owner), connect(other)
    stream = await client.subscribe(topic=topic, consumer_group=group, max_messages=4)
    await publisher.publish(topic, b"0", b"1")
    assert await read(stream, 2) == [b"0", b"1"]
    await cluster.drain(1)
    assert cluster.coordinator(group) is not owner
    await publisher.publish(topic, b"2", b"3")
    assert await read(stream, 2) == [b"2", b"3"]
    assert await stream.read() is grpc.aio.EOF


async def test_a_reader_goes_on_when_its_groups_node_stops(cluster: GatewayCluster, connect: Connect) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    client = connect(cluster.nodes[2])
    stream = await client.subscribe(topic=topic, consumer_group=group)
    await client.publish(topic, b"0", b"1")
    assert await read(stream, 2) == [b"0", b"1"]
    await owner.stop()
    await client.publish(topic, b"2")
    assert await read(stream, 1) == [b"2"]
    stream.cancel()


async def test_a_node_that_stops_says_so_to_whom_it_carried_for(cluster: GatewayCluster, connect: Connect) -> None:
    owner, asked = cluster.nodes[1], cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    client = connect(asked)
    streams = [
        await client.subscribe(topic=topic, consumer_group=group),
        await client.subscribe(topic=topic, consumer_group=group, lease_ms=1000),
        await client.subscribe(topic=topic),
    ]
    stopping = asyncio.ensure_future(asked.stop())
    for stream in streams:
        assert await ended(stream) == (StatusCode.UNAVAILABLE, "The broker is stopping. Connect again in a moment.")
    await stopping


async def test_a_reader_without_a_group_goes_on_when_the_leader_of_its_partition_is_killed(
    cluster: GatewayCluster, connect: Connect
) -> None:
    topic = await cluster.topic("t", (1, 2))
    client, publisher = connect(cluster.nodes[3]), connect(cluster.nodes[2])
    stream = await client.subscribe(topic=topic)
    await publisher.publish(topic, b"0", b"1")
    assert await read(stream, 2) == [b"0", b"1"]
    await cluster.nodes[1].kill()
    await publisher.publish(topic, b"2")
    await publisher.publish(topic, b"3", partition=1)
    assert sorted(await read(stream, 2)) == [b"2", b"3"]
    stream.cancel()


async def test_a_worker_whose_node_is_lost_subscribes_again_and_gets_what_it_holds_and_nothing_that_it_acked(
    cluster: GatewayCluster, connect: Connect
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    client = connect(cluster.nodes[2])
    await client.publish(topic, b"0", b"1", b"2")
    worker = {"topic": topic, "consumer_group": group, "consumer_id": "w"}
    stream = await client.subscribe(**worker, lease_ms=60_000)
    assert await read(stream, 3) == [b"0", b"1", b"2"]
    await client.ask("Ack", **worker, partition=0, offsets=[1])
    await owner.kill()
    code, text = await ended(stream)
    assert code is StatusCode.UNAVAILABLE
    assert "Subscribe again" in text
    again = await client.subscribe(**worker, lease_ms=60_000)
    assert sorted(await read(again, 2)) == [b"0", b"2"]
    await client.ask("Ack", **worker, partition=0, offsets=[0, 2])
    status = await client.ask("GroupStatus", consumer_group=group)
    assert status.queues[0].partitions[0].floor == 3
    again.cancel()


async def test_a_worker_that_takes_a_number_takes_the_rest_from_the_next_node(
    cluster: GatewayCluster, connect: Connect
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    client = connect(cluster.nodes[2])
    await client.publish(topic, b"0", b"1")
    stream = await client.subscribe(topic=topic, consumer_group=group, consumer_id="w", lease_ms=60_000, max_messages=3)
    assert await read(stream, 2) == [b"0", b"1"]
    await owner.kill()
    await client.publish(topic, b"2")
    assert await read(stream, 1) == [b"2"]
    assert await stream.read() is grpc.aio.EOF


@pytest.mark.parametrize("asked", [1, 2])
async def test_workers_that_wait_move_with_their_groups_node(
    cluster: GatewayCluster, connect: Connect, asked: int
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    client = connect(cluster.nodes[asked])
    work = {"topic": topic, "consumer_group": group, "lease_ms": 60_000}
    polling = await client.subscribe(**work, consumer_id="a", max_messages=1)
    # Nothing was given to it yet, so that there is nothing that it must be told.
    connected = await client.subscribe(**work, consumer_id="b", max_in_flight=1)
    await cluster.drain(1)
    await client.publish(topic, b"0", b"1")
    assert sorted([*await read(polling, 1), *await read(connected, 1)]) == [b"0", b"1"]
    connected.cancel()


async def test_a_worker_that_releases_hands_over_at_once_wherever_it_was_connected(
    cluster: GatewayCluster, connect: Connect
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    client = connect(cluster.nodes[2])
    await client.publish(topic, b"0")
    work = {"topic": topic, "consumer_group": group, "lease_ms": 60_000}
    first = await client.subscribe(**work, consumer_id="a", release_on_disconnect=True)
    assert await read(first, 1) == [b"0"]
    second = await connect(cluster.nodes[3]).subscribe(**work, consumer_id="b")
    first.cancel()
    assert await read(second, 1) == [b"0"]
    second.cancel()
    await cluster.until(lambda: not any(streams(node) for node in cluster.up))


async def test_a_worker_that_comes_back_through_another_node_gets_what_it_holds(
    cluster: GatewayCluster, connect: Connect
) -> None:
    group, topic = cluster.group_of(cluster.nodes[1]), await cluster.topic("t", (2,))
    client, other = connect(cluster.nodes[2]), connect(cluster.nodes[3])
    await client.publish(topic, b"0")
    worker = {"topic": topic, "consumer_group": group, "consumer_id": "a"}
    first = await client.subscribe(**worker, lease_ms=60_000)
    assert await read(first, 1) == [b"0"]
    second = await other.subscribe(**worker, lease_ms=60_000)
    first.cancel()
    message = await second.read()
    assert (message.payload, message.attempts) == (b"0", 1)
    second.cancel()
    await cluster.until(lambda: not any(streams(node) for node in cluster.up))
    assert (await other.ask("Ack", **worker, partition=0, offsets=[0])).success


async def test_a_deadline_ends_the_stream_on_both_nodes(cluster: GatewayCluster, connect: Connect) -> None:
    owner, asked = cluster.nodes[1], cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    client = connect(asked)
    for seconds in growing(0.5):
        try:
            stream = await client.subscribe(seconds=seconds, topic=topic, consumer_group=group)
        except grpc.aio.AioRpcError as error:
            assert error.code() is StatusCode.DEADLINE_EXCEEDED
            continue
        # Unless the time is over already.
        stand = streams(owner), streams(asked)
        assert (await ended(stream))[0] is StatusCode.DEADLINE_EXCEEDED
        await cluster.until(lambda: not streams(owner) and not streams(asked))
        if stand == (1, 1):
            break
    assert stand == (1, 1)


async def test_a_reader_that_takes_nothing_is_not_sent_everything(cluster: GatewayCluster, connect: Connect) -> None:
    asked = cluster.nodes[2]
    group, topic = cluster.group_of(cluster.nodes[1]), await cluster.topic("t", (1,))
    client = connect(asked)
    records = [mq.PublishRequest(payload=bytes(10_000)) for _ in range(100)]
    frame = mq.PublishFrame(topic=topic, records=records).SerializeToString()
    publish = client.channel.stream_stream(f"{SERVICE}/PublishStream")
    sent = publish(iter([frame] * 30), timeout=SECONDS_MAX)
    assert len([answer async for answer in sent]) == 30
    flow = asked.broker.meters.flow(topic, Gateway.GRPC)
    stream = await client.subscribe(topic=topic, consumer_group=group)
    assert len(await read(stream, 1)) == 1
    # Until nothing moves any more between two looks.
    seen = -1
    while flow.records_out != seen:
        seen = flow.records_out
        await connect(asked).ask("GroupStatus", consumer_group=group)
    assert flow.records_out < 500
    assert len(await read(stream, 2999)) == 2999
    stream.cancel()


async def test_a_refusal_that_will_pass_is_looked_at_again(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    refused = refuse_first(owner, monkeypatch)
    client = connect(cluster.nodes[2])
    await client.ask("CommitOffset", topic=topic, consumer_group=group, offset=0)
    assert refused


async def test_what_may_have_been_done_is_not_done_again(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    calls = begin_and_lose(owner, monkeypatch)
    for node in (cluster.nodes[2], owner):
        calls.clear()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await connect(node).ask("CommitOffset", topic=topic, consumer_group=group, offset=0)
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert len(calls) == 1


async def test_a_node_that_dies_with_the_answer_is_not_asked_to_do_it_twice(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    came = take_and_say_nothing(owner, monkeypatch)
    asking = asyncio.ensure_future(
        connect(cluster.nodes[2]).ask("CommitOffset", topic=topic, consumer_group=group, offset=0)
    )
    await came.wait()
    await owner.kill()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asking
    assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
    assert "it may have done this, or not" in (caught.value.details() or "")


async def test_an_operation_that_reaches_the_wrong_node_is_refused_there_and_not_sent_on(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, wrong, asked = cluster.nodes[1], cluster.nodes[2], cluster.nodes[3]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    await connect(owner).ask("CommitOffset", topic=topic, consumer_group=group, offset=0)
    assert asked.broker.cluster is not None
    coordinators, sent = asked.broker.cluster.coordinators, []
    owners = iter((wrong.node_id, owner.node_id))
    monkeypatch.setattr(coordinators, "node_of", lambda _: next(owners))
    monkeypatch.setattr(wrong.broker.door, "router", sent)
    status = await connect(asked).ask("GroupStatus", consumer_group=group)
    assert status.consumer_group == group
    assert next(owners, None) is None
    assert not sent


async def test_a_topic_that_the_other_node_has_not_heard_of_is_waited_for(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[1]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (2,))
    require, came = owner.broker.topics.require, []

    def not_yet(name: str) -> Any:
        came.append(name)
        if len(came) < 2:
            raise PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, "not yet")
        return require(name)

    monkeypatch.setattr(owner.broker.topics, "require", not_yet)
    await connect(cluster.nodes[2]).ask("CommitOffset", topic=topic, consumer_group=group, offset=0)
    assert len(came) == 2


async def test_statistics_of_a_topic_are_gathered_from_the_leaders(cluster: GatewayCluster, connect: Connect) -> None:
    topic = await cluster.topic("t", (1, 2, 3))
    client = connect(cluster.nodes[3])
    for partition, count in enumerate((1, 2, 3)):
        await client.publish(topic, *[b"x"] * count, partition=partition)
    for node in cluster.nodes.values():
        found = await connect(node).ask("TopicStats", topic=topic)
        assert [partition.end_offset for partition in found.partitions] == [1, 2, 3]
        assert found.records == 6


@pytest.mark.parametrize("name", ["Ack", "CommitOffset", "TopicStats", "GroupStatus", "Subscribe", "SubscribeBatch"])
async def test_bytes_that_are_no_request_are_refused_by_whoever_gets_them(
    cluster: GatewayCluster, connect: Connect, name: str
) -> None:
    for node in cluster.nodes.values():
        channel = connect(node).channel
        if name.startswith("Subscribe"):
            answer = channel.unary_stream(f"{SERVICE}/{name}")(b"\xff\xff", timeout=SECONDS_MAX).read()
        else:
            answer = channel.unary_unary(f"{SERVICE}/{name}")(b"\xff\xff", timeout=SECONDS_MAX)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert f"mq.{'Subscribe' if name.startswith('Subscribe') else name}Request" in (caught.value.details() or "")


async def test_a_message_has_one_id_on_every_node_also_when_its_leader_changes(
    cluster: GatewayCluster, connect: Connect
) -> None:
    topic = await cluster.topic("t", (1,))
    clients = [connect(node) for node in cluster.nodes.values()]
    sent = [(await client.ask("Publish", topic=topic, payload=b"x")).message_id for client in clients]
    await cluster.drain(1)
    sent += [(await client.ask("Publish", topic=topic, payload=b"x")).message_id for client in clients]
    assert len(set(sent)) == 6
    for client in clients:
        stream = await client.subscribe(topic=topic, max_messages=6)
        assert [(await stream.read()).id for _ in sent] == sent
