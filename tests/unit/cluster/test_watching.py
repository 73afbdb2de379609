"""Who is taken for dead before its lease is over: only a node whose machine says that nobody listens, and only once."""

import socket
from pathlib import Path
from uuid import UUID

import msgspec

from penstock.core.cluster.image import CONTROLLER_KEY, NodeRecord, node_key
from penstock.metadata.port import Put
from tests.support.cluster_nodes import Cluster, until


async def register(cluster: Cluster, node: int, address: str) -> None:
    """An entry as a node makes it; who or what is at the address is another question."""
    record = NodeRecord(UUID(int=node), UUID(int=node), {"peer": address})
    await cluster.store.txn([], [Put(node_key(node), msgspec.json.encode(record))])


def refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


async def is_there(cluster: Cluster, node: int) -> bool:
    return await cluster.store.get(node_key(node)) is not None


async def test_a_node_that_refuses_is_removed_once_and_a_silent_one_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Cluster(tmp_path, 1, 2) as cluster:
            nodes = cluster.nodes[1].cluster.nodes.nodes
            await register(cluster, 10, f"127.0.0.1:{silent.getsockname()[1]}")
            await register(cluster, 8, refusing())
            await until(lambda: 8 not in nodes, "nobody listens there")
            # The same process: it lives, and something else refuses for it.
            await register(cluster, 8, refusing())
            await register(cluster, 9, refusing())
            await until(lambda: 9 not in nodes, "another one is removed")
            assert await is_there(cluster, 8)
            assert await is_there(cluster, 10)
            assert await is_there(cluster, 2)


async def test_a_dead_controller_is_removed_by_the_others_and_one_of_them_takes_over(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await until(lambda: cluster.controller is cluster.nodes[1], "the first is elected")
        before = await cluster.store.get(CONTROLLER_KEY)
        await cluster.nodes[1].crash()
        await until(lambda: cluster.controller is not None, "there is another")
        after = await cluster.store.get(CONTROLLER_KEY)
        assert before is not None
        assert after is not None
        assert after.create_revision > before.create_revision
        assert not await is_there(cluster, 1)


async def test_only_the_controller_watches_everybody(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await until(lambda: cluster.controller is cluster.nodes[1], "the first is elected")

        def watched(by: int) -> set[int]:
            return {node for node, _ in cluster.nodes[by].node.watching._tasks}

        await until(lambda: watched(by=1) == {2, 3}, "the controller watches")
        assert watched(by=2) == {1}
