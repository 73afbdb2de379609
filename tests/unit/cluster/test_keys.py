"""Produce keys whose nodes come and go: three whole nodes on real sockets, one store in memory."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, Reason
from tests.support.cluster_nodes import until
from tests.support.coordinator_cluster import CoordinatorCluster


def world(path: Path, *nodes: int) -> CoordinatorCluster:
    return CoordinatorCluster(path, *(nodes or (1, 2, 3)), internal_partitions=6)


async def test_a_key_has_one_record_whoever_leads_its_partition(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.topic_of_keys(cluster.nodes[1], (1, 2, 3), (2, 3, 1), (3, 1, 2))
        for partition in range(3):
            placed, duplicate = await cluster.send(topic, f"k{partition}", partition=partition)
            assert (placed.partition, duplicate) == (partition, False)
            assert await cluster.send(topic, f"k{partition}", b"other", partition=partition) == (placed, True)
            assert cluster.values(topic.name, partition) == [b"v"]


async def test_another_node_says_that_it_does_not_look_after_the_keys(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.topic_of_keys(cluster.nodes[1], (2, 3, 1))
        with pytest.raises(PenstockError) as refused:
            await cluster.send_once(cluster.nodes[2], topic, "k")
        assert refused.value.reason is Reason.NOT_COORDINATOR
        assert cluster.values(topic.name) == []


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_key_is_known_to_the_next_node(tmp_path: Path, is_killed: bool) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        first = cluster.nodes[1]
        topic = await cluster.topic_of_keys(first, (2, 3, 1))
        placed, _ = await cluster.send(topic, "k")
        await (cluster.kill(first) if is_killed else cluster.leave(first))
        assert await cluster.send(topic, "k", b"again") == (placed, True)
        assert cluster.values(topic.name) == [b"v"]


async def test_a_record_whose_answer_died_with_the_node_is_found_by_the_next_one(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        first = cluster.nodes[1]
        topic = await cluster.topic_of_keys(first, (2, 3, 1))
        answers: list[Any] = []
        cluster.disturb(first).after = lambda _call, answer, _done: answers.append(answer)
        lost = asyncio.ensure_future(cluster.send_once(first, topic, "k"))
        await until(lambda: answers, "the leader has the record")
        await cluster.kill(first)
        with pytest.raises(PenstockError):
            await lost
        placed, duplicate = await cluster.send(topic, "k", b"again")
        assert ([placed.offset], duplicate) == (answers[0].offsets, True)
        assert cluster.values(topic.name) == [b"v"]


async def test_a_record_that_was_intended_and_never_sent_is_appended_when_its_key_comes_again(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        first = cluster.nodes[1]
        topic = await cluster.topic_of_keys(first, (2, 3, 1))
        kept: list[Any] = []

        def keep(_call: str, done: Any) -> bool:
            kept.append(done)
            return False

        cluster.disturb(first).before = keep
        lost = asyncio.ensure_future(cluster.send_once(first, topic, "k"))
        await until(lambda: kept, "it is about to be sent")
        await cluster.kill(first)
        with pytest.raises(PenstockError):
            await lost
        placed, _ = await cluster.send(topic, "k", b"again")
        assert await cluster.send(topic, "k", b"and again") == (placed, True)
        assert cluster.values(topic.name) == [b"again"]


async def test_a_late_record_of_the_node_before_is_not_appended_again(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        first = cluster.nodes[1]
        topic = await cluster.topic_of_keys(first, (2, 3, 1))
        late: list[Any] = []
        disturbed = cluster.disturb(first)
        real = disturbed._real.append_once
        disturbed._real.append_once = lambda *args: late.append(args)
        lost = asyncio.ensure_future(cluster.send_once(first, topic, "k"))
        await until(lambda: late, "it is about to be sent")
        await first.node.hand_over()
        with pytest.raises(PenstockError) as told:
            await lost
        assert told.value.reason is Reason.NOT_COORDINATOR
        placed, _ = await cluster.send(topic, "k", b"again")
        # The old node's request arrives only now.
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        real(*late[0][:-1], answer.set_result)
        assert (await answer).offsets == [placed.offset]
        assert cluster.values(topic.name) == [b"again"]


async def test_the_same_key_of_two_tenants_is_two_keys(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        first = cluster.nodes[1]
        topic = await cluster.topic_of_keys(first, (2, 3, 1))
        disturbed = cluster.disturb(first)
        real, held = disturbed._real.append_once, list[Any]()
        disturbed._real.append_once = lambda *args: held.append(args)
        slow = asyncio.ensure_future(cluster.send_once(first, topic, "k", b"a", tenant="a"))
        await until(lambda: held, "it is on its way")
        # The other's record lies where the first one's is looked for.
        disturbed._real.append_once = real
        fast, _ = await cluster.send_once(first, topic, "k", b"b", tenant="b")
        real(*held[0])
        placed, duplicate = await slow
        assert (fast.offset, placed.offset, duplicate) == (0, 1, False)
        assert cluster.values(topic.name) == [b"b", b"a"]


async def test_keys_of_a_partition_of_which_the_node_has_no_copy(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.topic_of_keys(cluster.nodes[1], (2,), min_insync_replicas="1")
        await cluster.produce(topic.name, b"before")
        asked: list[str] = []

        def note(call: str, _done: Any) -> bool:
            asked.append(call)
            return True

        cluster.disturb(cluster.nodes[1]).before = note
        placed, _ = await cluster.send(topic, "k")
        assert placed.offset == 1
        assert await cluster.send(topic, "k") == (placed, True)
        await cluster.send(topic, "l")
        assert asked == ["standing", "append_once", "append_once"]


async def test_many_keys_of_one_turn_are_one_batch(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.topic_of_keys(cluster.nodes[1], (2, 3, 1))
        asked: list[str] = []

        def note(call: str, _done: Any) -> bool:
            asked.append(call)
            return True

        cluster.disturb(cluster.nodes[1]).before = note
        sends = [cluster.send_once(cluster.nodes[1], topic, f"k{n}", b"%d" % n) for n in range(20)]
        found = await asyncio.gather(*sends)
        assert [placed.offset for placed, _ in found] == list(range(20))
        assert asked == ["append_once"]


async def test_a_key_whose_window_was_over_is_not_taken_for_its_older_record(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        first = cluster.nodes[1]
        topic = await cluster.topic_of_keys(first, (2, 3, 1))
        held: list[Any] = []

        def hold(call: str, done: Any) -> bool:
            if call == "append_once":
                held.append(done)
            return call != "append_once"

        cluster.disturb(first).before = hold
        # Left in doubt, from the beginning of the log on.
        in_doubt = asyncio.ensure_future(cluster.send_once(first, topic, "doubt", b"doubt"))
        await until(lambda: held, "it is about to be sent")
        held[0](PenstockError(Reason.LINK_LOST))
        with pytest.raises(PenstockError):
            await in_doubt
        cluster.disturb(first).before = lambda _call, _done: True
        await cluster.send_once(first, topic, "k", b"old")
        keys = first.broker.idempotency
        (key, note), *_ = [(key, note) for key, note in keys._keys.items() if note.is_placed]
        keys._keys.put(key, note._replace(noted_ms=note.noted_ms - 2 * keys.window_ms))
        both = await asyncio.gather(
            cluster.send_once(first, topic, "doubt", b"doubt"), cluster.send_once(first, topic, "k", b"new")
        )
        assert [placed.offset for placed, _ in both] in ([1, 2], [2, 1])
        assert sorted(cluster.values(topic.name)) == [b"doubt", b"new", b"old"]
