"""What a node asks of others before it says something of a partition or a group that is theirs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.stats import group_status, topic_stats
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.errors import BacklogFull, PenstockError, Reason
from penstock.operations.groups import OffsetToCommit
from penstock.settings import QueueSettings
from penstock.types import GroupId, PartitionKey, TopicName
from tests.support.cluster_nodes import Running, until
from tests.support.coordinator_cluster import CoordinatorCluster
from tests.support.queue_cluster import QueueCluster, places

KEY = PartitionKey(TopicName("t"), 0)
TIER = {"penstock_tier_location": "/lake"}


def commit(running: Running, group: str, offset: int) -> Callable[[], bool]:
    """Whether it is stored by now."""
    told: list[Reason | None] = []
    running.broker.groups.commit_offset(GroupId(group), OffsetToCommit(KEY, offset), told.append)
    return lambda: told == [None]


def is_full(running: Running) -> bool:
    try:
        running.broker.backlog.check("t", 0)
    except BacklogFull:
        return True
    return False


async def test_retention_goes_by_what_the_group_of_a_tier_committed_on_another_node(tmp_path: Path) -> None:
    async with CoordinatorCluster(tmp_path, 1, 2, 3, internal_partitions=3) as cluster:
        await cluster.ready()
        group = cluster.group_of(cluster.nodes[1])
        await cluster.create("t", (2, 3, 1), penstock_tier_group=group, **TIER)
        await cluster.produce("t", b"v")
        leader = cluster.nodes[2].broker
        assert leader.tiering.archived_offset(leader.partition("t", 0)) == 0
        await until(commit(cluster.nodes[1], group, 1), "it is committed")
        await until(lambda: leader.tiering.archived_offset(leader.partition("t", 0)) == 1, "the leader knows")


async def test_a_topic_of_the_same_name_has_no_archive_yet(tmp_path: Path) -> None:
    async with CoordinatorCluster(tmp_path, 1, 2, 3, internal_partitions=3) as cluster:
        await cluster.ready()
        group = cluster.group_of(cluster.nodes[1])
        leader = cluster.nodes[2].broker
        await cluster.create("t", (2, 3, 1), penstock_tier_group=group, **TIER)
        await cluster.produce("t", b"v")
        await until(commit(cluster.nodes[1], group, 1), "it is committed")
        await until(lambda: leader.tiering.archived_offset(leader.partition("t", 0)) == 1, "the leader knows")
        await leader.topics.delete("t")
        await cluster.create("t", (2, 3, 1), penstock_tier_group=group, **TIER)
        assert leader.tiering.archived_offset(leader.partition("t", 0)) == 0


async def test_another_group_of_the_tier_has_an_archive_of_its_own(tmp_path: Path) -> None:
    async with CoordinatorCluster(tmp_path, 1, 2, 3, internal_partitions=3) as cluster:
        await cluster.ready()
        group = cluster.group_of(cluster.nodes[1])
        leader = cluster.nodes[2].broker
        await cluster.create("t", (2, 3, 1), penstock_tier_group=group, **TIER)
        await cluster.produce("t", b"v")
        await until(commit(cluster.nodes[1], group, 1), "it is committed")
        await until(lambda: leader.tiering.archived_offset(leader.partition("t", 0)) == 1, "the leader knows")
        other = next(name for n in range(100) if cluster.coordinator(name := f"other-{n}") is cluster.nodes[1])
        await leader.topics.alter("t", [ConfigChange("penstock.tier.group", ChangeKind.SET, other)])
        assert leader.tiering.archived_offset(leader.partition("t", 0)) == 0


async def test_a_bound_on_what_nobody_consumed_counts_the_groups_of_all_nodes(tmp_path: Path) -> None:
    bound = QueueSettings(backlog_records_max=3)
    async with CoordinatorCluster(tmp_path, 1, 2, 3, internal_partitions=3, queues=bound) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        for _ in range(3):
            await cluster.produce("t", b"v")
        leader, follower = cluster.nodes[2], cluster.nodes[3]
        await until(lambda: is_full(leader), "the leader refuses")
        await until(lambda: is_full(follower), "a node with a copy refuses")
        await until(commit(cluster.nodes[1], cluster.group_of(cluster.nodes[1]), 2), "somebody has consumed")
        await until(lambda: not is_full(leader), "there is room")
        await until(lambda: not is_full(follower), "there is room")
        # The slowest of all groups counts, wherever it is.
        await until(commit(cluster.nodes[3], cluster.group_of(cluster.nodes[3]), 3), "another is faster")
        for _ in range(2):
            await cluster.produce("t", b"v")
        await until(lambda: is_full(leader), "the slower one has three before it")


async def test_a_node_without_a_copy_refuses_nothing(tmp_path: Path) -> None:
    bound = QueueSettings(backlog_records_max=1)
    async with CoordinatorCluster(tmp_path, 1, 2, 3, internal_partitions=3, queues=bound) as cluster:
        await cluster.ready()
        await cluster.create("t", (2,), min_insync_replicas="1")
        await cluster.produce("t", b"v")
        await until(lambda: is_full(cluster.nodes[2]), "the leader refuses")
        assert not is_full(cluster.nodes[1])
        with pytest.raises(PenstockError) as refused:
            cluster.nodes[1].broker.backlog.check("nowhere", 0)
        assert refused.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_numbers_of_what_others_lead_are_those_of_the_copy_here_or_unknown(tmp_path: Path) -> None:
    async with CoordinatorCluster(tmp_path, 1, 2, 3, internal_partitions=3) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3), (2, 1), min_insync_replicas="1")
        for index in range(2):
            await cluster.produce("t", b"v", index=index)
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        await until(commit(first, group, 0), "the group has a commit")
        await until(lambda: topic_stats(first.broker, "t").partitions[1].end_offset == 1, "the copy is told")
        assert topic_stats(first.broker, "t").partitions[0].end_offset is None
        assert topic_stats(first.broker, "t").partitions_unknown == 1
        assert [found.lag for found in group_status(first.broker, group).partitions] == [None]


async def test_a_queue_works_on_from_an_offset_that_its_partition_has_not_reached_on_another_node(
    tmp_path: Path,
) -> None:
    async with QueueCluster(tmp_path, 1, 2, 3, internal_partitions=3) as cluster:
        await cluster.ready()
        await cluster.create("t", (2,), min_insync_replicas="1")
        worker = cluster.nodes[1]
        group = cluster.group_of(worker)
        places(await cluster.publish(worker, "t", [b"0"]))
        await until(commit(worker, group, 3), "it is committed")
        assert await cluster.lease(worker, "t", group, wait_ms=0) == []
        places(await cluster.publish(worker, "t", [b"1", b"2", b"3"]))
        (record,) = await cluster.lease(worker, "t", group, 10)
        assert (record.offset, record.value) == (3, b"3")
