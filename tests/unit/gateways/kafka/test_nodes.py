"""What clients are told when a partition is led elsewhere: who leads it, and where that is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Producer

from penstock.errors import Reason
from tests.support.kafka_cluster import OTHER, THIRD, WireClusterNode
from tests.support.kafka_node import NODE, reason_of
from tests.support.kafka_wire import PRODUCE, SECONDS_MAX, batch, produce, produced, until

TOLD_FROM = 10
BY_ID_FROM = 13


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[WireClusterNode]:
    async with WireClusterNode(tmp_path) as started:
        yield started


@pytest.mark.parametrize("version", range(9, 14))
async def test_a_producer_is_told_the_leader_and_where_it_is(node: WireClusterNode, version: int) -> None:
    topic = await node.place("t", (OTHER, NODE, THIRD))
    client = await node.connect()
    name = topic.topic_id.bytes if version >= BY_ID_FROM else "t"
    response = await client.ask(PRODUCE, produce(name, batch(b"a")), version)
    answer = produced(response)
    assert reason_of(answer.error_code) is Reason.NOT_LEADER_OR_FOLLOWER
    if version < TOLD_FROM:
        assert answer.current_leader is None
        return
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (OTHER, 0)
    assert [(each.node_id, each.port, each.rack) for each in response.node_endpoints] == [(OTHER, 9008, "b")]


@pytest.mark.parametrize("is_known", [False, True], ids=["general", "lane"])
async def test_a_producer_that_waits_while_the_leader_changes_is_told_the_new_one(
    node: WireClusterNode, is_known: bool
) -> None:
    topic = await node.place("t", (NODE, OTHER, THIRD))
    client = await node.connect()
    partition = node.broker.partition("t", 0)
    if is_known:
        client.send(PRODUCE, produce("t", batch(b"a")), 12)
        await until(lambda: partition.log.written_offset == 1)
        for follower in (OTHER, THIRD):
            node.fetched(partition, follower, 1)
        assert produced((await client.answer(PRODUCE, 12))[1]).error_code == 0
    sent = client.send(PRODUCE, produce("t", batch(b"b")), 12)
    await until(lambda: partition.log.written_offset == 1 + is_known)
    live = node.cluster.nodes.live()
    await node.set_record(topic, 0, leader=THIRD, leader_node_epoch=live[THIRD], leader_epoch=1)
    correlation_id, response = await client.answer(PRODUCE, 12)
    answer = produced(response)
    assert correlation_id == sent
    assert reason_of(answer.error_code) is Reason.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (THIRD, 1)
    assert [each.node_id for each in response.node_endpoints] == [THIRD]


async def test_a_leader_that_is_gone_is_told_to_nobody(node: WireClusterNode) -> None:
    await node.place("t", (OTHER, NODE, THIRD))
    await node.leave(OTHER)
    client = await node.connect()
    response = await client.ask(PRODUCE, produce("t", batch(b"a")), 12)
    assert (produced(response).current_leader, response.node_endpoints) == (None, [])


async def test_one_leader_of_many_partitions_is_told_where_it_is_once(node: WireClusterNode) -> None:
    await node.place("t", (OTHER, NODE), (OTHER, NODE), (THIRD, NODE))
    client = await node.connect()
    response = await client.ask(PRODUCE, produce("t", batch(b"a"), batch(b"b"), batch(b"c")), 12)
    [topic] = response.responses
    assert [each.current_leader.leader_id for each in topic.partition_responses] == [OTHER, OTHER, THIRD]
    assert [each.node_id for each in response.node_endpoints] == [OTHER, THIRD]


async def test_a_producer_that_asks_while_no_node_is_registered_delivers_once_one_is(node: WireClusterNode) -> None:
    """librdkafka drops every node that an answer does not list. With none left and many topics to read, it mostly never connects again."""
    topic = await node.place("t", (NODE,), min_insync_replicas="1")
    for n in range(300):
        await node.place(f"other{n}", *[(OTHER,)] * 10, min_insync_replicas="1")
    await node.join(NODE, kafka=node.address)
    producer = Producer({"bootstrap.servers": str(node.address), "log_level": 0})
    try:
        registered = await asyncio.to_thread(producer.list_topics, timeout=SECONDS_MAX)
        for each in (NODE, OTHER, THIRD):
            await node.leave(each)
        unregistered = await asyncio.to_thread(producer.list_topics, timeout=SECONDS_MAX)
        await node.join(NODE, kafka=node.address)
        epoch = node.cluster.nodes.live()[NODE]
        node.cluster.replicas.registered(epoch)
        await node.set_record(topic, 0, leader_node_epoch=epoch, leader_epoch=1, isr=((NODE, epoch),))
        producer.produce("t", b"a", partition=0)
        assert await asyncio.to_thread(producer.flush, SECONDS_MAX) == 0
    finally:
        producer.purge()
        await asyncio.to_thread(producer.flush, SECONDS_MAX)
    assert sorted(registered.brokers) == [NODE, OTHER, THIRD]
    assert [(each.id, each.port) for each in unregistered.brokers.values()] == [(NODE, node.address.port)]
