"""How a topic and a group stand, with bounded work."""

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core import stats
from penstock.core.groups.subscription import assigned_partitions
from penstock.core.stats import group_status, topic_stats
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import GroupState
from penstock.types import Gateway, GroupId, TopicName
from tests.support.kafka_node import KafkaNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        yield started


async def test_a_topics_sums_are_over_its_partitions(node: KafkaNode) -> None:
    await node.create("t", 3, retention_ms="5000")
    partition = await node.append("t", 0, 4)
    await node.append("t", 1, 2)
    partition.log.delete_before(1)
    found = topic_stats(node.broker, "t")
    assert [(p.start_offset, p.end_offset, p.records) for p in found.partitions] == [(1, 4, 3), (0, 2, 2), (0, 0, 0)]
    assert found.records == 5
    assert found.size_bytes == sum(log.size_bytes for log in node.broker.open_logs() if log.next_offset in (4, 2))
    assert node.broker.topics.require(found.topic).config.retention_ms == 5000
    assert found.partitions_unknown == 0
    assert {p.leader for p in found.partitions} == {7}


async def test_a_partition_without_records_is_not_opened_for_an_answer(node: KafkaNode) -> None:
    await node.create("t", 5000)
    before = len(list(node.broker.open_logs()))
    assert topic_stats(node.broker, "t").records == 0
    assert len(list(node.broker.open_logs())) == before


async def test_only_so_many_logs_are_opened_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("t", 5)
        for index in range(5):
            await node.append("t", index, 1)
            await node.commit("g", "t", index, 0)
    monkeypatch.setattr(stats, "OPENED_MAX", 2)
    async with KafkaNode(tmp_path) as node:
        found = topic_stats(node.broker, "t")
        assert [p.records for p in found.partitions] == [1, 1, None, None, None]
        assert (found.records, found.partitions_unknown) == (2, 3)
        lags = [(p.lag, p.lag_ms is None) for p in group_status(node.broker, "g").partitions]
        assert lags == [(1, False)] * 4 + [(None, True)]


async def test_rates_and_flows_are_told_by_gateway(node: KafkaNode) -> None:
    await node.create("t")
    meters = node.broker.meters
    meters.tick(node.clock.monotonic_ms())
    meters.took_in("t", Gateway.TCP, 20, 400)
    node.clock.advance(2000)
    found = topic_stats(node.broker, "t")
    assert (found.records_in_per_second, found.bytes_in_per_second) == (10, 200)
    assert [(flow.gateway, flow.records_in, flow.bytes_out) for flow in found.flows] == [("tcp", 20, 0)]


async def test_an_unknown_topic_and_an_unknown_group_are_refused(node: KafkaNode) -> None:
    with pytest.raises(PenstockError) as refused:
        topic_stats(node.broker, "nothing")
    assert refused.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(PenstockError) as refused:
        group_status(node.broker, "nobody")
    assert refused.value.reason is Reason.GROUP_ID_NOT_FOUND


async def test_a_groups_lag_is_in_records_and_in_age_of_the_next_one(node: KafkaNode) -> None:
    await node.create("t", 2)
    await node.append("t", 0, 3)
    node.clock.advance(60_000)
    await node.append("t", 0, 1)
    await node.commit("g", "t", 0, 3)
    await node.commit("g", "t", 1, 0)
    node.clock.advance(1000)
    found = group_status(node.broker, "g")
    first, second = found.partitions
    assert (first.committed, first.end_offset, first.lag, first.lag_ms) == (3, 4, 1, 1000)
    assert (second.committed, second.lag, second.lag_ms) == (0, 0, 0)
    assert (found.lag, found.lag_ms) == (1, 1000)
    assert found.state == GroupState.EMPTY.value
    assert found.members == ()


async def test_a_group_that_has_read_all_has_no_lag(node: KafkaNode) -> None:
    await node.create("t")
    await node.append("t", 0, 2)
    await node.commit("g", "t", 0, 2)
    node.clock.advance(5000)
    [found] = group_status(node.broker, "g").partitions
    assert (found.committed, found.end_offset, found.lag, found.lag_ms) == (2, 2, 0, 0)


async def test_what_retention_dropped_does_not_count_as_lag(node: KafkaNode) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 5)
    await node.commit("g", "t", 0, 1)
    partition.log.delete_before(4)
    [found] = group_status(node.broker, "g").partitions
    assert (found.committed, found.start_offset, found.lag) == (1, 4, 1)


async def test_members_are_told_with_what_they_read(node: KafkaNode) -> None:
    await node.create("t", 2)
    await node.append("t", 0, 3)
    node.broker.groups.shared.join(GroupId("g"), TopicName("t"), "worker", session_timeout_ms=None, client="here")
    found = group_status(node.broker, "g")
    [member] = found.members
    assert member.assignment == (("t", (0, 1)),)
    assert [(p.partition, p.member_id, p.committed, p.lag) for p in found.partitions] == [
        (0, member.member_id, None, 3),
        (1, member.member_id, None, 0),
    ]


def _assignment(*topics: tuple[bytes, tuple[int, ...]]) -> bytes:
    encoded = struct.pack(">hi", 1, len(topics))
    for name, partitions in topics:
        encoded += struct.pack(f">h{len(name)}si{len(partitions)}i", len(name), name, len(partitions), *partitions)
    return encoded + struct.pack(">i", -1)


def test_an_assignment_is_read_by_topic() -> None:
    assert assigned_partitions(_assignment((b"a", (0, 2)), (b"b", ()))) == (("a", (0, 2)), ("b", ()))


@pytest.mark.parametrize("cut", range(len(_assignment((b"topic", (1, 2, 3)))) - 4))
def test_an_assignment_cut_short_is_none(cut: int) -> None:
    assert assigned_partitions(_assignment((b"topic", (1, 2, 3)))[:cut]) == ()


@pytest.mark.parametrize(
    "other", [b"", b"\0\1\x7f\xff\xff\xff", struct.pack(">hih", 1, 1, -1), struct.pack(">hih1si", 1, 1, 1, b"\xff", 0)]
)
def test_bytes_that_are_something_else_assign_nothing(other: bytes) -> None:
    assert assigned_partitions(other) == ()
