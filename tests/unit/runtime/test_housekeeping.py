"""Housekeeping: one log that cannot be looked after does not keep the others from it; copies are looked after as their leaders say."""

import asyncio
from pathlib import Path

from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.dynamic_configs import ALL_BROKERS
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.settings import LogSettings
from penstock.types import Flush
from tests.support.cluster_nodes import Cluster, Running, until
from tests.support.kafka_node import KafkaNode

HOUR_MS = 3_600_000


def log_settings(housekeeping_interval_ms: int, flush: Flush = Flush.OS) -> LogSettings:
    return LogSettings(flush=flush, checkpoint_interval_ms=HOUR_MS, housekeeping_interval_ms=housekeeping_interval_ms)


async def test_a_log_that_fails_in_an_unforeseen_way_does_not_stop_the_retention_of_others(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path, log=log_settings(1)) as node:
        for name in ("a", "b", "c"):
            await node.create(name, retention_ms="1000")
            await node.append(name, 0, 3)
        broken = node.broker.partition("b", 0)
        # A value that no code expects there.
        broken.log.config = None  # type: ignore[assignment]
        config = broken.topic.config.log
        node.clock.advance(10_000)
        commit = GroupCommit(asyncio.get_running_loop(), Flush.OS, 1)
        housekeeping = Housekeeping(node.broker, commit)
        housekeeping.start()
        try:
            await until(lambda: all(node.broker.partition(name, 0).log.start_offset == 3 for name in ("a", "c")))
        finally:
            await housekeeping.stop()
            commit.close()
            broken.log.config = config


async def test_an_interval_that_is_set_while_the_broker_runs_counts_at_once(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path, log=log_settings(HOUR_MS)) as node:
        await node.create("t", retention_ms="1000")
        await node.append("t", 0, 3)
        node.clock.advance(10_000)
        commit = GroupCommit(asyncio.get_running_loop(), Flush.OS, 1)
        housekeeping = Housekeeping(node.broker, commit)
        housekeeping.start()
        try:
            change = ConfigChange("log.cleaner.backoff.ms", ChangeKind.SET, "10")
            await node.broker.configs.alter(ALL_BROKERS, [change])
            await until(lambda: node.broker.partition("t", 0).log.start_offset == 3, "the old records are gone")
        finally:
            await housekeeping.stop()
            commit.close()


def housekeeping_of(running: Running) -> Housekeeping:
    return Housekeeping(running.broker, running.commit)


async def test_a_copy_drops_what_its_leader_dropped_and_nothing_by_itself(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, min_in_sync=1, log=log_settings(10, Flush.SYNC)) as cluster:
        topic = await cluster.create("t", (1, 2), retention_ms="1", segment_bytes="1048576")
        for number in range(3):
            await cluster.produce("t", b"%d" % number)
        copy = cluster.replica(2, "t")
        assert copy is not None
        await until(lambda: copy.high_watermark == 3, "the copy has all")
        follower, leader = housekeeping_of(cluster.nodes[2]), housekeeping_of(cluster.nodes[1])
        await follower._look_after_logs()
        assert copy.log.start_offset == 0, "old as it is, that is the leader's to decide"
        await leader._look_after_logs()
        assert cluster.nodes[1].broker.partition("t", 0).log.start_offset == 3
        await until(lambda: copy.log.start_offset == 3, "the copy is told, though nothing is written")
        await follower._look_after_logs()
        folder = tmp_path / "2" / "topics" / topic.topic_id.hex / "0"
        assert [path.name for path in folder.glob("*.log")] == [f"{3:020d}.log"]
        await follower.stop()
        await leader.stop()
        assert await cluster.produce("t", b"after") == 3


async def test_a_node_knows_after_a_restart_what_was_committed_before(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, log=log_settings(10, Flush.SYNC)) as cluster:
        topic = await cluster.create("t", (1, 2))
        for number in range(5):
            await cluster.produce("t", b"%d" % number)
        copy = cluster.replica(2, "t")
        assert copy is not None
        await until(lambda: copy.high_watermark == 5)
        await housekeeping_of(cluster.nodes[2]).stop()
        await cluster.nodes[2].crash()
        await cluster.nodes[1].crash()
        restarted = await cluster.start(2)
        known = restarted.cluster.replicas.known_high_watermarks()
        assert known[TopicIdPartition(topic.topic_id, 0)] == 5, "nobody else is up to tell"


async def test_what_is_committed_is_noted_only_when_it_is_more(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, log=log_settings(10, Flush.SYNC)) as cluster:
        await cluster.create("t", (1, 2))
        await cluster.produce("t", b"one")
        housekeeping = housekeeping_of(cluster.nodes[1])
        await housekeeping._note_marks()
        (path,) = (tmp_path / "1").glob("high-watermarks*")
        noted = path.stat().st_ino
        await housekeeping._note_marks()
        assert path.stat().st_ino == noted
        await cluster.produce("t", b"two")
        await housekeeping._note_marks()
        assert path.stat().st_ino != noted
        await housekeeping.stop()
