"""A node that is named to lead a partition and cannot open its log: it lets others lead, if they can."""

import errno
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.core.broker import Broker
from penstock.core.cluster.replicas import Replicas
from penstock.errors import PenstockError, Reason
from penstock.log.config import LogConfig
from penstock.log.log import Log
from penstock.types import TopicId
from tests.support.cluster_nodes import Cluster, until
from tests.support.statuses import cluster_status
from tests.unit.cluster.world import CoreWorld


def broken(broker: Broker) -> None:
    """Its disk has no room for another log, or cannot read one."""
    opened = broker.logs.log

    def log(topic_id: TopicId, partition: int, config: LogConfig) -> Log:
        topic = broker.topics.get_by_id(topic_id)
        if topic is not None and topic.name in ("t", "u"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(topic_id, partition, config)

    broker.logs.log = log  # type: ignore[method-assign]


async def test_another_in_sync_replica_is_elected(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, broken)
        await cluster.start(2)
        await cluster.start(3)
        await cluster.create("t", (1, 2, 3))
        await cluster.create("u", (1, 2, 3), (1, 2, 3))
        assert await cluster.produce("t", b"to the next") == 0
        await until(lambda: cluster.record("u", 1).leader == 2 == cluster.record("u").leader, "all is led by others")
        record = cluster.record("t")
        assert (record.leader, record.in_sync) == (2, (2, 3))
        assert any("t/0 cannot be opened" in report for report in cluster.reports)
        [trouble] = [each for each in cluster_status(cluster.nodes[1].broker).under_replicated if each.topic == "t"]
        assert "node 1 is not caught up. The log of t/0 cannot be opened" in trouble.why
        # It is as any replica that is behind, once it can be read, which is tried now and then.
        replicas = cluster.nodes[1].cluster.replicas
        reports = list(cluster.reports)
        later = tried_again(replicas)
        assert cluster.reports == reports, "it was said before"
        del cluster.nodes[1].broker.logs.log  # type: ignore[misc]
        healed = tried_again(replicas)
        assert healed > later
        assert [tried_again(replicas), tried_again(replicas)] == [healed, healed], "what failed together heals together"
        await until(lambda: cluster.record("t").in_sync == (1, 2, 3), "it has caught up")
        assert replicas.next_deadline_ms() is None


def tried_again(replicas: Replicas) -> int:
    """It is looked again at what could not be opened; when."""
    due_ms = replicas.next_deadline_ms()
    assert due_ms is not None
    replicas.tick(due_ms)
    return due_ms


async def test_the_only_one_that_is_in_sync_stays_and_says_so(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, broken)
        await cluster.start(2)
        await cluster.create("t", (1,))
        await cluster.create("u", (1, 2))
        # What can be given up is, so the other one was looked at too.
        await until(lambda: cluster.record("u").leader == 2, "the other one is led by the other node")
        assert cluster.record("t").leader == 1
        broker = cluster.nodes[1].broker
        with pytest.raises(PenstockError, match="cannot be opened") as refused:
            broker.partition("t", 0)
        assert refused.value.reason is Reason.STORAGE_ERROR
        [trouble] = [each for each in cluster_status(broker).offline if each.topic == "t"]
        assert (trouble.partition, trouble.leader) == (0, 1)
        assert "Input/output error" in trouble.why


async def test_a_record_that_cannot_be_trusted_is_not_acted_on() -> None:
    world = CoreWorld()
    await world.start(1, 2)
    topic = await world.topic(isr=(1, 2))
    node = world[1]
    node.append(node.broker.partition("t", 0), 10)
    # The log has later epochs: etcd was set back, and whoever is in sync by such a record may lack what is here.
    await world.put(topic, replace(node.record(topic), leader_epoch=0))
    assert list(node.cluster.replicas.failed)
    assert not node.cluster.replicas.unable
