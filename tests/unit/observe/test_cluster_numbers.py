"""A cluster's node in numbers: what followers lack, and whether the node has its place."""

from pathlib import Path

from penstock.observe.cluster_numbers import numbers_of
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE


def number(node: ClusterNode, name: str) -> float:
    for found in numbers_of(node.broker, 100, is_reachable=True):
        if found is not None and found[0] == f"penstock_{name}":
            ((_, value),) = found[1]
            return value
    raise AssertionError(f"there is no {name}")


async def test_a_follower_lacks_no_records_that_were_deleted_and_one_in_sync_none_before_it_speaks(
    tmp_path: Path,
) -> None:
    async with ClusterNode(tmp_path) as node:
        topic = await node.place("t", (NODE, OTHER, THIRD))
        partition = await node.append_written("t", 0, 10)
        assert number(node, "replica_lag_records_max") == 0
        node.fetched(partition, OTHER, 8)
        assert number(node, "replica_lag_records_max") == 2
        live = node.cluster.nodes.live()
        await node.set_record(topic, 0, isr=((NODE, live[NODE]), (OTHER, live[OTHER])))
        assert number(node, "replica_lag_records_max") == 10, "the third may have nothing"
        node.fetched(partition, OTHER, 10)
        partition.log.delete_before(7)
        assert number(node, "replica_lag_records_max") == 3


async def test_another_life_of_the_node_that_is_registered_is_not_this_one(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        assert number(node, "cluster_is_registered") == 1
        await node.leave(NODE)
        assert number(node, "cluster_is_registered") == 0
        await node.join(NODE)
        assert number(node, "cluster_is_registered") == 0
        node.cluster.replicas.registered(node.cluster.nodes.live()[NODE])
        assert number(node, "cluster_is_registered") == 1
