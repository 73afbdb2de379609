"""Requests that ask for more than anybody needs: answered or refused one by one, and nobody else waits for them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.errors import Reason
from penstock.gateways.kafka.connection import LARGE_REQUEST_BYTES
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.gateway import LARGE_REQUESTS_MAX
from penstock.gateways.kafka.handlers import k08_offset_commit, k10_find_coordinator, k32_describe_configs
from penstock.limits import DESCRIBED_RESOURCES_MAX, FIND_COORDINATOR_KEYS_MAX
from penstock.types import GroupId
from penstock.wire.kafka.alter_partition_reassignments_generated import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
)
from penstock.wire.kafka.alter_replica_log_dirs_generated import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestDir,
    AlterReplicaLogDirsRequestTopic,
)
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_configs_generated import DescribeConfigsRequest, DescribeConfigsRequestResource
from penstock.wire.kafka.describe_groups_generated import DescribeGroupsRequest
from penstock.wire.kafka.elect_leaders_generated import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from penstock.wire.kafka.join_group_generated import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.kafka.list_partition_reassignments_generated import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.kafka.offset_fetch_generated import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
)
from tests.support.kafka_cluster import OTHER, THIRD, WireClusterNode
from tests.support.kafka_node import NODE, KafkaNode, reason_of
from tests.support.kafka_wire import encode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[WireClusterNode]:
    async with WireClusterNode(tmp_path) as started:
        await started.place("t", (NODE, OTHER, THIRD))
        yield started


def topic_of(key: ApiKey, count: int) -> tuple[Any, int]:
    """A request for so many things, and its version."""
    names = [f"g{number}" for number in range(count)]
    numbers = list(range(count))
    match key:
        case ApiKey.FIND_COORDINATOR:
            return FindCoordinatorRequest(key_type=0, coordinator_keys=names), 4
        case ApiKey.DESCRIBE_GROUPS:
            return DescribeGroupsRequest(groups=names), 6
        case ApiKey.OFFSET_FETCH:
            return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]), 9
        case ApiKey.DESCRIBE_CONFIGS:
            return DescribeConfigsRequest([DescribeConfigsRequestResource(2, name, None) for name in names]), 4
        case ApiKey.ALTER_REPLICA_LOG_DIRS:
            moved = [AlterReplicaLogDirsRequestTopic("t", numbers)]
            return AlterReplicaLogDirsRequest([AlterReplicaLogDirsRequestDir("/elsewhere", moved)]), 2
        case ApiKey.LIST_PARTITION_REASSIGNMENTS:
            topics = [ListPartitionReassignmentsRequestTopic("t", numbers)]
            return ListPartitionReassignmentsRequest(1000, topics), 0
        case ApiKey.ELECT_LEADERS:
            return ElectLeadersRequest(0, [ElectLeadersRequestTopicPartitions("t", numbers)], 60_000), 2
        case _:
            wishes = [AlterPartitionReassignmentsRequestPartition(number, [NODE]) for number in numbers]
            topic = AlterPartitionReassignmentsRequestTopic("t", wishes)
            return AlterPartitionReassignmentsRequest(timeout_ms=60_000, topics=[topic]), 0


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ],
    ids=lambda key: key.name,
)
async def test_others_are_served_while_much_is_asked_for(
    node: WireClusterNode, monkeypatch: pytest.MonkeyPatch, key: ApiKey
) -> None:
    # Every look at the time finds that it was long.
    monkeypatch.setattr("penstock.gateways.kafka.portions.TURN_SECONDS", 0.0)
    turns = 0
    done = False

    async def others() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    await asyncio.sleep(0)
    turns = 0
    await node.ask(key, *topic_of(key, 2000))
    done = True
    await counting
    assert turns >= 2000 // 128


async def test_too_many_keys_are_refused_with_a_text(node: WireClusterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIND_COORDINATOR_KEYS_MAX == 10_000
    monkeypatch.setattr(k10_find_coordinator, "FIND_COORDINATOR_KEYS_MAX", 100)
    answer = await node.ask(ApiKey.FIND_COORDINATOR, *topic_of(ApiKey.FIND_COORDINATOR, 102))
    assert [each.key for each in answer.coordinators] == [f"g{number}" for number in range(102)]
    reasons = [reason_of(each.error_code) for each in answer.coordinators]
    assert reasons[99] is not Reason.INVALID_REQUEST
    assert reasons[100:] == [Reason.INVALID_REQUEST] * 2
    assert answer.coordinators[-1].error_message == (
        "102 keys are too many for one request; request at most 100 at a time."
    )


async def test_too_many_resources_are_refused_with_a_text(
    node: WireClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DESCRIBED_RESOURCES_MAX == 10_000
    monkeypatch.setattr(k32_describe_configs, "DESCRIBED_RESOURCES_MAX", 100)
    answer = await node.ask(ApiKey.DESCRIBE_CONFIGS, *topic_of(ApiKey.DESCRIBE_CONFIGS, 101))
    assert len(answer.results) == 101
    assert reason_of(answer.results[-1].error_code) is Reason.INVALID_REQUEST
    assert "at most 100 at a time" in answer.results[-1].error_message


async def test_a_group_is_told_once_however_often_it_is_named(node: WireClusterNode) -> None:
    described = await node.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"] * 1000), 6)
    assert [each.group_id for each in described.groups] == ["g"]
    asked = [OffsetFetchRequestGroup(group_id="g", topics=None)] * 1000
    fetched = await node.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=asked), 9)
    assert [each.group_id for each in fetched.groups] == ["g"]


async def test_a_large_request_is_read_and_answered_beside_the_event_loop(
    node: WireClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, version = topic_of(ApiKey.DESCRIBE_GROUPS, LARGE_REQUEST_BYTES // 4)
    client = await node.connect()
    small, _ = topic_of(ApiKey.DESCRIBE_GROUPS, 2)
    await client.ask(ApiKey.DESCRIBE_GROUPS, small, version)
    served = node.gateway.served[ApiKey.DESCRIBE_GROUPS]
    threads: list[threading.Thread] = []

    def noted(work: Any) -> Any:
        def run(*given: Any) -> Any:
            threads.append(threading.current_thread())
            return work(*given)

        return run

    monkeypatch.setitem(served.api.decode_request_table, version, noted(served.api.decode_request_table[version]))
    monkeypatch.setitem(served.api.encode_response_table, version, noted(served.api.encode_response_table[version]))
    # The second is behind the first, and is answered behind it.
    sent = [client.send(ApiKey.DESCRIBE_GROUPS, each, version) for each in (request, small)]
    answers = [await client.answer(ApiKey.DESCRIBE_GROUPS, version) for _ in sent]
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert [len(answer.groups) for _, answer in answers] == [len(request.groups), 2]
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [False, False, True, True]


async def test_a_large_request_that_cannot_be_read_ends_the_connection_and_nothing_else(
    node: WireClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    client = await node.connect()
    request, version = topic_of(ApiKey.DESCRIBE_GROUPS, LARGE_REQUEST_BYTES // 4)
    await client.ask(ApiKey.DESCRIBE_GROUPS, topic_of(ApiKey.DESCRIBE_GROUPS, 1)[0], version)
    whole = encode(ApiKey.DESCRIBE_GROUPS, request, version)
    # Its last bytes are cut off, and its length says so.
    client.writer.write((len(whole) - 14).to_bytes(4, "big") + whole[4:-10])
    assert await client.closed_by_peer()
    assert "closing" in caplog.text
    assert "Traceback" not in caplog.text
    other = await node.connect()
    assert len((await other.ask(ApiKey.DESCRIBE_GROUPS, request, version)).groups) == len(request.groups)


async def test_only_so_many_large_requests_are_under_way_whatever_connections_they_come_by(
    node: WireClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"g{number}" + "g" * (LARGE_REQUEST_BYTES // 8) for number in range(9)]
    request, version = DescribeGroupsRequest(groups=names), 6
    served = node.gateway.served[ApiKey.DESCRIBE_GROUPS]
    under_way = most = 0

    def noted(work: Any, change: int) -> Any:
        # All of it in the one thread.
        def run(*given: Any) -> Any:
            nonlocal under_way, most
            under_way += change
            most = max(most, under_way)
            return work(*given)

        return run

    monkeypatch.setitem(served.api.decode_request_table, version, noted(served.api.decode_request_table[version], 1))
    monkeypatch.setitem(served.api.encode_response_table, version, noted(served.api.encode_response_table[version], -1))
    clients = [await node.connect() for _ in range(2 * LARGE_REQUESTS_MAX)]
    for client in clients:
        client.send(ApiKey.DESCRIBE_GROUPS, request, version)
    for client in clients:
        _, answer = await client.answer(ApiKey.DESCRIBE_GROUPS, version)
        assert len(answer.groups) == len(names)
    assert 1 <= most <= LARGE_REQUESTS_MAX


async def test_large_requests_that_wait_for_each_other_are_all_under_way(
    node: WireClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[asyncio.Future[JoinGroupResponse]] = []

    def join(_request: JoinGroupRequest, _context: RequestContext) -> asyncio.Future[JoinGroupResponse]:
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == LARGE_REQUESTS_MAX + 1:
            for each in waiting:
                each.set_result(JoinGroupResponse())
        return waiting[-1]

    monkeypatch.setattr(node.gateway.served[ApiKey.JOIN_GROUP], "handle", join)
    protocol = JoinGroupRequestProtocol("range", bytes(2 * LARGE_REQUEST_BYTES))
    request = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [protocol])
    clients = [await node.connect() for _ in range(LARGE_REQUESTS_MAX + 1)]
    for client in clients:
        client.send(ApiKey.JOIN_GROUP, request, 5)
    for client in clients:
        await asyncio.wait_for(client.answer(ApiKey.JOIN_GROUP, 5), 10)


async def test_very_many_partitions_of_one_group_are_looked_at_in_pieces(node: WireClusterNode) -> None:
    topics = [
        OffsetFetchRequestGroupTopic(name="t", partition_indexes=list(range(2500))),
        OffsetFetchRequestGroupTopic(name="u", partition_indexes=[7]),
    ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    [refused] = (await node.ask(ApiKey.OFFSET_FETCH, request, 9)).groups
    # Nobody speaks for it here.
    assert (bool(refused.error_code), refused.topics) == (True, [])


async def test_very_many_partitions_are_all_answered(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as alone:
        await alone.create("t")
        await alone.append("t", 0, 3)
        await alone.commit("g", "t", 0, 2)
        topics = [
            OffsetFetchRequestGroupTopic(name="t", partition_indexes=list(range(2500))),
            OffsetFetchRequestGroupTopic(name="u", partition_indexes=[7]),
        ]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
        [answer] = (await alone.ask(ApiKey.OFFSET_FETCH, request, 9)).groups
        found = [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
        assert found == [*(("t", index) for index in range(2500)), ("u", 7)]
        assert [each.committed_offset for each in answer.topics[0].partitions[:2]] == [2, -1]


async def test_very_many_offsets_are_committed_in_pieces_and_each_has_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k08_offset_commit, "PARTITIONS_A_PIECE", 3)
    async with KafkaNode(tmp_path) as alone:
        await alone.create("t", 5)
        await alone.create("u", 2)
        counts = [("t", 4), ("u", 2), ("nowhere", 1), ("t", 5)]
        topics = [
            OffsetCommitRequestTopic(
                name=name, partitions=[OffsetCommitRequestPartition(index, 10 * at + index) for index in range(count)]
            )
            for at, (name, count) in enumerate(counts)
        ]
        request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
        answer = await alone.ask(ApiKey.OFFSET_COMMIT, request, 8)
        told = [
            (topic.name, each.partition_index, each.error_code) for topic in answer.topics for each in topic.partitions
        ]
        assert [each[:2] for each in told] == [(name, index) for name, count in counts for index in range(count)]
        assert {name for name, _, code in told if code} == {"nowhere"}
        stands = alone.broker.groups.fetch_offsets(GroupId("g"), None)
        assert {(key.topic, key.partition): each.offset for key, each in stands.items()} == {
            **{("t", index): 30 + index for index in range(5)},
            **{("u", index): 10 + index for index in range(2)},
        }
