"""The controller's work, with whole nodes in one process: failover, moves, drains, balance, growth."""

from pathlib import Path

import pytest

from penstock.cluster.internal_topics import InternalTopics
from penstock.core.cluster.image import node_key
from penstock.core.cluster.reassignment import ElectionKind
from penstock.core.cluster.throttle import ByteBudget
from penstock.core.topics.names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, QUEUE_STATE_TOPIC, SINKS_TOPIC
from penstock.core.topics.records import NO_LEADER, PARTITIONS_PREFIX, partition_key
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.metadata.port import Delete
from penstock.settings import ClusterSettings
from tests.support.cluster_nodes import LEASE_MS, Cluster, until

CRAWLING = ClusterSettings(lease_ms=LEASE_MS, reassign_bytes_per_second=1)
"""What moves comes to a stop after its first batch."""
INTERNAL = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC, SINKS_TOPIC)


async def test_a_killed_leader_is_replaced_long_before_its_lease_ends(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.produce("t", b"before")
        # The first one to come is the controller too.
        await cluster.nodes[1].crash()
        assert await cluster.produce("t", b"after") == 1
        record = cluster.record("t")
        assert (record.leader, record.in_sync) == (2, (2, 3))


async def test_a_killed_follower_leaves_the_in_sync_set_long_before_its_lease_ends(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.nodes[3].crash()
        await until(lambda: cluster.record("t").in_sync == (1, 2), "the dead one is out")
        assert cluster.record("t").leader == 1


async def test_a_node_that_stops_hands_over_first_and_nothing_is_refused_meanwhile(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3), (1, 3, 2))
        await cluster.produce("t", b"before")
        led = cluster.nodes[1]
        await led.node.hand_over()
        assert [cluster.record("t", index).leader for index in (0, 1)] == [2, 3]
        assert not list(led.cluster.replicas.leading())
        await led.node.stop()
        assert await cluster.produce("t", b"after") == 1


async def test_a_partition_moves_to_other_nodes_and_leaves_nothing_behind(tmp_path: Path) -> None:
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


async def test_a_move_survives_the_controller(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, 4, settings=CRAWLING) as cluster:
        await cluster.create("t", (2, 3))
        for number in range(3):
            await cluster.produce("t", b"%d" % number)
        assert cluster.controller is cluster.nodes[1]
        await cluster.nodes[3].cluster.reassignments.alter("t", 0, [4, 3])
        await cluster.nodes[1].crash()
        await until(lambda: cluster.controller is not None, "there is another controller")
        assert cluster.record("t").adding == (4,)
        cluster.nodes[2].cluster.replicas.moving_budget = ByteBudget(MIB)
        await until(lambda: cluster.record("t").replicas == (4, 3), "the next one has finished it")
        assert cluster.record("t").leader in (4, 3)
        assert await cluster.produce("t", b"after") == 3


async def test_what_moves_is_copied_no_faster_than_it_may_and_slows_nobody(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, settings=CRAWLING) as cluster:
        await cluster.create("t", (1, 2))
        for number in range(5):
            await cluster.produce("t", b"%d" % number)
        doors = cluster.any.cluster.reassignments
        await doors.alter("t", 0, [1, 2, 3])
        await until(
            lambda: (copy := cluster.replica(3, "t")) is not None and copy.log.next_offset == 1, "one batch came"
        )
        for number in range(5):
            await cluster.produce("t", b"%d" % number)
        copy = cluster.replica(3, "t")
        assert copy is not None
        assert copy.log.next_offset == 1, "the rest waits, and those in sync did not wait for it"
        assert [move.adding for move in doors.list()] == [(3,)]
        assert cluster.record("t").in_sync == (1, 2)


async def test_a_move_that_is_taken_back_leaves_all_as_it_was(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, settings=CRAWLING) as cluster:
        topic = await cluster.create("t", (1, 2))
        for number in range(3):
            await cluster.produce("t", b"%d" % number)
        before = cluster.record("t")
        doors = cluster.any.cluster.reassignments
        await doors.alter("t", 0, [3])
        await until(
            lambda: (copy := cluster.replica(3, "t")) is not None and copy.log.next_offset, "it is being copied"
        )
        await doors.alter("t", 0, None)
        assert cluster.record("t") == before
        await until(lambda: not cluster.nodes[3].broker.logs.has_records(topic.topic_id, 0), "nothing is left of it")


async def test_a_drained_node_loses_all_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, 4) as cluster:
        await until(lambda: all(name in cluster.any.broker.topics for name in INTERNAL))
        await cluster.create("t", (1, 2, 3), (2, 1, 4), (3, 4, 1))
        for index in range(3):
            await cluster.produce("t", b"before", index)
        doors = cluster.any.cluster.reassignments
        await doors.drain(1)
        await until(lambda: doors.progress(1).is_done, "nothing is left on it")
        assert {node for index in range(3) for node in cluster.record("t", index).replicas} == {2, 3, 4}
        new = await cluster.any.broker.topics.create(NewTopic("u", 3, 3))
        assert all(1 not in record.replicas for record in cluster.any.broker.topics.partitions(new))
        await doors.undrain(1)
        assert not doors.drains()


async def test_a_drain_that_cannot_end_moves_leaders_and_says_how_much_is_stuck(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        doors = cluster.any.cluster.reassignments
        await doors.drain(1)
        await until(lambda: doors.progress(1).leads == 0, "it leads nothing")
        progress = doors.progress(1)
        assert progress.replicas == progress.stuck > 0
        assert not progress.is_done


async def test_the_place_of_a_dead_node_is_given_to_another_when_it_is_drained(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, 4) as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.produce("t", b"before")
        await cluster.nodes[1].crash()
        await until(lambda: cluster.record("t").leader == 2, "it was replaced")
        await cluster.any.cluster.reassignments.drain(1)
        await until(lambda: set(cluster.record("t").in_sync) == {2, 3, 4}, "another has its place")


async def test_leadership_goes_back_to_the_preferred_replica_when_it_is_in_sync_again(tmp_path: Path) -> None:
    settings = ClusterSettings(lease_ms=LEASE_MS, balance_ms=200)
    async with Cluster(tmp_path, 1, 2, 3, settings=settings) as cluster:
        await cluster.create("t", (2, 1, 3))
        await cluster.produce("t", b"before")
        await cluster.nodes[2].crash()
        assert await cluster.produce("t", b"between") == 1
        await cluster.start(2)
        await until(lambda: cluster.record("t").leader == 2, "it leads again")
        assert await cluster.produce("t", b"after") == 2


async def test_internal_topics_of_a_cluster_that_began_small_grow_with_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        node = cluster.nodes[1].node
        node.controller.chores[:] = [InternalTopics(cluster.nodes[1].broker, patience_ms=0).make]
        topics = cluster.nodes[1].broker.topics
        await cluster.create("t", (1,))
        await until(lambda: all(name in topics for name in INTERNAL), "they are made without the others")
        assert {record.replicas for record in topics.partitions(topics.require(OFFSETS_TOPIC))} == {(1,)}
        await cluster.start(2)
        await cluster.start(3)

        def is_grown() -> bool:
            records = [record for name in INTERNAL for record in topics.partitions(topics.require(name))]
            return all(len(record.isr) == len(record.replicas) == 3 and not record.adding for record in records)

        await until(is_grown, "all of it is on three nodes")
        await until(lambda: all(topics.require(name).replication_factor == 3 for name in INTERNAL))
        assert topics.require(OFFSETS_TOPIC).min_in_sync == 2
        assert cluster.record("t").replicas == (1,), "topics of users are left alone"


async def test_internal_topics_wait_a_while_for_more_nodes(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        broker = cluster.nodes[1].broker
        chore = InternalTopics(broker, patience_ms=3_600_000)
        wait = await chore.make()
        assert wait is not None
        assert wait > 3_000
        assert OFFSETS_TOPIC not in broker.topics
        await cluster.start(2)
        await cluster.start(3)
        await until(lambda: all(name in broker.topics for name in INTERNAL), "three are enough")
        assert len(cluster.record(OFFSETS_TOPIC).replicas) == 3
        assert await chore.make() is None


async def test_a_partition_whose_replicas_are_all_dead_is_led_by_another_only_on_request(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, min_in_sync=1) as cluster:
        await cluster.create("t", (2, 3))
        await cluster.produce("t", b"both have it")
        await cluster.nodes[3].crash()
        await until(lambda: cluster.record("t").in_sync == (2,), "one is left")
        await cluster.produce("t", b"only one has it")
        await cluster.nodes[2].crash()
        await until(lambda: cluster.record("t").leader == NO_LEADER, "nobody is left")
        await cluster.start(3)
        await until(lambda: 3 in cluster.any.cluster.nodes.nodes)
        assert cluster.record("t").leader == NO_LEADER, "it lacks what was acknowledged"
        await cluster.nodes[1].cluster.reassignments.elect("t", 0, ElectionKind.UNCLEAN)
        assert await cluster.produce("t", b"instead") == 1, "one record is lost, as was asked for"


async def test_a_node_that_was_taken_for_dead_comes_back_in_a_new_life(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, settings=ClusterSettings(lease_ms=300)) as cluster:
        await cluster.create("t", (2, 1, 3))
        await cluster.produce("t", b"before")
        epoch = cluster.nodes[2].epoch
        await cluster.store.txn([], [Delete(node_key(2))])
        await until(lambda: cluster.nodes[2].epoch > epoch, "it has registered again")
        await until(lambda: len(cluster.record("t").isr) == 3, "and caught up")
        assert cluster.record("t").leader != 2
        assert await cluster.produce("t", b"after") == 1


async def test_a_failover_costs_one_transaction_for_many_partitions(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, internal_partitions=1) as cluster:
        await until(lambda: all(name in cluster.any.broker.topics for name in INTERNAL))
        await cluster.create("t", *[(2, 1, 3)] * 100)
        await until(lambda: sum(1 for _ in cluster.nodes[2].cluster.replicas.leading()) >= 100, "all are led")
        written = cluster.nodes[1].node.controller.written
        transactions, operations = written.transactions, written.operations
        await cluster.nodes[2].crash()
        await until(
            lambda: all(cluster.record("t", index).leader == 1 for index in range(100)), "all are led elsewhere"
        )
        assert written.operations - operations >= 100
        assert written.transactions - transactions <= 10, "one, and what leaders changed at the same time"


async def test_a_node_does_not_start_when_the_cluster_has_forgotten_every_topic(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, replication_factor=1, min_in_sync=1) as cluster:
        await cluster.create("t", (1,))
        await cluster.produce("t", b"kept")
        await cluster.nodes[1].crash()
    async with Cluster(tmp_path) as emptied:
        with pytest.raises(PenstockError) as refused:
            await emptied.start(1)
        assert refused.value.reason is Reason.STORAGE_ERROR
        assert "etcd" in refused.value.text
    assert list((tmp_path / "1" / "topics").iterdir()), "nothing was removed"


async def test_a_node_that_was_away_removes_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, min_in_sync=1) as cluster:
        topic = await cluster.create("t", (1, 2, 3))
        await cluster.produce("t", b"gone soon")
        await until(lambda: (copy := cluster.replica(3, "t")) is not None and copy.log.next_offset == 1)
        await cluster.nodes[3].crash()
        await cluster.any.broker.topics.delete("t")
        running = await cluster.start(3)
        folder = tmp_path / "3" / "topics" / topic.topic_id.hex
        await running.cluster.strays.sweep()
        assert folder.exists()
        await running.cluster.strays.sweep()
        assert not folder.exists()


async def test_partitions_without_a_leader_come_before_those_that_lost_a_follower(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, internal_partitions=1) as cluster:
        await until(lambda: all(name in cluster.any.broker.topics for name in INTERNAL))
        # More than fit into one transaction, and before the other one by name.
        followed = await cluster.create("a", *[(1, 2, 3)] * 150)
        led = await cluster.create("z", (2, 1, 3))
        changed: list[str] = []
        cluster.store.subscribe(PARTITIONS_PREFIX, lambda events: changed.extend(event.key for event in events))
        await cluster.nodes[2].crash()
        await until(lambda: all(2 not in cluster.record("a", index).in_sync for index in range(150)), "all is decided")
        assert cluster.record("z").leader == 1
        assert changed.index(partition_key(led.topic_id, 0)) < changed.index(partition_key(followed.topic_id, 0))
