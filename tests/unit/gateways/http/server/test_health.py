"""/readyz of a cluster's node: whether others count on it, and not how its partitions stand."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.http_node import HttpNode
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE


class HttpClusterNode(ClusterNode, HttpNode):
    """A node of three that listens for HTTP."""


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[HttpClusterNode]:
    async with HttpClusterNode(tmp_path / "cluster") as started:
        yield started


async def readiness(node: HttpClusterNode) -> tuple[int, str]:
    answer = await node.client.get("/readyz")
    return answer.status_code, answer.json().get("problem", "")


async def test_a_node_is_ready_while_it_is_registered(node: HttpClusterNode) -> None:
    assert await readiness(node) == (200, "")
    await node.leave(NODE)
    status, problem = await readiness(node)
    assert status == 503
    assert "not registered" in problem


async def test_a_node_that_was_fenced_is_not_ready_before_it_has_registered_itself(node: HttpClusterNode) -> None:
    await node.leave(NODE)
    await node.join(NODE)
    status, problem = await readiness(node)
    assert status == 503
    assert "Another process" in problem
    node.cluster.replicas.registered(node.cluster.nodes.live()[NODE])
    assert await readiness(node) == (200, "")


async def test_a_node_is_ready_though_partitions_lack_replicas(node: HttpClusterNode) -> None:
    """A load balancer that took it out would make it worse."""
    topic = await node.place("t", (NODE, OTHER, THIRD))
    await node.set_record(topic, 0, isr=((NODE, node.cluster.nodes.live()[NODE]),))
    assert await readiness(node) == (200, "")
