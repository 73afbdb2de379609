"""What a copy takes, and what it does not let go of."""

import shutil
from pathlib import Path

import pytest

from penstock.core.cluster.follower import Follower
from penstock.core.topics.topics import NewTopic
from penstock.types import NO_EPOCH, Flush
from tests.support.cluster_nodes import Cluster, until
from tests.support.statuses import cluster_status
from tests.unit.cluster.world import CoreWorld

COMMITTED, END = 6, 10


class Copy:
    """Of ten records of leader epoch 0, six of them committed, by the time that another node leads."""

    @classmethod
    async def made(cls, flush: Flush = Flush.SYNC, unclean_epoch: int = NO_EPOCH, **configs: str) -> "Copy":
        made = cls()
        world = CoreWorld()
        await world.start(1)
        node = world[1]
        by_name = {key.replace("_", "."): value for key, value in configs.items()}
        topic = await node.broker.topics.create(NewTopic("t", configs=by_name, assignments={0: (1,)}))
        partition = node.broker.partition("t", 0)
        node.append(partition, END)
        made.reports = []
        made.follower = Follower(
            topic,
            0,
            partition.log,
            node.flusher,
            flush,
            made.reports.append,
            leader=2,
            leader_epoch=3,
            high_watermark=COMMITTED,
            unclean_epoch=unclean_epoch,
        )
        return made

    reports: list[str]
    follower: Follower

    @property
    def end(self) -> int:
        return self.follower.log.next_offset


async def test_what_is_not_committed_is_cut_off_where_histories_part() -> None:
    copy = await Copy.made()
    assert copy.follower.diverged(0, COMMITTED)
    assert (copy.end, copy.follower.high_watermark, copy.reports) == (COMMITTED, COMMITTED, [])


async def test_an_epoch_of_which_no_record_is_left_is_forgotten_where_histories_part() -> None:
    copy = await Copy.made()
    # The file of epochs outlived the only record of epoch 1 when the power was lost.
    copy.follower.log.epochs.assign(1, END)
    assert copy.follower.last_epoch == 1
    assert copy.follower.diverged(0, END)
    assert (copy.follower.last_epoch, copy.end, copy.follower.high_watermark) == (0, END, COMMITTED)


async def test_what_is_committed_is_not_cut_off_and_nothing_more_is_copied() -> None:
    copy = await Copy.made()
    assert not copy.follower.diverged(0, COMMITTED - 1)
    assert not copy.follower.diverged(0, COMMITTED - 1)
    assert (copy.end, copy.follower.high_watermark) == (END, COMMITTED)
    [report] = copy.reports
    assert "t/0: node 2 leads without offsets 5 to 5, which were committed and are here" in report
    assert copy.follower.stuck == report
    assert copy.follower.take(b"anything", 20, 3) == 0
    assert copy.follower.log.start_offset == 0


@pytest.mark.parametrize(
    "allowed",
    [
        {"unclean_epoch": 1},
        {"flush": Flush.OS},
        {"unclean_leader_election_enable": "true"},
    ],
)
async def test_what_an_election_may_lose_is_cut_off_and_said(allowed: dict) -> None:
    copy = await Copy.made(**allowed)
    assert copy.follower.diverged(0, COMMITTED - 2)
    assert (copy.end, copy.follower.high_watermark) == (4, 4)
    assert ["they are now lost here too" in report for report in copy.reports] == [True]


async def test_a_compacted_copy_is_made_again_by_a_leader_that_does_not_know_all_epochs() -> None:
    copy = await Copy.made(cleanup_policy="compact")
    assert copy.follower.diverged(0, COMMITTED - 2)
    assert (copy.end, copy.follower.high_watermark) == (4, 4)
    assert ["copied again from offset 4 on" in report for report in copy.reports] == [True]


async def test_an_unclean_election_before_its_last_record_is_no_reason() -> None:
    copy = await Copy.made(unclean_epoch=0)
    assert not copy.follower.diverged(0, COMMITTED - 1)
    assert copy.end == END


async def test_a_leader_with_a_disk_of_long_ago_takes_nothing_from_others(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "nodes", 1, 2, min_in_sync=1) as cluster:
        await cluster.create("t", (1, 2))
        for n in range(3):
            await cluster.produce("t", b"%d" % n)
        await until(lambda: cluster.record("t").in_sync == (1, 2), "both have it")
        await cluster.nodes[2].stop()
        shutil.copytree(tmp_path / "nodes" / "2", tmp_path / "old")
        await cluster.start(2)
        await until(lambda: (2, cluster.nodes[2].epoch) in cluster.record("t").isr, "it has caught up")
        for n in range(3):
            await cluster.produce("t", b"new %d" % n)
        side = cluster.nodes[1].cluster
        side.save_high_watermarks(side.replicas.known_high_watermarks())
        await cluster.nodes[1].stop()
        await until(lambda: cluster.record("t").in_sync == (2,), "the other one has it alone")
        await cluster.nodes[2].stop()
        shutil.rmtree(tmp_path / "nodes" / "2")
        shutil.move(tmp_path / "old", tmp_path / "nodes" / "2")
        await cluster.start(2)
        await until(lambda: cluster.record("t").leader == 2, "it leads by what the agreed state says")
        await cluster.start(1)
        await until(lambda: any("leads without offsets 3 to 5" in report for report in cluster.reports), "it is said")
        copy = cluster.replica(1, "t")
        assert isinstance(copy, Follower)
        assert (copy.log.next_offset, copy.high_watermark) == (6, 6)
        [trouble] = [each for each in cluster_status(cluster.nodes[1].broker).under_replicated if each.topic == "t"]
        assert trouble.in_sync == (2,)
        assert "node 2 leads without offsets 3 to 5" in trouble.why
