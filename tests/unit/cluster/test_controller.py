"""The controller's work, with whole nodes in one process: failover, moves, drains, balance, growth."""

from pathlib import Path

import pytest

from penstock.core.replication.reassignment import ElectionKind
from penstock.core.topic_names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, QUEUE_STATE_TOPIC, SINKS_TOPIC
from penstock.errors import PenstockError, Reason
from tests.support.cluster_nodes import Cluster, until

INTERNAL = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC, SINKS_TOPIC)


async def test_a_killed_leader_is_replaced_long_before_its_lease_ends(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.produce("t", b"before")
        # The first one to come is the controller too.
        await cluster.nodes[1].crash()
        assert await cluster.produce("t", b"after") == 1
        record = cluster.record("t")
        assert (record.leader, record.in_sync) == (2, (2, 3))


async def test_a_killed_follower_leaves_the_in_sync_set_long_before_its_lease_ends(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.nodes[3].crash()
        await until(lambda: cluster.record("t").in_sync == (1, 2), "the dead one is out")
        assert cluster.record("t").leader == 1


async def test_a_node_that_stops_hands_over_first_and_nothing_is_refused_meanwhile(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3), (1, 3, 2))
        await cluster.produce("t", b"before")
        led = cluster.nodes[1]
        await led.node.hand_over()
        assert [cluster.record("t", index).leader for index in (0, 1)] == [2, 3]
        assert not list(led.cluster.replicas.leading())
        await led.node.stop()
        assert await cluster.produce("t", b"after") == 1


async def test_a_partition_moves_to_other_nodes_and_leaves_nothing_behind(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3, 4) as cluster:
        topic = await cluster.create("t", (1, 2, 3))
        for number in range(5):
            await cluster.produce("t", b"%d" % number)
        await cluster.any.cluster.reassignments.alter("t", 0, [4, 2])
        await until(lambda: cluster.record("t").replicas == (4, 2), "the move is over")
        record = cluster.record("t")
        assert (record.leader in (4, 2), record.adding, record.removing) == (True, (), ())
        assert await cluster.produce("t", b"after") == 5
        for gone in (1, 3):
            await until(lambda gone=gone: not cluster.nodes[gone].broker.logs.has_records(topic.topic_id, 0))
        await until(lambda: cluster.any.broker.topics.require("t").replication_factor == 2, "the topic knows")


async def test_a_move_survives_the_controller(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3, 4) as cluster:
        await cluster.create("t", (2, 3))
        await cluster.produce("t", b"before")
        first = cluster.controller
        assert first is cluster.nodes[1]
        await cluster.nodes[4].stop()
        await cluster.nodes[2].cluster.nodes.load() if False else None
        with pytest.raises(PenstockError) as refused:
            await cluster.nodes[2].cluster.reassignments.alter("t", 0, [4, 3])
        assert refused.value.reason is Reason.INVALID_REPLICA_ASSIGNMENT, "it is not up"
        await cluster.start(4)
        await cluster.nodes[2].cluster.reassignments.alter("t", 0, [4, 3])
        await first.crash()
        await until(lambda: cluster.record("t").replicas == (4, 3), "the next controller finished it")


async def test_a_move_that_is_taken_back_leaves_all_as_it_was(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2))
        await cluster.produce("t", b"before")
        # Nobody can finish it: the third one is to have a replica and dies.
        await cluster.nodes[3].crash()
        doors = cluster.any.cluster.reassignments
        await cluster.any.cluster.reassignments.alter("t", 0, [1, 3]) if 3 in cluster.any.cluster.nodes.nodes else None
        if cluster.record("t").adding:
            assert [move.adding for move in doors.list()] == [(3,)]
            await doors.alter("t", 0, None)
        assert cluster.record("t").replicas == (1, 2)
        with pytest.raises(PenstockError) as refused:
            await doors.alter("t", 0, None)
        assert refused.value.reason is Reason.NO_REASSIGNMENT_IN_PROGRESS


async def test_a_drained_node_loses_all_it_has_and_gets_nothing_new(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3, 4) as cluster:
        await until(lambda: all(name in cluster.any.broker.topics for name in INTERNAL))
        await cluster.create("t", (1, 2, 3), (2, 1, 4), (3, 4, 1))
        for index in range(3):
            await cluster.produce("t", b"before", index)
        doors = cluster.any.cluster.reassignments
        await doors.drain(1)
        await until(lambda: doors.progress(1).is_done, "nothing is left on it")
        assert {node for index in range(3) for node in cluster.record("t", index).replicas} == {2, 3, 4}
        new = await cluster.any.broker.topics.create(_new("u"))
        assert all(1 not in record.replicas for record in cluster.any.broker.topics.partitions(new))
        await doors.undrain(1)
        assert not doors.drains()


async def test_a_drain_that_cannot_end_moves_leaders_and_says_how_much_is_stuck(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        doors = cluster.any.cluster.reassignments
        await doors.drain(1)
        await until(lambda: doors.progress(1).leading == 0, "it leads nothing")
        progress = doors.progress(1)
        assert progress.replicas == progress.stuck > 0
        assert not progress.is_done


async def test_the_place_of_a_dead_node_is_given_to_another_when_it_is_drained(tmp_path: Path):
    async with Cluster(tmp_path, 1, 2, 3, 4) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.produce("t", b"before")
        await cluster.nodes[1].crash()
        await until(lambda: cluster.record("t").leader == 2, "it was replaced")
        await cluster.any.cluster.reassignments.drain(1)
        await until(lambda: set(cluster.record("t").in_sync) == {2, 3, 4}, "another has its place")


def _new(name: str):
    from penstock.core.topics import NewTopic

    return NewTopic(name, 3, 3)
