"""New topics while nodes are away: three whole nodes on real sockets, one store in memory."""

from pathlib import Path

import pytest

from penstock.core.cluster.image import drain_key
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Put
from penstock.settings import QueueSettings
from tests.support.cluster_nodes import until
from tests.support.queue_cluster import QueueCluster


def world(path: Path) -> QueueCluster:
    return QueueCluster(path, 1, 2, 3, internal_partitions=6, queues=QueueSettings(backoff_ms=0, max_attempts=1))


async def test_a_topic_that_is_made_while_a_node_restarts_has_all_its_replicas_once_it_is_back(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.leave(cluster.nodes[3])
        await until(lambda: 3 not in cluster.nodes[1].cluster.nodes.nodes, "node 3 is seen to be gone")
        await cluster.nodes[1].broker.topics.create(NewTopic("t", 6, 3))
        await until(lambda: cluster.nodes[2].broker.topics.get("t") is not None, "the topic is known")
        for index in range(6):
            record = cluster.record("t", index)
            assert set(record.replicas) == {1, 2, 3}
            assert record.replicas[2] == 3, "who is away is nobody's preferred leader"
            assert set(record.in_sync) == {1, 2}
        await cluster.publish(cluster.nodes[1], "t", [b"1"], partition=0)
        await cluster.start(3)
        await until(
            lambda: all(set(cluster.record("t", index).in_sync) == {1, 2, 3} for index in range(6)), "all are in sync"
        )


async def test_a_topic_is_not_made_while_most_of_its_nodes_would_be_away(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        for node in (2, 3):
            await cluster.leave(cluster.nodes[node])
        await until(lambda: len(cluster.nodes[1].cluster.nodes.nodes) == 1, "one node is left")
        with pytest.raises(PenstockError, match="cannot be 3: 1 node is up, and 2 more should be") as refused:
            await cluster.nodes[1].broker.topics.create(NewTopic("t", 1, 3))
        assert refused.value.reason is Reason.INVALID_REPLICATION_FACTOR


async def test_a_record_that_failed_goes_to_the_dead_letters_though_a_node_was_drained_for_good(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2))
        await cluster.store.txn([], [Put(drain_key(3), b"{}")])
        await until(lambda: all(3 in running.cluster.nodes.draining for running in cluster.up), "the drain is known")
        with pytest.raises(PenstockError, match="cannot be 3: 2 nodes are up"):
            await cluster.nodes[1].broker.topics.create(NewTopic("more", 1, 3))
        await cluster.publish(cluster.nodes[1], "t", [b"poison"])
        worker = cluster.coordinator("g")
        await cluster.nack(worker, "g", await cluster.lease(worker, "t", "g"))
        await until(lambda: cluster.any.broker.topics.get("dlq.t") is not None, "the dead letters have a topic")
        await until(lambda: cluster.values("dlq.t") == [b"poison"], "the dead letter is there")
        assert set(cluster.record("dlq.t", 0).replicas) == {1, 2}
