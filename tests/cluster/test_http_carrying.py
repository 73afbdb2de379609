"""Every HTTP endpoint works on every node: what belongs to another node is carried to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.http_cluster import HttpCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[HttpCluster]:
    async with HttpCluster(tmp_path) as cluster:
        yield cluster


async def test_messages_of_a_partition_are_read_on_every_node(cluster: HttpCluster) -> None:
    await cluster.topic("orders")
    published = await cluster.nodes[1].client.post("/topics/orders/messages", json={"value": "one", "acks": "all"})
    assert published.status_code == 200, published.text
    for node in cluster.nodes.values():
        answer = await node.client.get("/topics/orders/partitions/0/messages", headers={"X-Request-Id": "mine"})
        assert answer.status_code == 200, answer.text
        assert [message["value"] for message in answer.json()["messages"]] == ["one"]
        assert answer.headers.get_list("x-request-id") == ["mine"]
        offsets = await node.client.get("/topics/orders/partitions/0/offsets")
        assert offsets.json() == {"high_watermark": 1, "low_watermark": 0}
