"""The secret of the cluster is rotated while nodes are connected, while one is away, and while one has not heard of it."""

from pathlib import Path

import pytest

from penstock.cluster.links import Identity, Link
from penstock.core.cluster.shared_secret import SharedSecret
from penstock.core.security.access import INTERNAL
from penstock.errors import PenstockError, Reason
from penstock.operations.cluster import RotateClusterSecret
from penstock.transport.peer_tls import PLAIN
from penstock.types import NodeId
from tests.support.cluster_nodes import Cluster, until


def two(path: Path) -> Cluster:
    return Cluster(path, 1, 2, replication_factor=2, min_in_sync=2)


async def rotate(cluster: Cluster, node_id: int = 1) -> int:
    return (await cluster.nodes[node_id].broker.do(RotateClusterSecret(), INTERNAL)).generation


async def linked(cluster: Cluster, secret: SharedSecret) -> Link:
    """A link from node 2 to node 1 by one that knows this secret."""
    caller = cluster.nodes[2]
    link = Link(NodeId(1), caller.cluster.nodes, caller.broker.entropy)
    await link.connect(Identity(NodeId(2), caller.epoch, secret, PLAIN))
    return link


async def remembered(cluster: Cluster) -> SharedSecret:
    """The secret of now, by somebody who hears of no change."""
    secret = SharedSecret(cluster.store)
    await secret.load()
    secret.close()
    return secret


async def test_nodes_that_are_connected_stay_connected_and_records_are_replicated(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        await cluster.create("t", (1, 2))
        assert await cluster.produce("t", b"before") == 0
        link = await linked(cluster, cluster.nodes[2].cluster.secret)
        assert await rotate(cluster, 2) == 2
        assert [node.cluster.secret.generation for node in cluster.up] == [2, 2]
        assert link.is_connected
        assert await cluster.produce("t", b"after") == 1
        assert await rotate(cluster, 1) == 3
        # The connections of before were made with a secret that is not valid any more: they are made again.
        await link.lost()
        assert not link.is_connected
        assert await cluster.produce("t", b"later") == 2
        await link.aclose()


@pytest.mark.parametrize("rotations", [1, 2])
async def test_a_node_that_was_away_joins_with_the_secret_of_now(tmp_path: Path, rotations: int) -> None:
    async with two(tmp_path) as cluster:
        await cluster.create("t", (1, 2))
        assert await cluster.produce("t", b"before") == 0
        await cluster.nodes[2].stop()
        for _ in range(rotations):
            await rotate(cluster)
        await cluster.start(2)
        assert await cluster.produce("t", b"after") == 1
        await until(lambda: set(cluster.record("t").in_sync) == {1, 2})


async def test_a_caller_that_has_not_heard_of_it_gets_in_until_the_next_rotation(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        old = await remembered(cluster)
        await rotate(cluster)
        link = await linked(cluster, old)
        assert link.is_connected
        await rotate(cluster)
        await link.lost()
        with pytest.raises(PenstockError) as refused:
            await linked(cluster, old)
        assert refused.value.reason is Reason.CLUSTER_AUTHORIZATION_FAILED
        await link.aclose()


async def test_a_node_that_has_not_heard_of_it_can_be_called(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        cluster.nodes[1].cluster.secret.close()
        assert await rotate(cluster, 2) == 2
        assert cluster.nodes[1].cluster.secret.generation == 1
        link = await linked(cluster, cluster.nodes[2].cluster.secret)
        assert link.is_connected
        await link.aclose()


async def test_a_node_that_knows_no_secret_lets_nobody_in(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        nothing = SharedSecret(cluster.store)
        for called, caller in ((cluster.nodes[1].cluster.secret, nothing), (nothing, nothing)):
            cluster.nodes[1].cluster.secret._known = called._known
            with pytest.raises(PenstockError) as refused:
                await linked(cluster, caller)
            assert refused.value.reason is Reason.CLUSTER_AUTHORIZATION_FAILED
