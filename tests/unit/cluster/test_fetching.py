"""Copying from leaders: what is asked, and asked again."""

from pathlib import Path

from penstock.core.broker import Broker
from penstock.core.replication.follower import Follower
from penstock.testing.faulty_store import FaultyStore
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
