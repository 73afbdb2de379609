"""What is counted of the partitions that a node has: changes of leaders and of in-sync sets, and those that nobody leads."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from penstock.core.topics.records import NO_LEADER
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path) as started:
        yield started


async def test_leading_that_begins_and_ends_is_counted(node: ClusterNode) -> None:
    meters = node.broker.meters
    topic = await node.place("t", (NODE, OTHER, THIRD), (OTHER, NODE, THIRD))
    assert (meters.leaderships_begun, meters.leaderships_ended) == (1, 0)
    live = node.cluster.nodes.live()
    await node.set_record(topic, 0, leader=OTHER, leader_node_epoch=live[OTHER], leader_epoch=1)
    assert (meters.leaderships_begun, meters.leaderships_ended) == (1, 1)
    await node.set_record(topic, 1, leader=NODE, leader_node_epoch=live[NODE], leader_epoch=1)
    assert (meters.leaderships_begun, meters.leaderships_ended) == (2, 1)


async def test_in_sync_sets_of_what_is_led_here_are_counted_when_they_shrink_and_grow(node: ClusterNode) -> None:
    meters = node.broker.meters
    topic = await node.place("t", (NODE, OTHER, THIRD), (OTHER, NODE, THIRD))
    whole = node.broker.topics.partition(topic, 0).isr
    await node.set_record(topic, 0, isr=whole[:1])
    assert (meters.in_sync_shrinks, meters.in_sync_expands) == (1, 0)
    await node.set_record(topic, 0, isr=whole)
    assert (meters.in_sync_shrinks, meters.in_sync_expands) == (1, 1)
    # That is its leader's to count.
    await node.set_record(topic, 1, isr=node.broker.topics.partition(topic, 1).isr[:2])
    assert (meters.in_sync_shrinks, meters.in_sync_expands) == (1, 1)


async def test_partitions_without_a_leader_are_counted_where_they_are(node: ClusterNode) -> None:
    metering = node.cluster.metering
    topic = await node.place("t", (NODE, OTHER), (OTHER, THIRD))
    assert metering.leaderless == 0
    for index in (0, 1):
        await node.set_record(topic, index, leader=NO_LEADER, leader_epoch=1)
    assert metering.leaderless == 1
    await node.set_record(topic, 0, leader=OTHER, leader_node_epoch=node.cluster.nodes.live()[OTHER], leader_epoch=2)
    assert metering.leaderless == 0
    await node.set_record(topic, 0, leader=NO_LEADER, leader_epoch=3)
    assert metering.leaderless == 1
    await node.broker.topics.delete("t")
    assert metering.leaderless == 0
