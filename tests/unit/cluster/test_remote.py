"""Appending to what other nodes lead: from every node, in order, once, and never called done when nobody knows."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.cluster.replicas import UNREGISTERED
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.status import LeaderStatus
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.types import Acks
from tests.support.cluster_nodes import SECONDS_MAX, Running, until
from tests.support.queue_cluster import QueueCluster, places

HEADER = "mark"


def world(path: Path) -> QueueCluster:
    return QueueCluster(path, 1, 2, 3)


async def asked(ask: Callable[..., None], *said: Any) -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(*said, done.set_result)
    async with asyncio.timeout(SECONDS_MAX):
        return await done


def batch(*values: bytes) -> bytearray:
    return build_batch([Record(0, 1_700_000_000_000, None, value, ((HEADER, value),)) for value in values])


def known(running: Running, name: str = "t") -> Topic:
    return running.broker.topics.require(name)


async def everywhere(cluster: QueueCluster, name: str) -> None:
    """Return when every node knows the topic, and its leaders lead."""

    def leads() -> bool:
        return all(
            running.broker.topics.get(name) is not None
            and cluster.record(name, index).leader in cluster.nodes
            and cluster.nodes[cluster.record(name, index).leader].broker.opened(name, index) is not None
            for running in cluster.up
            for index in range(known(running, name).partition_count)
        )

    await until(leads, f"{name} is led")


@pytest.mark.parametrize("acks", list(Acks))
async def test_records_are_published_through_any_node_to_partitions_of_all(tmp_path: Path, acks: Acks) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
        await everywhere(cluster, "t")
        for turn, running in enumerate(cluster.up):
            for index in range(3):
                found = places(await cluster.publish(running, "t", [b"a", b"b"], index, acks))
                assert [(place.partition, place.offset) for place in found] == [
                    (index, 2 * turn),
                    (index, 2 * turn + 1),
                ]
        for index in range(3):
            await until(lambda index=index: len(cluster.values("t", index)) == 6)


async def test_one_call_may_go_to_partitions_that_several_nodes_lead(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
        await everywhere(cluster, "t")
        found = places(await cluster.publish(cluster.nodes[1], "t", [b"%d" % n for n in range(30)]))
        assert sorted((place.partition, place.offset) for place in found) == [
            (index, offset) for index in range(3) for offset in range(10)
        ]


async def test_order_is_kept_while_the_leader_changes_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        sender = cluster.nodes[1]
        sent: list[asyncio.Task[Any]] = []
        enough = asyncio.Event()

        async def send() -> None:
            while not enough.is_set():
                # Not waited for: many are on their way at once, in turns of their own.
                sent.append(asyncio.create_task(cluster.publish(sender, "t", [b"%d" % len(sent)])))
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        await until(lambda: len(sent) > 200)
        await cluster.leave(cluster.nodes[2])
        count = len(sent)
        await until(lambda: len(sent) > count + 200)
        enough.set()
        await sending
        results = [(await task)[0] for task in sent]
        kept = [b"%d" % n for n, result in enumerate(results) if not isinstance(result, PenstockError)]
        unknown = {b"%d" % n for n, result in enumerate(results) if isinstance(result, PenstockError)}
        assert {each.reason for each in results if isinstance(each, PenstockError)} <= {Reason.LINK_LOST}
        values = [int(value) for value in cluster.values("t")]
        assert values == sorted(set(values)), "in order, and each once"
        assert set(kept) <= {b"%d" % value for value in values} <= set(kept) | unknown


async def test_what_a_leader_refused_without_doing_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        replicas = cluster.nodes[2].cluster.replicas
        real, refusals = replicas.leader, [Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE]

        def leader(topic: Topic, index: int) -> Partition:
            if topic.name == "t" and refusals:
                raise PenstockError(refusals.pop())
            return real(topic, index)

        monkeypatch.setattr(replicas, "leader", leader)
        first = cluster.publish(cluster.nodes[1], "t", [b"first"])
        second = cluster.publish(cluster.nodes[1], "t", [b"second"])
        await asyncio.gather(first, second)
        assert refusals == []
        assert cluster.values("t") == [b"first", b"second"]


async def test_what_was_sent_and_not_answered_is_unknown_and_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        leader, silent = cluster.nodes[2], asyncio.Event()
        real = leader.cluster.appends.append

        def append(partition: Partition, data: bytearray, acks: Acks, _: object) -> None:
            real(partition, data, acks, lambda _: silent.set())

        monkeypatch.setattr(leader.cluster.appends, "append", append)
        answer = asyncio.create_task(
            asked(cluster.nodes[1].node.remote.produce, known(cluster.nodes[1]), 0, batch(b"a"), Acks.ALL)
        )
        await silent.wait()
        await cluster.kill(leader)
        found = await answer
        assert isinstance(found, PenstockError)
        assert found.reason is Reason.LINK_LOST
        await until(lambda: cluster.record("t").leader == 3 and cluster.nodes[3].broker.opened("t", 0) is not None)
        await until(lambda: cluster.values("t") == [b"a"], "it was committed, and appended once")


async def test_too_few_replicas_are_told_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3))
        await everywhere(cluster, "t")
        await cluster.kill(cluster.nodes[3])
        await until(lambda: cluster.record("t").in_sync == (2,))
        (found,) = await cluster.publish(cluster.nodes[1], "t", [b"a"])
        assert isinstance(found, PenstockError)
        assert found.reason is Reason.NOT_ENOUGH_REPLICAS


async def test_a_deleted_topic_is_told(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        topic = await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        await cluster.nodes[1].broker.topics.delete("t")
        await until(lambda: cluster.nodes[1].broker.topics.get("t") is None)
        found = await asked(cluster.nodes[1].node.remote.produce, topic, 0, batch(b"a"), Acks.ALL)
        assert isinstance(found, PenstockError)
        assert found.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_two_nodes_that_append_once_at_the_same_time_get_the_same_record(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        answers = await asyncio.gather(
            *(
                asked(running.node.remote.append_once, known(running), 0, batch(b"a", b"b"), HEADER, 0)
                for running in cluster.up
            )
        )
        assert [answer.offsets for answer in answers] == [[0, 1]] * 3
        assert cluster.values("t") == [b"a", b"b"]


async def test_what_was_appended_once_is_found_by_the_next_leader_though_nobody_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        leader, landed = cluster.nodes[2], asyncio.Event()
        real = leader.cluster.appends.append_once

        def append_once(partition: Partition, data: bytearray, header: str, noted: list[int], _: object) -> None:
            real(partition, data, header, noted, lambda _: landed.set())

        monkeypatch.setattr(leader.cluster.appends, "append_once", append_once)
        sender = cluster.nodes[1]
        answer = asyncio.create_task(asked(sender.node.remote.append_once, known(sender), 0, batch(b"a"), HEADER, 0))
        await landed.wait()
        await cluster.kill(leader)
        # It asks again by itself, and the new leader has it.
        assert (await answer).offsets == [0]
        assert cluster.values("t") == [b"a"]


async def test_a_leader_says_how_its_partition_stands(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        await cluster.publish(cluster.nodes[1], "t", [b"a", b"b"])
        for running in cluster.up:
            assert await asked(running.node.remote.partition_status, known(running), 0) == LeaderStatus(0, 2)


async def test_whoever_waits_is_told_when_the_node_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")

        def never(*_: object) -> None:
            """Takes it and says nothing."""

        monkeypatch.setattr(cluster.nodes[2].cluster.appends, "append", never)
        sender = cluster.nodes[1]
        asks = [
            asyncio.create_task(asked(sender.node.remote.produce, known(sender), 0, batch(b"%d" % n), Acks.ALL))
            for n in range(3)
        ]
        await until(lambda: sender.node.remote.holds(known(sender), 0))
        await sender.node.remote.stop()
        reasons = {found.reason for found in await asyncio.gather(*asks)}
        assert reasons <= {Reason.LINK_LOST, Reason.SHUTTING_DOWN}
        assert Reason.SHUTTING_DOWN in reasons


async def test_what_was_gathered_for_a_leader_that_resigns_in_the_same_turn_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        await cluster.create("t", (2, 3, 1))
        await everywhere(cluster, "t")
        leader = cluster.nodes[2]
        publisher, replicas = leader.broker.publisher, leader.cluster.replicas
        real = publisher._append_gathered

        def append_gathered() -> None:
            # What came in this turn is appended at its end; by then another incarnation of the node leads.
            replicas.registered(UNREGISTERED)
            replicas.registered(leader.epoch)
            real()

        monkeypatch.setattr(publisher, "_append_gathered", append_gathered)
        assert [place.offset for place in places(await cluster.publish(leader, "t", [b"a"]))] == [0]
        assert cluster.values("t") == [b"a"]
