"""Sinks whose nodes come and go: three whole nodes on real sockets, one store in memory."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.topics.names import SINKS_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.operations.sinks import CommitSink, OpenedSink
from tests.support.cluster_nodes import until
from tests.support.coordinator_cluster import CoordinatorCluster
from tests.support.queue_cluster import CALLER

SINK = "s"
Staged = tuple[int, int, int]


def world(path: Path) -> CoordinatorCluster:
    return CoordinatorCluster(path, 1, 2, 3, internal_partitions=1)


async def opened(cluster: CoordinatorCluster, *leaders: int) -> OpenedSink:
    """A sink, and topic t with a partition led by each of these nodes."""
    await cluster.ready()
    nodes = [1, 2, 3]
    await cluster.create("t", *[(leader, *(node for node in nodes if node != leader)) for leader in leaders])
    return await cluster.open_sink(SINK)


async def staged(
    cluster: CoordinatorCluster, sink: OpenedSink, first: int, batches: int
) -> tuple[list[Staged], list[bytes]]:
    """Batches of two records, and the records."""
    ranges, values = list[Staged](), list[bytes]()
    for n in range(batches):
        both = [b"%d-%d" % (first + n, at) for at in range(2)]
        ranges.append(await cluster.stage(sink, *both))
        values += both
    return ranges, values


async def test_a_batch_is_committed_to_targets_that_other_nodes_lead(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        sink = await opened(cluster, 1, 2, 3)
        parts, wanted = [], []
        for partition in range(3):
            ranges, values = await staged(cluster, sink, 10 * partition, 8)
            parts.append(("t", partition, ranges))
            wanted.append(values)
        committed = await cluster.commit_sink(SINK, 1, *parts)
        assert (committed.already, committed.records) == (False, 48)
        assert [cluster.values("t", partition) for partition in range(3)] == wanted
        assert (await cluster.commit_sink(SINK, 1, *parts)).already is True
        assert [cluster.values("t", partition) for partition in range(3)] == wanted


async def test_what_is_staged_is_led_by_whoever_speaks_for_sinks(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        sink = await opened(cluster, 1)
        first = cluster.sinks_node
        assert cluster.record(sink.staging_topic).leader == first.broker.node_id
        assert set(cluster.record(sink.staging_topic).replicas) == set(cluster.record(SINKS_TOPIC).replicas)
        await cluster.leave(first)
        await until(lambda: cluster.record(SINKS_TOPIC).leader not in (-1, first.broker.node_id), "sinks have moved")
        await until(lambda: cluster.record(sink.staging_topic).leader == cluster.record(SINKS_TOPIC).leader, "followed")


async def test_another_node_says_that_it_does_not_speak_for_sinks(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await opened(cluster, 1)
        other = cluster.others(cluster.sinks_node)[0].broker.sinks
        asked: list[Callable[[], Any]] = [
            other.names,
            lambda: other.status(SINK),
            lambda: other.open(SINK, lambda _: None),
            lambda: other.commit(CALLER, CommitSink(SINK, 1, []), lambda _: None),
            lambda: other.abort(SINK, 1, lambda _: None),
            lambda: other.delete(SINK, lambda _: None),
        ]
        for ask in asked:
            with pytest.raises(PenstockError) as refused:
                ask()
            assert refused.value.reason is Reason.NOT_COORDINATOR


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("sent", [1, 2, 7])
async def test_the_next_node_goes_on_with_a_commit_and_doubles_nothing(
    tmp_path: Path, is_killed: bool, sent: int
) -> None:
    async with world(tmp_path) as cluster:
        sink = await opened(cluster, 1, 2, 3)
        first = cluster.sinks_node
        target = next(n for n in range(3) if cluster.record("t", n).leader != first.broker.node_id)
        ranges, values = await staged(cluster, sink, 0, 10)
        left = [sent]
        held: list[Any] = []

        def stop(call: str, done: Any) -> bool:
            if call == "produce":
                left[0] -= 1
                if left[0] < 0:
                    held.append(done)
            return left[0] >= 0

        cluster.disturb(first).before = stop
        told = cluster.begin_commit(first, SINK, 7, ("t", target, ranges))
        await until(lambda: held, "it is in the middle")
        await (cluster.kill(first) if is_killed else cluster.leave(first))
        answer = await told
        assert isinstance(answer, PenstockError)
        assert answer.reason in (Reason.NOT_COORDINATOR, Reason.SHUTTING_DOWN)
        await cluster.commit_sink(SINK, 7, ("t", target, ranges))
        assert cluster.values("t", target) == values
        # And the sink goes on.
        more, later = await staged(cluster, sink, 100, 1)
        assert (await cluster.commit_sink(SINK, 8, ("t", target, more))).already is False
        assert cluster.values("t", target) == [*values, *later]


@pytest.mark.parametrize("at", [0, 1, 4])
async def test_a_batch_whose_answer_was_lost_is_there_once(tmp_path: Path, at: int) -> None:
    async with world(tmp_path) as cluster:
        sink = await opened(cluster, 1, 2, 3)
        first = cluster.sinks_node
        target = next(n for n in range(3) if cluster.record("t", n).leader != first.broker.node_id)
        ranges, values = await staged(cluster, sink, 0, 8)
        answers = [0]

        def lose(call: str, answer: Any, done: Callable[[Any], None]) -> None:
            if call == "produce":
                answers[0] += 1
                if answers[0] == at + 1:
                    answer = PenstockError(Reason.LINK_LOST)
            done(answer)

        cluster.disturb(first).after = lose
        committed = await cluster.commit_sink(SINK, 1, ("t", target, ranges))
        assert committed.records == 16
        assert cluster.values("t", target) == values


@pytest.mark.parametrize("at", [0, 1, 4])
async def test_nothing_is_left_out_when_a_batch_is_lost_on_its_way(tmp_path: Path, at: int) -> None:
    async with world(tmp_path) as cluster:
        sink = await opened(cluster, 1, 2, 3)
        first = cluster.sinks_node
        target = next(n for n in range(3) if cluster.record("t", n).leader != first.broker.node_id)
        ranges, values = await staged(cluster, sink, 0, 8)
        calls = [0]

        def lose(call: str, done: Any) -> bool:
            if call != "produce":
                return True
            calls[0] += 1
            if calls[0] == at + 1:
                # It is told later than those behind it are sent.
                asyncio.get_running_loop().call_soon(done, PenstockError(Reason.LINK_LOST))
                return False
            return True

        cluster.disturb(first).before = lose
        await cluster.commit_sink(SINK, 1, ("t", target, ranges))
        assert cluster.values("t", target) == values


async def test_a_sink_is_remembered_by_the_next_node(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        sink = await opened(cluster, 2)
        ranges, values = await staged(cluster, sink, 0, 1)
        await cluster.commit_sink(SINK, 5, ("t", 0, ranges))
        await cluster.kill(cluster.sinks_node)
        assert (await cluster.open_sink(SINK)).last_batch_id == 5
        assert (await cluster.commit_sink(SINK, 5, ("t", 0, ranges))).already is True
        assert cluster.values("t") == values


async def test_a_sink_is_opened_though_a_node_is_down(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        down = cluster.others(cluster.sinks_node)[0]
        await cluster.create("t", tuple(each.broker.node_id for each in cluster.others(down)))
        await cluster.leave(down)
        sink = await cluster.open_sink(SINK)
        ranges, values = await staged(cluster, sink, 0, 2)
        assert (await cluster.commit_sink(SINK, 1, ("t", 0, ranges))).records == 4
        assert cluster.values("t") == values
        await cluster.start(down.broker.node_id)
        replicas = set(cluster.record(SINKS_TOPIC).replicas)
        await until(lambda: set(cluster.record(sink.staging_topic).replicas) == replicas, "it has all its replicas")
