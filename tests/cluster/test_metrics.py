"""``/metrics`` of a cluster's nodes: what they lead and have, who is behind, and how the numbers move when nodes are lost."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from penstock.records.builder import build_batch
from penstock.records.records import Record
from tests.support.gateway_cluster import SECONDS_MAX, GatewayCluster, GatewayNode


async def numbers(node: GatewayNode) -> dict[str, float]:
    answer = await node.client.get("/metrics")
    assert answer.status_code == 200
    return {
        sample.name.removeprefix("penstock_"): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if not sample.labels
    }


async def becomes(node: GatewayNode, **expected: float) -> dict[str, float]:
    """The numbers, once these are among them."""
    found: dict[str, float] = {}
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while {name: found.get(name) for name in expected} != expected:
                found = await numbers(node)
    except TimeoutError:
        raise AssertionError({name: (found.get(name), value) for name, value in expected.items()}) from None
    return found


async def test_the_numbers_of_replicas_move_when_nodes_are_lost(cluster: GatewayCluster) -> None:
    await cluster.topic("t", (1, 2, 3))
    first, second, third = (cluster.nodes[n] for n in (1, 2, 3))
    whole = {"cluster_nodes": 3.0, "cluster_is_registered": 1.0, "metadata_reachable": 1.0}
    quiet = {"partitions_under_replicated": 0.0, "partitions_under_min_in_sync": 0.0, "partitions_offline": 0.0}
    told = [await becomes(node, **whole, **quiet, replica_lag_records_max=0.0) for node in (first, second, third)]
    total = told[0]["partitions"]
    # Every node has every partition, and each is led once.
    assert [each["replicas"] for each in told] == [total] * 3
    assert sum(each["partitions_led"] for each in told) == total
    assert all(each["leaderships_begun_total"] >= each["partitions_led"] > 0 for each in told)
    assert sum(each["cluster_is_controller"] for each in told) == 1
    assert len({each["cluster_node_epoch"] for each in told}) == 3

    led = first.broker.partition("t", 0)
    sent = build_batch([Record(0, 1_700_000_000_000, b"key", b"value" * 100)])
    led.append(sent, 1_700_000_000_000)
    await cluster.until(lambda: led.high_watermark == 1)
    after = [await numbers(node) for node in (first, second, third)]
    assert after[0]["replicated_out_bytes_total"] - told[0]["replicated_out_bytes_total"] >= 2 * len(sent)
    for before, now in zip(told[1:], after[1:], strict=True):
        assert now["replicated_in_bytes_total"] - before["replicated_in_bytes_total"] >= len(sent)

    await third.kill()
    lost = {"cluster_nodes": 2.0, "partitions_offline": 0.0, "partitions_under_min_in_sync": 0.0}
    one = await becomes(first, **lost)
    two = await becomes(second, **lost)
    await cluster.until(lambda: sum(len(list(_leading(node))) for node in (first, second)) == total)
    one, two = await numbers(first), await numbers(second)
    assert one["partitions_led"] + two["partitions_led"] == total
    assert one["leaderships_begun_total"] + two["leaderships_begun_total"] > sum(
        each["leaderships_begun_total"] for each in told[:2]
    )
    one = await becomes(first, partitions_under_replicated=one["partitions_led"])
    assert one["in_sync_shrinks_total"] > told[0]["in_sync_shrinks_total"]

    await second.kill()
    alone = await becomes(first, cluster_nodes=1.0, partitions_led=total, partitions_under_min_in_sync=total)
    assert alone["cluster_is_controller"] == 1
    led = first.broker.partition("t", 0)
    # Nobody is there to copy it.
    led.append(sent, 1_700_000_000_000)
    await becomes(first, replica_lag_records_max=1.0)


def _leading(node: GatewayNode) -> list[object]:
    assert node.broker.cluster is not None
    return list(node.broker.cluster.replicas.leading())


async def test_a_node_without_its_metadata_says_so(cluster: GatewayCluster) -> None:
    node = cluster.nodes[1]
    node.problem = "etcd does not answer"
    assert (await numbers(node))["metadata_reachable"] == 0
    node.problem = None
    assert (await numbers(node))["metadata_reachable"] == 1
