"""A subscription that reads at a node that leads nothing of it: copies may be behind, or not there yet. Nodes are real, the client is this test."""

from typing import Any

import pytest

from penstock.core.publish import NewRecord
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.following import Following, ends_for
from penstock.operations.groups import OffsetToCommit
from penstock.types import Acks, Gateway, PartitionKey
from penstock.wire.mq import mq_generated as mq
from tests.support.gateway_cluster import GatewayCluster, GatewayNode


class Context:
    """What a handler asks of grpc."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def call_at(node: GatewayNode) -> GrpcCall:
    assert node.grpc._serving is not None
    return GrpcCall(node.grpc._serving, Context())


async def following(request: Any, call: GrpcCall, ends: dict[int, int] | None = None) -> Following:
    """A subscription that reads, open."""
    source = Following(request, call, call.broker.topics.require(request.topic), ends or {})
    try:
        await source.ready()
    except PenstockError:
        source.close()
        raise
    return source


async def publish(cluster: GatewayCluster, topic: str, *times_ms: int, partition: int = 0) -> None:
    """Records of these times; each has its time as its value."""
    broker, settled = cluster.leader(topic, partition).broker, []
    records = [NewRecord(None, b"%d" % time_ms, (), partition, time_ms) for time_ms in times_ms]
    broker.publisher.publish(Caller(ANONYMOUS, Gateway.GRPC), topic, records, Acks.ALL, settled.append)
    await cluster.until(lambda: settled)
    assert not [result for result in settled[0] if isinstance(result, PenstockError)]


async def taken(cluster: GatewayCluster, source: Following, count: int) -> list[Any]:
    """The next messages."""
    found: list[Any] = []

    def have() -> bool:
        messages = [source.message(each) for each in source.take(count, 1_000_000)]
        found.extend(mq.Message.FromString(message) for message in messages if message is not None)
        return len(found) >= count

    await cluster.until(have)
    return found


async def test_a_replay_by_time_passes_over_what_a_copy_did_not_have_yet(cluster: GatewayCluster) -> None:
    topic = await cluster.topic("t", (1,))
    now = cluster.nodes[1].broker.clock.now_ms() // 1000 * 1000
    request = mq.SubscribeRequest(topic=topic, replay_timestamp=now // 1000)
    # As if the leader had three records of which nothing is here yet.
    source = await following(request, call_at(cluster.nodes[3]), {0: 3})
    await publish(cluster, topic, now - 2, now - 1, now, now - 3)
    messages = await taken(cluster, source, 2)
    assert [int(message.payload) for message in messages] == [now, now - 3]
    source.close()


async def test_what_comes_behind_the_end_is_wanted_whatever_its_time(cluster: GatewayCluster) -> None:
    topic = await cluster.topic("t", (1,))
    now = cluster.nodes[1].broker.clock.now_ms() // 1000 * 1000
    request = mq.SubscribeRequest(topic=topic, replay_timestamp=now // 1000)
    source = await following(request, call_at(cluster.nodes[3]), {0: 2})
    await publish(cluster, topic, now - 2, now - 1, now - 3)
    (message,) = await taken(cluster, source, 1)
    assert message.offset == 2
    source.close()


async def test_a_replay_from_an_offset_that_only_the_leader_has_is_no_mistake(cluster: GatewayCluster) -> None:
    topic = await cluster.topic("t", (1,))
    request = mq.SubscribeRequest(topic=topic, replay_offset=2)
    node = cluster.nodes[3]
    with pytest.raises(PenstockError) as caught:
        await following(request, call_at(node), {0: 1})
    assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE
    source = await following(request, call_at(node), {0: 2})
    await publish(cluster, topic, 1, 2, 3)
    (message,) = await taken(cluster, source, 1)
    assert message.offset == 2
    source.close()


async def test_a_replay_asks_the_leaders_where_their_partitions_end(cluster: GatewayCluster) -> None:
    topic = await cluster.topic("t", (1, 2, 3))
    await publish(cluster, topic, 1, 2, partition=0)
    call = call_at(cluster.nodes[3])
    assert await ends_for(mq.SubscribeRequest(topic=topic, replay_offset=0), call) == {0: 2, 1: 0, 2: 0}
    assert await ends_for(mq.SubscribeRequest(topic=topic), call) == {}


async def test_a_group_stands_where_it_committed_though_the_copy_is_behind(cluster: GatewayCluster) -> None:
    node = cluster.nodes[3]
    group, topic = cluster.group_of(node), await cluster.topic("t", (1,))
    await publish(cluster, topic, 1, 2, 3)
    replica = node.broker.observe(topic, 0)
    await cluster.until(lambda: replica.high_watermark == 3)
    committed = []
    item = OffsetToCommit(PartitionKey(topic, 0), 2)  # type: ignore[arg-type]
    node.broker.groups.commit_offset(group, item, committed.append)  # type: ignore[arg-type]
    await cluster.until(lambda: committed)
    replica.high_watermark = 1
    source = await following(mq.SubscribeRequest(topic=topic, consumer_group=group), call_at(node))
    assert source.take(10, 1_000_000) == []
    replica.high_watermark = 3
    replica._wake_readers()
    (message,) = await taken(cluster, source, 1)
    assert message.offset == 2
    source.close()


async def test_a_partition_without_a_leader_is_begun_with_when_it_has_one(
    cluster: GatewayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[3]
    group, topic = cluster.group_of(node), await cluster.topic("t", (1, 2))
    await publish(cluster, topic, 7, partition=1)
    request = mq.SubscribeRequest(topic=topic, consumer_group=group, consumer_id="a")
    first = await following(request, call_at(node))
    request.consumer_id = "b"
    second = await following(request, call_at(node))
    observe = node.broker.observe

    def nobody(*_: object) -> None:
        raise PenstockError(Reason.LEADER_NOT_AVAILABLE, "nobody leads it")

    monkeypatch.setattr(node.broker, "observe", nobody)
    second.close()
    assert first.take(10, 1_000_000) == []
    assert first.take(10, 1_000_000) == []
    monkeypatch.setattr(node.broker, "observe", observe)
    first.woken.clear()
    for hook in node.broker.topics.on_partition:
        hook(node.broker.topics.require(topic), 1)
    assert first.woken.is_set()
    (message,) = await taken(cluster, first, 1)
    assert (message.partition, message.payload) == (1, b"7")
    first.close()
