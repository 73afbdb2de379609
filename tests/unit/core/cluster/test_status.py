"""What a cluster's state says of itself: who has what, what is wrong, and why."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.cluster import status as module
from penstock.core.cluster.image import CONTROLLER_KEY
from penstock.metadata.port import Delete
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode
from tests.support.statuses import REACHABLE, cluster_status

ALL = (NODE, OTHER, THIRD)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path) as started:
        yield started


async def test_each_node_is_counted_with_what_it_leads_and_has(node: ClusterNode) -> None:
    await node.place("t", ALL, (OTHER, NODE, THIRD))
    await node.place("u", (OTHER,))
    status = cluster_status(node.broker)
    assert [(each.node, each.leads, each.replicas) for each in status.nodes] == [
        (NODE, 1, 2),
        (OTHER, 2, 3),
        (THIRD, 0, 2),
    ]
    assert (status.partitions, status.offline_count, status.under_replicated_count) == (3, 0, 0)


async def test_a_node_that_is_down_is_listed_and_what_lacks_it_says_so(node: ClusterNode) -> None:
    topic = await node.place("t", ALL, ALL)
    live = node.cluster.nodes.live()
    await node.set_record(topic, 0, isr=((NODE, live[NODE]), (OTHER, live[OTHER])))
    await node.set_record(topic, 1, isr=((NODE, live[NODE]),))
    await node.leave(THIRD)
    status = cluster_status(node.broker)
    now_ms = node.clock.now_ms()
    assert [(each.node, each.is_up, each.left_ms) for each in status.nodes] == [
        (NODE, True, None),
        (OTHER, True, None),
        (THIRD, False, now_ms),
    ]
    assert (status.under_replicated_count, status.under_min_in_sync_count) == (2, 1)
    assert [each.why for each in status.under_replicated] == [
        "node 9 is not up",
        "node 9 is not up and node 8 is not caught up",
    ]
    await node.join(THIRD)
    assert [each.left_ms for each in cluster_status(node.broker).nodes] == [None] * 3


async def test_a_partition_below_its_minimum_says_what_is_missing(node: ClusterNode) -> None:
    topic = await node.place("t", ALL, ALL, min_insync_replicas="3")
    live = node.cluster.nodes.live()
    await node.set_record(topic, 1, replicas=(NODE, OTHER), isr=((NODE, live[NODE]), (OTHER, live[OTHER])))
    await node.set_record(topic, 0, isr=((NODE, live[NODE]), (OTHER, live[OTHER])))
    status = cluster_status(node.broker)
    assert [(each.partition, each.why) for each in status.under_min_in_sync] == [
        (0, "2 of the 3 replicas required by min.insync.replicas are in sync; node 9 is missing"),
        (1, "min.insync.replicas is 3, which is impossible with 2 replicas"),
    ]
    # Nobody is missing of the second one's own.
    assert [each.partition for each in status.under_replicated] == [0]


async def test_what_nobody_else_could_take_is_counted_for_each_node(node: ClusterNode) -> None:
    await node.place("t", ALL)
    await node.place("u", (NODE, OTHER))
    assert [each.stuck for each in cluster_status(node.broker).nodes] == [1, 1, 1]
    await node.leave(THIRD)
    assert [each.stuck for each in cluster_status(node.broker).nodes] == [2, 2, 1]


async def test_what_waits_for_a_node_that_is_down_is_counted_there_and_is_not_stuck(node: ClusterNode) -> None:
    await node.place("t", (OTHER,))
    await node.place("u", (NODE, OTHER))
    assert [each.only_there for each in cluster_status(node.broker).nodes] == [0, 0, 0]
    await node.leave(OTHER)
    await node.leave(THIRD)
    status = cluster_status(node.broker)
    assert [(each.node, each.only_there, each.stuck) for each in status.nodes] == [(NODE, 0, 1), (OTHER, 1, 1)]


async def test_an_offline_partition_says_which_nodes_would_bring_it_back(node: ClusterNode) -> None:
    topic = await node.place("t", (OTHER, NODE, THIRD))
    live = node.cluster.nodes.live()
    await node.set_record(topic, 0, leader=-1, isr=((OTHER, live[OTHER]),), elr=(THIRD,))
    assert [each.why for each in cluster_status(node.broker).offline] == ["its next leader is being elected"]
    await node.store.txn([], [Delete(CONTROLLER_KEY)])
    [trouble] = cluster_status(node.broker).offline
    assert "there is no controller" in trouble.why
    await node.leave(OTHER)
    await node.leave(THIRD)
    status = cluster_status(node.broker)
    assert status.offline_count == 1
    [trouble] = status.offline
    assert (trouble.in_sync, trouble.eligible) == ((OTHER,), (THIRD,))
    assert trouble.why.startswith("nodes 8, 9 are not up, and no other node has all acknowledged records: start one")
    assert "node 7 is up but lacks some of them" in trouble.why


async def test_a_leader_in_another_life_leads_nothing(node: ClusterNode) -> None:
    await node.place("t", (OTHER, NODE, THIRD))
    await node.leave(OTHER)
    await node.join(OTHER)
    status = cluster_status(node.broker)
    assert (status.offline_count, [each.leads for each in status.nodes]) == (1, [0, 0, 0])


async def test_the_leader_knows_how_far_a_move_is(node: ClusterNode) -> None:
    await node.place("t", (NODE, OTHER), (OTHER, NODE))
    partition = await node.append_written("t", 0, 4)
    for index in (0, 1):
        await node.cluster.reassignments.alter("t", index, (NODE, THIRD))
    node.fetched(partition, THIRD, 3)
    mine, others = cluster_status(node.broker).moves
    assert (mine.adding, mine.removing, mine.leader) == ((THIRD,), (OTHER,), NODE)
    assert (mine.start_offset, mine.end_offset, mine.copied) == (0, 4, {str(THIRD): 3})
    assert (others.leader, others.end_offset, others.copied) == (OTHER, None, None)


async def test_lists_are_cut_and_counts_are_not(node: ClusterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED_MAX", 1)
    await node.place("t", (OTHER,), (OTHER,))
    await node.leave(OTHER)
    status = cluster_status(node.broker)
    assert (status.offline_count, len(status.offline)) == (2, 1)


async def test_a_broker_that_is_alone_leads_all_it_has(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as alone:
        status = cluster_status(alone.broker)
        assert [(each.node, each.leads == each.replicas > 0) for each in status.nodes] == [(NODE, True)]
        assert (status.offline_count, status.under_replicated_count, status.moves) == (0, 0, [])


async def test_others_are_served_between_portions(node: ClusterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PARTITIONS_A_STEP", 2)
    await node.place("t", ALL, ALL, ALL, ALL, ALL)
    steps = module.status_steps(node.broker, REACHABLE)
    assert [next(steps), next(steps)] == [None, None]
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value.partitions == 5
