"""The handlers on one node of a cluster of three."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from penstock.core.broker import INTERNAL_CONFIGS
from penstock.core.security.access import Caller
from penstock.core.topics.names import GROUP_STATE_TOPICS
from penstock.core.topics.topics import NewTopic
from penstock.errors import Reason
from penstock.operations.topics import FindTopic
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_partitions_generated import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
)
from penstock.wire.kafka.create_topics_generated import (
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestTopic,
)
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from penstock.wire.kafka.describe_cluster_generated import DescribeClusterRequest
from penstock.wire.kafka.describe_configs_generated import DescribeConfigsRequest, DescribeConfigsRequestResource
from penstock.wire.kafka.describe_groups_generated import DescribeGroupsRequest
from penstock.wire.kafka.describe_log_dirs_generated import DescribeLogDirsRequest
from penstock.wire.kafka.describe_topic_partitions_generated import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
)
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from penstock.wire.kafka.list_groups_generated import ListGroupsRequest
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.offset_for_leader_epoch_generated import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, reason_of, versions
from tests.support.settling import after_settling

ALL = (NODE, OTHER, THIRD)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path) as started:
        yield started


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
async def test_every_node_that_is_up_is_told_with_its_rack(node: ClusterNode, version: int) -> None:
    answer = await node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), version)
    assert [(each.broker_id, each.port, each.rack) for each in answer.brokers] == [
        (NODE, 9007, "a"),
        (OTHER, 9008, "b"),
        (THIRD, 9009, "c"),
    ]
    await node.leave(THIRD)
    answer = await node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), version)
    assert [each.broker_id for each in answer.brokers] == [NODE, OTHER]


async def test_a_node_lists_itself_as_it_was_registered_while_it_is_not(node: ClusterNode) -> None:
    await node.leave(NODE)
    for others in ([OTHER, THIRD], [THIRD], []):
        described = await node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), 0)
        metadata = await node.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 12)
        assert [each.broker_id for each in described.brokers] == [NODE, *others]
        assert [each.node_id for each in metadata.brokers] == [NODE, *others]
        assert (metadata.brokers[0].port, metadata.brokers[0].rack) == (9007, "a")
        if others:
            await node.leave(others[0])


async def told_controllers(node: ClusterNode) -> set[int]:
    described = await node.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), 0)
    metadata = await node.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 12)
    return {described.controller_id, metadata.controller_id}


async def test_whoever_is_asked_does_a_controllers_work_for_clients(node: ClusterNode) -> None:
    """The one that is it may be dead already, and then its clients would wait for it."""
    assert node.cluster.nodes.controller is not None
    assert node.cluster.nodes.controller.node_id == OTHER
    assert await told_controllers(node) == {NODE}


async def test_a_node_that_is_about_to_stop_or_is_not_registered_names_another(node: ClusterNode) -> None:
    await node.join(NODE, shutting_down=True)
    assert await told_controllers(node) == {OTHER}
    await node.leave(NODE)
    assert await told_controllers(node) == {OTHER}
    await node.leave(OTHER)
    await node.leave(THIRD)
    assert await told_controllers(node) == {-1}


async def test_a_leader_whose_node_is_gone_is_told_as_no_leader(node: ClusterNode) -> None:
    await node.place("t", (OTHER, NODE, THIRD))
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    [topic] = (await node.ask(ApiKey.METADATA, request, 12)).topics
    assert [(each.error_code, each.leader_id, each.offline_replicas) for each in topic.partitions] == [(0, OTHER, [])]
    await node.leave(OTHER)
    [topic] = (await node.ask(ApiKey.METADATA, request, 12)).topics
    [partition] = topic.partitions
    assert reason_of(partition.error_code) is Reason.LEADER_NOT_AVAILABLE
    assert (partition.leader_id, partition.offline_replicas) == (-1, [OTHER])


async def test_eligible_leaders_and_replicas_that_are_down_are_described(node: ClusterNode) -> None:
    topic = await node.place("t", ALL)
    await node.leave(THIRD)
    await node.set_record(topic, 0, isr=((NODE, node.cluster.nodes.live()[NODE]),), elr=(OTHER,))
    request = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequestTopic("t")])
    [described] = (await node.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, 0)).topics
    [partition] = described.partitions
    assert (partition.leader_id, partition.isr_nodes) == (NODE, [NODE])
    assert (partition.eligible_leader_replicas, partition.offline_replicas) == ([OTHER], [THIRD])


# Making topics.


@pytest.mark.parametrize(("asked", "made"), [(-1, 3), (1, 1), (2, 2), (3, 3)])
async def test_a_topic_has_as_many_replicas_as_asked_for(node: ClusterNode, asked: int, made: int) -> None:
    request = CreateTopicsRequest(topics=[CreateTopicsRequestTopic("t", 2, asked)])
    [answer] = (await node.ask(ApiKey.CREATE_TOPICS, request, 7)).topics
    assert (answer.error_code, answer.replication_factor) == (0, made)
    records = node.broker.topics.partitions(node.broker.topics.require("t"))
    assert [len(record.replicas) for record in records] == [made, made]


async def test_more_replicas_than_nodes_are_refused_with_what_there_is(node: ClusterNode) -> None:
    request = CreateTopicsRequest(topics=[CreateTopicsRequestTopic("t", 1, 4)])
    [answer] = (await node.ask(ApiKey.CREATE_TOPICS, request, 7)).topics
    assert reason_of(answer.error_code) is Reason.INVALID_REPLICATION_FACTOR
    assert "3 nodes are up" in answer.error_message


async def test_replicas_go_where_the_client_says(node: ClusterNode) -> None:
    assigned = [CreateTopicsRequestAssignment(0, [THIRD, NODE]), CreateTopicsRequestAssignment(1, [NODE, OTHER])]
    request = CreateTopicsRequest(topics=[CreateTopicsRequestTopic("t", -1, -1, assigned)])
    [answer] = (await node.ask(ApiKey.CREATE_TOPICS, request, 7)).topics
    assert answer.error_code == 0
    records = node.broker.topics.partitions(node.broker.topics.require("t"))
    assert [record.replicas for record in records] == [(THIRD, NODE), (NODE, OTHER)]


@pytest.mark.parametrize("replicas", [[NODE, 4], [NODE, NODE], []])
async def test_an_assignment_that_cannot_be_is_refused(node: ClusterNode, replicas: list[int]) -> None:
    assigned = [CreateTopicsRequestAssignment(0, replicas)]
    request = CreateTopicsRequest(topics=[CreateTopicsRequestTopic("t", -1, -1, assigned)])
    [answer] = (await node.ask(ApiKey.CREATE_TOPICS, request, 7)).topics
    assert reason_of(answer.error_code) is Reason.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(("replicas", "reason"), [([THIRD, OTHER], None), ([THIRD], Reason.INVALID_REPLICA_ASSIGNMENT)])
async def test_new_partitions_have_as_many_replicas_as_the_old_ones(
    node: ClusterNode, replicas: list[int], reason: Reason | None
) -> None:
    await node.place("t", (NODE, OTHER))
    grown = CreatePartitionsRequestTopic("t", 2, [CreatePartitionsRequestAssignment(replicas)])
    [answer] = (await node.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=[grown]), 3)).results
    assert reason_of(answer.error_code) is reason
    assert node.broker.topics.require("t").partition_count == (2 if reason is None else 1)


# Asking a leader.


def _list_offsets(timestamp: int, leader_epoch: int = -1) -> ListOffsetsRequest:
    asked = ListOffsetsRequestPartition(0, leader_epoch, timestamp)
    return ListOffsetsRequest(topics=[ListOffsetsRequestTopic("t", [asked])])


@pytest.mark.parametrize(("version", "reason"), [(4, Reason.LEADER_NOT_AVAILABLE), (5, Reason.OFFSET_NOT_AVAILABLE)])
async def test_a_new_leader_tells_no_end_before_it_knows_what_is_committed(
    node: ClusterNode, version: int, reason: Reason
) -> None:
    topic = await node.place("t", ALL)
    await node.append_written("t", 0, 3)
    # Elected once more: what it has may be committed, or not.
    await node.set_record(topic, 0, leader_epoch=1)
    [answer] = (await after_settling(node, node.ask(ApiKey.LIST_OFFSETS, _list_offsets(-1), version))).topics
    assert reason_of(answer.partitions[0].error_code) is reason
    [answer] = (await node.ask(ApiKey.LIST_OFFSETS, _list_offsets(-2), version)).topics
    assert (answer.partitions[0].error_code, answer.partitions[0].offset) == (0, 0)
    partition = node.broker.partition("t", 0)
    node.fetched(partition, OTHER, 3)
    node.fetched(partition, THIRD, 3)
    [answer] = (await node.ask(ApiKey.LIST_OFFSETS, _list_offsets(-1), version)).topics
    assert (answer.partitions[0].error_code, answer.partitions[0].offset) == (0, 3)


@pytest.mark.parametrize("timestamp", [-1, 2**62], ids=["end", "no such time"])
async def test_an_offset_asked_of_a_new_leader_waits_until_it_knows_what_is_committed(
    node: ClusterNode, timestamp: int
) -> None:
    topic = await node.place("t", ALL)
    await node.append_written("t", 0, 3)
    await node.set_record(topic, 0, leader_epoch=1)
    asked = asyncio.ensure_future(node.ask(ApiKey.LIST_OFFSETS, _list_offsets(timestamp), 9))
    partition = node.broker.partition("t", 0)
    while not partition._readers:
        assert not asked.done(), asked.result()
        await asyncio.sleep(0)
    node.fetched(partition, OTHER, 3)
    node.fetched(partition, THIRD, 3)
    [answer] = (await asked).topics
    assert (answer.partitions[0].error_code, answer.partitions[0].offset) == (0, 3 if timestamp == -1 else -1)


@pytest.mark.parametrize(
    ("epoch", "reason"),
    [(-1, None), (1, None), (0, Reason.FENCED_LEADER_EPOCH), (2, Reason.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_client_with_another_leader_in_mind_is_told_so(
    node: ClusterNode, epoch: int, reason: Reason | None
) -> None:
    topic = await node.place("t", (NODE,))
    await node.set_record(topic, 0, leader_epoch=1)
    [answer] = (await node.ask(ApiKey.LIST_OFFSETS, _list_offsets(-1, epoch), 9)).topics
    assert reason_of(answer.partitions[0].error_code) is reason
    asked = OffsetForLeaderEpochRequestPartition(0, epoch, 0)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderEpochRequestTopic("t", [asked])])
    [answer] = (await node.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, 4)).topics
    assert reason_of(answer.partitions[0].error_code) is reason


@pytest.mark.parametrize("leader", [OTHER, -1])
async def test_readers_are_sent_away_from_what_this_node_does_not_lead(node: ClusterNode, leader: int) -> None:
    topic = await node.place("t", (OTHER, NODE, THIRD))
    await node.set_record(topic, 0, leader=leader, leader_epoch=1)
    wrong = Reason.NOT_LEADER_OR_FOLLOWER
    [answer] = (await node.ask(ApiKey.LIST_OFFSETS, _list_offsets(-1), 9)).topics
    assert reason_of(answer.partitions[0].error_code) is wrong
    asked = OffsetForLeaderEpochRequestPartition(0, -1, 0)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderEpochRequestTopic("t", [asked])])
    [answer] = (await node.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, 4)).topics
    assert reason_of(answer.partitions[0].error_code) is wrong
    deleted = DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, 0)])
    [answer] = (await node.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[deleted]), 2)).topics
    assert reason_of(answer.partitions[0].error_code) is wrong


async def test_log_directories_hold_what_is_led_and_what_is_copied_here_and_nothing_else(node: ClusterNode) -> None:
    await node.place("t", (NODE, OTHER), (OTHER, NODE), (OTHER, THIRD))
    partition = await node.append_written("t", 0, 2)
    # What is copied for readers alone is no replica.
    node.cluster.replicas.observe(node.broker.topics.require("t"), 2)
    [result] = (await node.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), 4)).results
    [topic] = result.topics
    assert [(each.partition_index, each.partition_size) for each in topic.partitions] == [
        (0, partition.log.size_bytes),
        (1, 0),
    ]


async def test_a_brokers_configs_are_known_to_itself_alone_and_tell_where_others_reach_it(node: ClusterNode) -> None:
    def asked(name: int) -> DescribeConfigsRequest:
        return DescribeConfigsRequest(resources=[DescribeConfigsRequestResource(4, str(name), None)])

    [mine] = (await node.ask(ApiKey.DESCRIBE_CONFIGS, asked(NODE), 4)).results
    values = {config.name: config.value for config in mine.configs}
    listeners = "127.0.0.1:8007,127.0.0.1:8008,127.0.0.1:8009"
    assert (values["broker.rack"], values["penstock.http.listeners"]) == ("a", listeners)
    assert (values["default.replication.factor"], values["min.insync.replicas"]) == ("3", "2")
    [other] = (await node.ask(ApiKey.DESCRIBE_CONFIGS, asked(OTHER), 4)).results
    assert reason_of(other.error_code) is Reason.INVALID_REQUEST
    assert "127.0.0.1:9008" in other.error_message


# Groups.


async def test_each_group_has_its_own_coordinator_and_the_others_say_that_it_is_not_theirs(node: ClusterNode) -> None:
    groups = [f"g{n}" for n in range(8)]
    find = FindCoordinatorRequest(coordinator_keys=groups)
    found = (await node.ask(ApiKey.FIND_COORDINATOR, find, 4)).coordinators
    assert {reason_of(each.error_code) for each in found} == {Reason.COORDINATOR_NOT_AVAILABLE}
    for name in GROUP_STATE_TOPICS:
        new = NewTopic(name, configs=INTERNAL_CONFIGS, assignments={0: [OTHER, NODE], 1: [NODE, OTHER]})
        await node.broker.topics.create(new, internal=True)
    found = (await node.ask(ApiKey.FIND_COORDINATOR, find, 4)).coordinators
    assert {(each.error_code, each.node_id, each.port) for each in found} == {(0, NODE, 9007), (0, OTHER, 9008)}
    old = (await node.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key=found[0].key), 3)).node_id
    assert old == found[0].node_id
    async with asyncio.timeout(30):
        while (await node.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), 5)).error_code:  # noqa: ASYNC110 - loading has no event
            await asyncio.sleep(0)
    described = (await node.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=groups), 5)).groups
    assert [reason_of(each.error_code) for each in described] == [
        None if each.node_id == NODE else Reason.NOT_COORDINATOR for each in found
    ]


async def test_a_topic_that_another_node_created_just_before_is_found(node: ClusterNode) -> None:
    class News:
        """Brings what this node has not heard yet."""

        async def do(self, operation: FindTopic, caller: Caller) -> UUID:
            await node.place(operation.topic, (NODE,))
            return await node.broker.door.run(operation, caller)

    node.broker.door.router = News()  # type: ignore[assignment]
    request = MetadataRequest([MetadataRequestTopic(name="fresh")], allow_auto_topic_creation=False)
    [topic] = (await node.ask(ApiKey.METADATA, request, 12)).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
