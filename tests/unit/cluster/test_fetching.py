"""Copying from leaders: what is asked, and asked again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.fetching import Fetcher
from penstock.cluster.links import Identity
from penstock.core.broker import Broker
from penstock.core.cluster.follower import Follower
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.dynamic_configs import ConfigResource, ResourceKind
from penstock.core.partitions.delete_records import delete_records
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.errors import PenstockError, Reason
from penstock.gateways.peers import fetch as fetch_module
from penstock.records.batch import read_header
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.testing.faulty_store import FaultyStore
from penstock.types import NodeId
from penstock.wire.kafka.fetch_generated import FetchRequest
from tests.support.cluster_nodes import Cluster, until


async def test_a_replica_that_asked_before_its_leader_knew_of_it_is_counted_all_the_same(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 2, 3) as cluster:
        stores: list[FaultyStore] = []

        def hears_late(broker: Broker) -> None:
            stores.append(FaultyStore(cluster.store))
            broker.topics._store = stores[0]

        await cluster.start(1, hears_late)
        await cluster.create("t", (1, 2))
        stores[0].hold_events()
        await cluster.nodes[2].cluster.reassignments.alter("t", 0, (1, 2, 3))
        follower = cluster.replica(3, "t")
        assert isinstance(follower, Follower)
        await until(lambda: follower.has_heard, "its first question is answered")
        stores[0].let_events()
        await until(lambda: 3 in cluster.record("t").in_sync, "it is in sync")


async def test_deleted_is_answered_when_it_is_so_on_every_node_in_sync(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        for n in range(6):
            await cluster.produce("t", b"%d" % n)
        await until(lambda: len(cluster.record("t").in_sync) == 3, "all are in sync")
        partition = cluster.nodes[1].broker.partition("t", 0)
        told: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()
        delete_records(partition, 4)
        partition.when_deleted(4, told.set_result)
        assert not told.done()
        async with asyncio.timeout(30):
            assert await told is None
        assert [cluster.nodes[n].broker.replica("t", 0).log.start_offset for n in (1, 2, 3)] == [4, 4, 4]
        await cluster.nodes[1].stop()
        await until(lambda: cluster.record("t").leader in (2, 3), "another leads")
        leader = cluster.nodes[cluster.record("t").leader].broker.partition("t", 0)
        assert leader.log.start_offset == 4


async def test_a_leader_whose_answer_cannot_be_read_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path, 1, 2, replication_factor=2, min_in_sync=1) as cluster:
        await cluster.create("t", (1, 2))
        follower = cluster.replica(2, "t")
        assert isinstance(follower, Follower)
        await until(lambda: follower.has_heard, "it copies")
        link = cluster.nodes[2].node.fetching._fetchers[NodeId(1)]._link
        before = link.connections
        with monkeypatch.context() as patched:
            patched.setattr(fetch_module, "_encode", lambda _: [b"\xff\xff\xff"])
            await until(lambda: link.connections > before, "it connects again")
        await cluster.produce("t", b"x")
        await until(lambda: follower.high_watermark == 1, "it copies again")


async def test_what_answers_an_observer_is_not_put_into_the_replica_that_took_its_place(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2))
        for n in range(5):
            await cluster.produce("t", b"%d" % n)
        cluster.nodes[3].broker.observe("t", 0)
        observer = cluster.replica(3, "t")
        assert isinstance(observer, Follower)
        assert observer.is_observer
        await until(lambda: observer.high_watermark == 5, "it is observed")
        held = _hold_answers(cluster, 3)
        await cluster.produce("t", b"live")
        await until(lambda: held, "an answer with the last record is on its way")
        await cluster.nodes[1].cluster.reassignments.alter("t", 0, (1, 2, 3))
        await until(lambda: not getattr(cluster.replica(3, "t"), "is_observer", True), "it is a replica")
        _let_answers(cluster, 3, held)
        await until(lambda: 3 in cluster.record("t").in_sync, "it is in sync")
        assert _offsets(cluster, 3) == [0, 1, 2, 3, 4, 5]


async def test_a_throttled_follower_receives_no_faster_than_its_rate_until_the_rate_is_deleted(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3, min_in_sync=1) as cluster:
        await cluster.create("t", (1, 2), follower_replication_throttled_replicas="0:3")
        for n in range(5):
            await cluster.produce("t", b"%d" % n)
        resource, name = ConfigResource(ResourceKind.BROKER, "3"), "follower.replication.throttled.rate"
        await cluster.nodes[1].broker.configs.alter(resource, [ConfigChange(name, ChangeKind.SET, "1")])
        await cluster.nodes[1].cluster.reassignments.alter("t", 0, (1, 2, 3))
        await until(
            lambda: (copy := cluster.replica(3, "t")) is not None and copy.log.next_offset == 1, "one batch came"
        )
        for n in range(5):
            await cluster.produce("t", b"%d" % n)
        copy = cluster.replica(3, "t")
        assert copy is not None
        assert copy.log.next_offset == 1, "the rest waits, and those in sync did not wait for it"
        assert cluster.record("t").in_sync == (1, 2)
        await cluster.nodes[2].broker.configs.alter(resource, [ConfigChange(name, ChangeKind.DELETE)])
        await until(lambda: 3 in cluster.record("t").in_sync, "it is in sync")


async def test_no_question_names_what_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsynced: list[tuple[int, int]] = []
    request = Fetcher._request

    def seen(
        fetcher: Fetcher, identity: Identity, asked: list[TopicIdPartition], forgotten: list[TopicIdPartition]
    ) -> FetchRequest:
        for place in asked:
            log = fetcher._followed[place].log
            if log.synced_offset != log.next_offset:
                unsynced.append((log.synced_offset, log.next_offset))
        return request(fetcher, identity, asked, forgotten)

    monkeypatch.setattr(Fetcher, "_request", seen)
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        await until(lambda: len(cluster.record("t").in_sync) == 3, "all are in sync")
        follower = cluster.replica(2, "t")
        assert isinstance(follower, Follower)
        fetcher = cluster.nodes[2].node.fetching._fetchers[NodeId(1)]
        take, takes = Follower.take, 0

        def asked_for_again(each: Follower, *answer: Any) -> int:
            nonlocal takes
            if each is follower:
                # As a reminder, or news of the log's start, has it: the question is due when this answer has been taken.
                fetcher._ask_again(TopicIdPartition(follower.topic.topic_id, 0))
                takes += 1
            return take(each, *answer)

        monkeypatch.setattr(Follower, "take", asked_for_again)
        for n in range(20):
            await cluster.produce("t", b"%d" % n)
        assert takes
    assert unsynced == []


async def test_a_damaged_batch_does_not_keep_what_came_before_it_from_being_made_durable(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2, 3))
        await until(lambda: len(cluster.record("t").in_sync) == 3, "all are in sync")
        for n in range(3):
            await cluster.produce("t", b"%d" % n)
        follower = cluster.replica(2, "t")
        assert isinstance(follower, Follower)
        await until(lambda: follower.log.synced_offset == 3, "it has them")
        good, bad = bytearray(_batch(3)), bytearray(_batch(4))
        bad[-1] ^= 1
        with pytest.raises(PenstockError, match="arrived damaged from node 1"):
            follower.take(bytes(good + bad), 3, 0)
        await until(lambda: follower.log.synced_offset == 4, "the good one is there for good")


def _batch(offset: int) -> bytes:
    batch = build_batch([Record(offset, 0, None, b"x", ())])
    # Offset and epoch, as the leader puts them in.
    batch[:8], batch[12:16] = offset.to_bytes(8, "big"), bytes(4)
    return bytes(batch)


def _hold_answers(cluster: Cluster, node: int) -> list[bytes]:
    """What node 1 answers a node is on its way from now on."""
    held: list[bytes] = []
    cluster.nodes[node].node.fetching._fetchers[NodeId(1)]._link.came = lambda body: held.append(bytes(body))  # type: ignore[method-assign]
    return held


def _let_answers(cluster: Cluster, node: int, held: list[bytes]) -> None:
    link = cluster.nodes[node].node.fetching._fetchers[NodeId(1)]._link
    del link.came
    for answer in held:
        link.came(memoryview(answer))


def _offsets(cluster: Cluster, node: int) -> list[int]:
    """Of the records in a node's copy."""
    log = cluster.nodes[node].broker.replica("t", 0).log
    data = memoryview(bytes(log.read(log.start_offset, 1 << 20, log.next_offset).data))
    found: list[int] = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        found += range(header.base_offset, header.next_offset)
        position += header.size_bytes
    return found


async def test_a_log_that_begins_in_the_middle_of_a_batch_is_copied_to_a_new_replica(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, 2, 3) as cluster:
        await cluster.create("t", (1, 2))
        partition = cluster.nodes[1].broker.partition("t", 0)
        for _ in range(2):
            partition.append(build_batch([Record(n, 1, None, b"%d" % n) for n in range(10)]), 1)
        await until(lambda: partition.high_watermark == 20, "they are committed")
        delete_records(partition, 5)
        await cluster.nodes[1].cluster.reassignments.alter("t", 0, (1, 2, 3))
        await until(lambda: 3 in cluster.record("t").in_sync, "it is in sync")
        log = cluster.nodes[3].broker.replica("t", 0).log
        await until(lambda: log.start_offset == 5, "it begins where its leader's log does")
        assert log.next_offset == 20
