"""Questions of followers: two wait for news, each is answered in its turn, and a long one is read to its end before the next."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.links import Identity, Link
from penstock.core.cluster.follower import Follower
from penstock.gateways.peers.fetch import FETCH_VERSION
from penstock.limits import FETCH_WAIT_MS_MAX
from penstock.log.log import Log
from penstock.transport.peer_tls import PLAIN
from penstock.types import NO_OFFSET, NodeId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import FetchRequest, FetchRequestPartition, FetchRequestTopic
from tests.support.cluster_nodes import Cluster, until

STRANGE = bytes(range(16))
"""No topic's."""


def question(number: int, *partitions: int, wait_ms: int = FETCH_WAIT_MS_MAX) -> FetchRequest:
    """The so-many-th of a connection."""
    asked = [FetchRequestPartition(partition=each, fetch_offset=0, high_watermark=NO_OFFSET) for each in partitions]
    topics = [FetchRequestTopic(topic_id=STRANGE, partitions=asked)] if asked else []
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1000, session_id=min(number, 1), session_epoch=number, topics=topics
    )


class Asking:
    """A second connection from node 2 to node 1."""

    def __init__(self, cluster: Cluster) -> None:
        self._caller = cluster.nodes[2]
        self.link = Link(NodeId(1), self._caller.cluster.nodes, self._caller.broker.entropy)

    async def __aenter__(self) -> "Asking":
        await self.link.connect(Identity(NodeId(2), self._caller.epoch, self._caller.cluster.secret, PLAIN))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.aclose()

    def ask(self, request: FetchRequest) -> "asyncio.Future[Any]":
        return self.link.post(ApiKey.FETCH, FETCH_VERSION, request)


def two(path: Path) -> Cluster:
    return Cluster(path, 1, 2, replication_factor=2, min_in_sync=1)


async def test_two_questions_wait_and_a_third_ends_the_first_ones_wait(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, Asking(cluster) as asking:
        first, second = asking.ask(question(0)), asking.ask(question(1))
        third = asking.ask(question(2))
        assert (await first).responses == []
        assert not second.done()
        assert not third.done()
        fourth = asking.ask(question(3))
        await second
        assert not third.done()
        assert not fourth.done()


async def test_news_answers_the_question_that_waited_longest_and_only_that_one(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, Asking(cluster) as asking:
        assert (await asking.ask(question(0, 7))).responses
        first = asking.ask(question(1))
        second = asking.ask(question(2, 7))
        (topic,) = (await first).responses
        assert [each.partition_index for each in topic.partitions] == [7]
        assert topic.partitions[0].error_code
        assert not second.done()


async def test_what_a_question_is_the_first_to_name_answers_no_earlier_one(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, Asking(cluster) as asking:
        first, second = asking.ask(question(0)), asking.ask(question(1, 7))
        assert (await first).responses == [], "the follower could not tell whether it is of the copy that it has by now"
        (topic,) = (await second).responses
        assert [each.partition_index for each in topic.partitions] == [7]


async def test_a_question_without_news_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, Asking(cluster) as asking:
        assert (await asking.ask(question(0, wait_ms=1))).responses == []
        assert (await asking.ask(question(1, wait_ms=0))).responses == []


async def test_a_question_of_many_partitions_is_read_to_its_end_before_the_next(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster, Asking(cluster) as asking:
        first, second = asking.ask(question(0, *range(3000))), asking.ask(question(1, 5000))
        (topic,) = (await first).responses
        assert {each.partition_index for each in topic.partitions} >= set(range(3000))
        found = {each.partition_index for each in topic.partitions}
        if 5000 not in found:
            (topic,) = (await second).responses
            assert [each.partition_index for each in topic.partitions] == [5000]


async def test_a_follower_learns_what_is_committed_though_nothing_more_is_written(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        await cluster.create("t", (1, 2))
        await until(lambda: cluster.nodes[1].broker.opened("t", 0) is not None)
        await cluster.produce("t", b"x")
        follower = cluster.replica(2, "t")
        assert isinstance(follower, Follower)
        await until(lambda: follower.high_watermark == 1, "the follower knows that it is committed")


async def test_an_answer_that_cannot_be_made_keeps_no_partition_from_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as cluster:
        await cluster.create("t", (1, 2), (1, 2))
        for index in (0, 1):
            await cluster.produce("t", b"first", index)
        followers = [cluster.nodes[2].broker.replica("t", index) for index in (0, 1)]
        await until(lambda: all(each.log.next_offset == 1 for each in followers), "both are copied")
        link = cluster.nodes[2].node.fetching._fetchers[NodeId(1)]._link
        connections = link.connections
        failing, read = cluster.nodes[1].broker.partition("t", 1).log, Log.read
        left = 1

        def fails_once(log: Log, *asked: Any, **options: Any) -> Any:
            nonlocal left
            if log is failing and left:
                left = 0
                raise MemoryError("no room for the answer")
            return read(log, *asked, **options)

        monkeypatch.setattr(Log, "read", fails_once)
        await asyncio.gather(cluster.produce("t", b"second", 0), cluster.produce("t", b"second", 1))
        await until(lambda: all(each.log.next_offset == 2 for each in followers), "both are copied again")
        assert not left
        assert link.connections == connections + 1, "it began anew, and nothing was taken for told"
