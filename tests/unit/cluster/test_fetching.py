"""Copying from leaders: what is asked, and asked again."""

import asyncio
from pathlib import Path

import pytest

from penstock.core.broker import Broker
from penstock.core.delete_records import delete_records
from penstock.core.replication.follower import Follower
from penstock.errors import Reason
from penstock.gateways.peers import fetch as fetch_module
from penstock.testing.faulty_store import FaultyStore
from penstock.types import NodeId
from tests.support.cluster_nodes import Cluster, until


async def test_a_replica_that_asked_before_its_leader_knew_of_it_is_counted_all_the_same(tmp_path: Path):
    async with Cluster(tmp_path, 2, 3) as cluster:
        stores: list[FaultyStore] = []

        def hears_late(broker: Broker) -> None:
            stores.append(FaultyStore(cluster.store))
            broker.topics._store = stores[0]

        await cluster.start(1, hears_late)
        await cluster.create("t", (1, 2))
        stores[0].hold_events()
        await cluster.nodes[2].cluster.reassignments.alter("t", 0, (1, 2, 3))
        follower = cluster.replica(3, "t")
        assert isinstance(follower, Follower)
        await until(lambda: follower.has_heard, "its first question is answered")
        stores[0].let_events()
        await until(lambda: 3 in cluster.record("t").in_sync, "it is in sync")


async def test_deleted_is_answered_when_it_is_so_on_every_node_in_sync(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        for n in range(6):
            await cluster.produce("t", b"%d" % n)
        await until(lambda: len(cluster.record("t").in_sync) == 3, "all are in sync")
        partition = cluster.nodes[1].broker.partition("t", 0)
        told: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        delete_records(partition, 4)
        partition.when_deleted(4, told.set_result)
        assert not told.done()
        async with asyncio.timeout(30):
            assert await told is None
        assert [cluster.nodes[n].broker.replica("t", 0).log.start_offset for n in (1, 2, 3)] == [4, 4, 4]
        await cluster.nodes[1].stop()
        await until(lambda: cluster.record("t").leader in (2, 3), "another leads")
        leader = cluster.nodes[cluster.record("t").leader].broker.partition("t", 0)
        assert leader.log.start_offset == 4


async def test_a_leader_whose_answer_cannot_be_read_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with Cluster(tmp_path, 1, 2, replication_factor=2, min_in_sync=1) as cluster:
        await cluster.create("t", (1, 2))
        follower = cluster.replica(2, "t")
        assert isinstance(follower, Follower)
        await until(lambda: follower.has_heard, "it copies")
        link = cluster.nodes[2].node.fetching._fetchers[NodeId(1)]._link
        before = link.connections
        with monkeypatch.context() as patched:
            patched.setattr(fetch_module, "_encode", lambda _: [b"\xff\xff\xff"])
            await until(lambda: link.connections > before, "it connects again")
        await cluster.produce("t", b"x")
        await until(lambda: follower.high_watermark == 1, "it copies again")
