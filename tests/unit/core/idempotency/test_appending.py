"""Records with keys on their way to the leaders of their partitions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.core.idempotency.appending import Appended, OnceAppends
from penstock.core.idempotency.attempts import Attempt
from penstock.core.idempotency.stored import KEY_HEADER, Key, with_key
from penstock.core.partitions.peers import AppendedRecords
from penstock.core.publish import NewRecord
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.records.records import read_records
from tests.support.cluster_nodes import until
from tests.support.kafka_cluster import OTHER, ClusterNode


class Leader:
    """Notes what it is asked for; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[bytes], Sequence[int]]] = []
        self.answers: list[Any] = []

    def append_once(
        self, _topic: Topic, _index: int, batch: bytearray, header: str, search_from: Any, done: Any
    ) -> None:
        assert header == KEY_HEADER
        values = [record.value or b"" for record in read_records(memoryview(batch), 1_000_000)]
        self.asked.append((values, search_from))
        self.answers.append(done)


class World:
    def __init__(self, node: ClusterNode, topic: Topic) -> None:
        self.leader = Leader()
        node.broker.peers = self.leader  # type: ignore[assignment]
        self.appends = OnceAppends(node.broker, node.flusher)
        self.topic = topic
        self.told: list[Appended | PenstockError] = []

    def append(self, name: str, search_from: int, size: int = 1) -> Attempt:
        attempt = Attempt(Key(self.topic.topic_id, name.encode()), self.topic.name)
        headers = with_key((), b"", name.encode())
        record = NewRecord(None, name.encode() * size, headers, 0, 1_000)
        self.appends.append(attempt, self.topic, record, search_from, self.told.append)
        return attempt

    async def asked(self, count: int = 1) -> None:
        await until(lambda: len(self.leader.asked) >= count, "the leader is asked")


async def test_each_record_of_a_batch_is_looked_for_from_where_its_own_intent_was(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        world = World(node, await node.place("t", (OTHER,)))
        world.append("a", 100)
        world.append("b", 3)
        await world.asked()
        assert world.leader.asked == [([b"a", b"b"], [100, 3])]
        world.leader.answers[0](AppendedRecords([102, 7], 102))
        assert [told.offset for told in world.told if isinstance(told, Appended)] == [102, 7]


async def test_a_record_whose_key_is_looked_after_elsewhere_by_now_is_not_sent(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        world = World(node, await node.place("t", (OTHER,)))
        world.append("a", 0).over = True
        world.append("b", 0)
        await world.asked()
        assert world.leader.asked == [([b"b"], [0])]


async def test_what_does_not_fit_into_one_batch_goes_in_several(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        world = World(node, await node.place("t", (OTHER,), max_message_bytes="1000"))
        for name in "abc":
            world.append(name, 0, size=300)
        await world.asked(2)
        assert [len(values) for values, _ in world.leader.asked] == [2, 1]


async def test_a_refusal_is_told_to_all_whose_records_were_in_the_batch(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        world = World(node, await node.place("t", (OTHER,)))
        world.append("a", 0)
        world.append("b", 0)
        await world.asked()
        world.leader.answers[0](PenstockError(Reason.LINK_LOST))
        assert [told.reason for told in world.told if isinstance(told, PenstockError)] == [Reason.LINK_LOST] * 2


async def test_an_end_that_a_leader_told_is_known_from_then_on(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        topic = await node.place("t", (OTHER,))
        world = World(node, topic)
        world.append("a", 0)
        await world.asked()
        world.leader.answers[0](AppendedRecords([41], 41))
        reached: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        world.appends.ends.reached(topic, 0, reached.set_result)
        assert await reached == 42
