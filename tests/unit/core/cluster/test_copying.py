"""What a follower is sent: what is in sync first, what moves behind it and within its budget, and where the log begins."""

from pathlib import Path

import pytest

from penstock.core.cluster.copying import CopySession, PartitionFetch
from penstock.core.cluster.throttle import ByteBudget
from penstock.core.partitions.delete_records import delete_records
from penstock.core.partitions.partition import Partition
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.topics import Topic
from penstock.errors import Reason
from penstock.types import NodeId
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE

BYTES_MAX = 1_000_000


class Session:
    """What one other node copies from this one."""

    def __init__(self, node: ClusterNode, follower: int) -> None:
        self.news = 0
        cluster = node.cluster
        self.copies = CopySession(
            NodeId(follower),
            cluster.nodes.live()[follower],
            cluster.replicas,
            node.broker.topics,
            node.clock,
            lambda _partition: None,
            self._told,
        )

    def _told(self) -> None:
        self.news += 1

    def ask(self, partition: Partition, offset: int, log_start: int = 0) -> None:
        asked = PartitionFetch(offset, partition.leader_epoch, -1, partition.high_watermark, BYTES_MAX, log_start)
        self.copies.ask(partition.topic.topic_id, partition.index, asked)

    def collect(self, bytes_max: int = BYTES_MAX) -> list[tuple[int, int]]:
        """Of which partition how many bytes came."""
        return [(copied.place.partition, len(copied.records)) for copied in self.copies.collect(bytes_max)]


async def moving(node: ClusterNode) -> tuple[Topic, list[Partition]]:
    """Two partitions of three batches each: of the first a replica is being given to the third node, the second it has."""
    topic = await node.place("t", (NODE, OTHER), (NODE, THIRD))
    partitions = [await node.append_written("t", index, 3) for index in (0, 1)]
    await node.set_record(topic, 0, replicas=(NODE, OTHER, THIRD), adding=(THIRD,))
    return topic, partitions


async def test_what_moves_comes_behind_what_is_in_sync(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        _, partitions = await moving(node)
        session = Session(node, THIRD)
        for partition in partitions:
            session.ask(partition, 0)
        assert [index for index, _ in session.collect()] == [1, 0]


async def test_what_moves_waits_for_its_budget_and_nobody_else_does(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        _, partitions = await moving(node)
        node.cluster.replicas.moving_budget = ByteBudget(1)
        session = Session(node, THIRD)
        session.ask(partitions[0], 0)
        (first,) = session.collect()
        assert first[1] > 1, "a batch comes whole"
        session.ask(partitions[0], 1)
        session.ask(partitions[1], 0)
        assert [index for index, _ in session.collect()] == [1]
        assert not session.copies.has_news, "the follower may wait"
        node.clock.advance(first[1] * 1000)
        assert [index for index, _ in session.collect()] == [0]


async def test_once_in_sync_it_is_not_held_up_any_more(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        topic, partitions = await moving(node)
        node.cluster.replicas.moving_budget = ByteBudget(1)
        node.cluster.replicas.moving_budget.take(1_000_000)
        session = Session(node, THIRD)
        session.ask(partitions[0], 0)
        assert session.collect() == []
        await node.set_record(topic, 0, isr=tuple(node.cluster.nodes.live().items()))
        session.ask(partitions[0], 0)
        assert [index for index, _ in session.collect()] == [0]


async def outside(node: ClusterNode, **configs: str) -> list[Partition]:
    """Two partitions of three batches each, in a topic with these configs; the third node has replicas of both and is not in sync."""
    topic = await node.place("t", (NODE, OTHER, THIRD), (NODE, OTHER, THIRD))
    partitions = [await node.append_written("t", index, 3) for index in (0, 1)]
    for index in (0, 1):
        isr = tuple(each for each in node.cluster.nodes.live().items() if each[0] != THIRD)
        await node.set_record(topic, index, isr=isr)
    changes = [ConfigChange(name.replace("_", "."), ChangeKind.SET, value) for name, value in configs.items()]
    await node.broker.topics.alter("t", changes)
    return partitions


async def test_a_throttled_replica_waits_for_its_rate_and_others_do_not(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        partitions = await outside(node, leader_replication_throttled_replicas=f"0:{NODE}")
        node.cluster.replicas.sending.set_rate(1)
        session = Session(node, THIRD)
        session.ask(partitions[0], 0)
        ((_, sent),) = session.collect()
        assert sent > 1, "a batch comes whole"
        session.ask(partitions[0], 1)
        session.ask(partitions[1], 0)
        assert [index for index, _ in session.collect()] == [1]
        node.clock.advance(sent * 1000)
        assert [index for index, _ in session.collect()] == [0]


@pytest.mark.parametrize("listed", [f"0:{OTHER}", "1:1", ""])
async def test_a_replica_that_is_not_listed_is_not_throttled(tmp_path: Path, listed: str) -> None:
    async with ClusterNode(tmp_path) as node:
        partitions = await outside(node, leader_replication_throttled_replicas=listed)
        node.cluster.replicas.sending.set_rate(1)
        session = Session(node, THIRD)
        for offset in range(3):
            session.ask(partitions[0], offset)
            assert session.collect(1)


async def test_a_replica_in_sync_is_not_throttled(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        partitions = await outside(node, leader_replication_throttled_replicas="*")
        node.cluster.replicas.sending.set_rate(1)
        session = Session(node, OTHER)
        for offset in range(3):
            session.ask(partitions[0], offset)
            assert session.collect(1)


async def test_a_rate_that_is_lifted_holds_nobody_up(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        partitions = await outside(node, leader_replication_throttled_replicas="*")
        node.cluster.replicas.sending.set_rate(1)
        session = Session(node, THIRD)
        for partition in partitions:
            session.ask(partition, 0)
        (first,) = session.collect()
        node.cluster.replicas.sending.set_rate(None)
        (second,) = session.collect()
        assert {first[0], second[0]} == {0, 1}


async def test_a_throttled_move_goes_by_its_rate_in_place_of_the_usual_one(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        _, partitions = await moving(node)
        await node.broker.topics.alter(
            "t", [ConfigChange("leader.replication.throttled.replicas", ChangeKind.SET, "*")]
        )
        node.cluster.replicas.moving_budget = ByteBudget(1)
        node.cluster.replicas.moving_budget.take(1_000_000)
        node.cluster.replicas.sending.set_rate(1_000_000)
        session = Session(node, THIRD)
        session.ask(partitions[0], 0)
        assert [index for index, _ in session.collect()] == [0]


async def test_what_is_forgotten_is_not_sent(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        topic, partitions = await moving(node)
        node.cluster.replicas.moving_budget = ByteBudget(1)
        node.cluster.replicas.moving_budget.take(10)
        session = Session(node, THIRD)
        session.ask(partitions[0], 0)
        session.collect()
        session.copies.forget(topic.topic_id, 0)
        node.clock.advance(60_000)
        assert session.collect() == []


async def test_a_quiet_partition_says_that_its_beginning_went(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        await node.place("t", (NODE, OTHER))
        partition = await node.append_written("t", 0, 3)
        node.fetched(partition, OTHER, 3)
        session = Session(node, OTHER)
        session.ask(partition, 3)
        session.collect()
        assert session.news == 0
        delete_records(partition, 2)
        assert session.news == 1
        (copied,) = session.copies.collect(BYTES_MAX)
        assert (copied.start_offset, len(copied.records)) == (2, 0)
        assert session.copies.collect(BYTES_MAX) == []


@pytest.mark.parametrize("is_replica", [True, False])
async def test_a_log_that_cannot_be_made_durable_is_spoken_of(tmp_path: Path, is_replica) -> None:
    async with ClusterNode(tmp_path) as node:
        await node.place("t", (NODE, OTHER) if is_replica else (OTHER, NODE))
        said: list[str] = []
        node.cluster.replicas.on_failed.append(said.append)
        node.broker.replica("t", 0).log.fail(OSError("the disk is broken"))
        assert len(said) == 1
        assert "the disk is broken" in said[0]


async def test_whoever_had_records_deleted_waits_for_what_followers_say_of_their_beginning(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        topic = await node.place("t", (NODE, OTHER))
        partition = await node.append_written("t", 0, 3)
        session = Session(node, OTHER)
        session.ask(partition, 3)
        delete_records(partition, 2)
        told: list[Reason | None] = []
        partition.when_deleted(2, told.append)
        session.ask(partition, 3, log_start=1)
        assert (partition.low_watermark, told) == (1, [])
        session.ask(partition, 3, log_start=2)
        assert (partition.low_watermark, told) == (2, [None])
        assert partition.in_sync is not None
        assert partition.in_sync.start_promised == 2, "nobody joins who has it still"
        never: list[Reason | None] = []
        partition.when_deleted(3, told.append)
        partition.when_deleted(3, never.append)
        partition.forget_deleted(never.append)
        await node.set_record(topic, 0, leader=OTHER, leader_epoch=1)
        assert told == [None, Reason.NOT_LEADER_OR_FOLLOWER]
        assert never == []


async def test_that_more_is_committed_is_told_without_records_too(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        await node.place("t", (NODE, OTHER))
        partition = await node.append_written("t", 0, 3)
        session = Session(node, OTHER)
        session.ask(partition, 0)
        session.collect()
        session.ask(partition, 3)
        assert session.copies.has_news
        (copied,) = session.copies.collect(BYTES_MAX)
        assert (copied.high_watermark, len(copied.records)) == (3, 0)
        assert not session.copies.has_news
        assert session.copies.collect(BYTES_MAX) == []
