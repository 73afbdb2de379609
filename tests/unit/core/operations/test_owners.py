"""The node that an operation belongs to, by the records that all nodes share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.operations.door import ELSEWHERE
from penstock.core.operations.owners import owner_of
from penstock.core.security.access import INTERNAL
from penstock.errors import PenstockError, Reason
from penstock.operations.records import PublishOnce
from penstock.operations.topics import DescribePartition, PartitionOffsets
from penstock.types import NodeId
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path) as node:
        yield node


def leader_of(node: ClusterNode, topic: str, index: int) -> NodeId:
    return owner_of(node.broker, DescribePartition(topic, index))


async def test_a_broker_that_is_alone_owns_everything(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as alone:
        await alone.create("t")
        assert await alone.broker.do(DescribePartition("t", 0), INTERNAL) == PartitionOffsets(0, 0)
        with pytest.raises(PenstockError) as caught:
            await alone.broker.do(DescribePartition("t", 7), INTERNAL)
        assert caught.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_belongs_to_its_leader(node: ClusterNode) -> None:
    await node.place("t", (NODE, OTHER), (OTHER, NODE), (THIRD, OTHER))
    assert [leader_of(node, "t", index) for index in range(3)] == [NODE, OTHER, THIRD]


async def test_what_does_not_exist_belongs_to_the_node_that_was_asked(node: ClusterNode) -> None:
    await node.place("t", (OTHER,))
    assert leader_of(node, "t", 1) == leader_of(node, "none", 0) == NODE
    assert owner_of(node.broker, PublishOnce("none", "key", b"value")) == NODE


async def test_a_partition_without_a_leader_and_a_node_that_is_not_up_are_refused_for_now(node: ClusterNode) -> None:
    topic = await node.place("t", (OTHER,))
    await node.set_record(topic, 0, leader=-1)
    assert node.cluster.nodes.address(OTHER, "http").port == 8000 + OTHER
    with pytest.raises(PenstockError) as no_leader:
        leader_of(node, "t", 0)
    await node.leave(OTHER)
    with pytest.raises(PenstockError) as not_up:
        node.cluster.nodes.address(OTHER, "http")
    with pytest.raises(PenstockError) as no_listener:
        node.cluster.nodes.address(THIRD, "grpc")
    assert all(error.value.reason in ELSEWHERE for error in (no_leader, not_up, no_listener))
    assert Reason.LINK_LOST not in ELSEWHERE
