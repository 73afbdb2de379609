from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Entry
from penstock.wire.kafka.alter_partition_reassignments_generated import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
)
from penstock.wire.kafka.apis import ApiKey
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.ALTER_PARTITION_REASSIGNMENTS


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path / "cluster") as started:
        yield started


def moved(*replicas: Sequence[int] | None, **fields: bool) -> AlterPartitionReassignmentsRequest:
    partitions = [
        AlterPartitionReassignmentsRequestPartition(index, None if nodes is None else list(nodes))
        for index, nodes in enumerate(replicas)
    ]
    topics = [AlterPartitionReassignmentsRequestTopic("t", partitions)]
    return AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=topics, **fields)


def reasons(answer: AlterPartitionReassignmentsResponse) -> list[Reason | None]:
    [topic] = answer.responses
    return [reason_of(each.error_code) for each in topic.partitions]


@pytest.mark.parametrize("version", versions(KEY))
async def test_each_partition_is_moved_or_refused_by_itself(cluster: ClusterNode, version: int) -> None:
    topic = await cluster.place("t", (NODE, OTHER), (NODE, OTHER), (NODE, OTHER))
    answer = await cluster.ask(KEY, moved((THIRD, NODE), (NODE, 5), None, (NODE,)), version)
    assert answer.error_code == 0
    assert reasons(answer) == [
        None,
        Reason.INVALID_REPLICA_ASSIGNMENT,
        Reason.NO_REASSIGNMENT_IN_PROGRESS,
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    record = cluster.broker.topics.partition(topic, 0)
    assert (record.replicas, record.adding, record.removing) == ((THIRD, NODE, OTHER), (THIRD,), (OTHER,))


async def test_a_move_under_way_is_taken_back_without_a_list(cluster: ClusterNode) -> None:
    topic = await cluster.place("t", (NODE, OTHER))
    await cluster.ask(KEY, moved((THIRD, NODE)), 1)
    assert reasons(await cluster.ask(KEY, moved(None), 1)) == [None]
    record = cluster.broker.topics.partition(topic, 0)
    assert (set(record.replicas), record.adding) == ({NODE, OTHER}, ())


async def test_a_client_may_forbid_another_replication_factor(cluster: ClusterNode) -> None:
    await cluster.place("t", (NODE, OTHER))
    refused = await cluster.ask(KEY, moved((NODE, OTHER, THIRD), allow_replication_factor_change=False), 1)
    assert reasons(refused) == [Reason.INVALID_REPLICATION_FACTOR]
    assert reasons(await cluster.ask(KEY, moved((NODE, OTHER, THIRD)), 1)) == [None]


async def test_a_wish_that_takes_longer_than_the_client_waits_has_timed_out(
    cluster: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.place("t", (NODE, OTHER))

    async def away(_: MemoryStore, key: str) -> Entry | None:
        raise PenstockError(Reason.METADATA_UNAVAILABLE, f"no etcd to read {key}")

    monkeypatch.setattr(MemoryStore, "get", away)
    [topic] = (await cluster.ask(KEY, moved((THIRD, NODE)), 1)).responses
    [partition] = topic.partitions
    assert reason_of(partition.error_code) is Reason.REQUEST_TIMED_OUT
    assert "no etcd" in partition.error_message


@pytest.mark.parametrize("version", versions(KEY))
async def test_of_a_broker_that_is_alone_everything_stays_where_it_is(node: KafkaNode, version: int) -> None:
    await node.create("t", 3)
    answer = await node.ask(KEY, moved((NODE,), (NODE, OTHER), None, (NODE,)), version)
    assert reasons(answer) == [
        None,
        Reason.INVALID_REPLICA_ASSIGNMENT,
        Reason.NO_REASSIGNMENT_IN_PROGRESS,
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
    ]
