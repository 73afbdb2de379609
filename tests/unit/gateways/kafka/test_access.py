"""Every Kafka API asks the one authorisation point, and a refusal leaves nothing behind.

``CASES`` has a request for each API that is served: one that is added without a case, or without a check, fails here.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from penstock.errors import Reason
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.operations.groups import OffsetToCommit
from penstock.operations.operation import Action
from penstock.types import Gateway, GroupId, PartitionKey, TopicName
from penstock.wire.kafka.alter_client_quotas_generated import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
)
from penstock.wire.kafka.alter_configs_generated import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
)
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
from penstock.wire.kafka.alter_user_scram_credentials_generated import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestDeletion,
)
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.consumer_group_heartbeat_generated import ConsumerGroupHeartbeatRequest
from penstock.wire.kafka.create_acls_generated import CreateAclsRequest, CreateAclsRequestCreation
from penstock.wire.kafka.create_partitions_generated import CreatePartitionsRequest, CreatePartitionsRequestTopic
from penstock.wire.kafka.delete_acls_generated import DeleteAclsRequest, DeleteAclsRequestFilter
from penstock.wire.kafka.delete_groups_generated import DeleteGroupsRequest
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from penstock.wire.kafka.delete_topics_generated import DeleteTopicsRequest, DeleteTopicsRequestTopic
from penstock.wire.kafka.describe_acls_generated import DescribeAclsRequest
from penstock.wire.kafka.describe_client_quotas_generated import DescribeClientQuotasRequest
from penstock.wire.kafka.describe_configs_generated import DescribeConfigsRequest, DescribeConfigsRequestResource
from penstock.wire.kafka.describe_groups_generated import DescribeGroupsRequest
from penstock.wire.kafka.describe_log_dirs_generated import DescribeLogDirsRequest
from penstock.wire.kafka.describe_quorum_generated import DescribeQuorumRequest
from penstock.wire.kafka.describe_topic_partitions_generated import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
)
from penstock.wire.kafka.describe_user_scram_credentials_generated import DescribeUserScramCredentialsRequest
from penstock.wire.kafka.elect_leaders_generated import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from penstock.wire.kafka.heartbeat_generated import HeartbeatRequest
from penstock.wire.kafka.incremental_alter_configs_generated import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest
from penstock.wire.kafka.join_group_generated import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.kafka.leave_group_generated import LeaveGroupRequest, LeaveGroupRequestMember
from penstock.wire.kafka.list_config_resources_generated import ListConfigResourcesRequest
from penstock.wire.kafka.list_groups_generated import ListGroupsRequest
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from penstock.wire.kafka.list_partition_reassignments_generated import ListPartitionReassignmentsRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.kafka.offset_delete_generated import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.kafka.offset_fetch_generated import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
)
from penstock.wire.kafka.offset_for_leader_epoch_generated import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from penstock.wire.kafka.sync_group_generated import SyncGroupRequest, SyncGroupRequestAssignment
from tests.support.access import CLUSTER, Asked, Guard, all_but, only
from tests.support.kafka_wire import WireNode, batch, create, fetch, produce

TOPIC, GROUP = "topic t", "group g"
TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
ASKS_NOTHING = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""Kafka answers these to everybody; operations on the cluster are left out for who may not describe it."""
AUTHORIZATION_CODES = {29, 30, 31, 53, 65}


@dataclass(frozen=True)
class Need:
    """A right that a request needs, and where a refusal is in the answer."""

    code: int
    at: str | Callable[[int], str | None]
    """The fields on the way to the ``error_code``, in a version; None: what may not be seen is left out."""
    any_of: tuple[Asked, ...]
    """Each of these is enough."""

    def place(self, version: int) -> str | None:
        return self.at(version) if callable(self.at) else self.at


def need(code: int, at: str | Callable[[int], str | None], *any_of: Asked) -> Need:
    return Need(code, at, any_of)


@dataclass(frozen=True)
class Case:
    """A request, made for a version and with the id of the topic, and the rights that it needs."""

    request: Callable[[int, bytes], Any]
    needs: tuple[Need, ...]


def _named(version: int, topic_id: bytes, from_version: int, **fields: Any) -> dict[str, Any]:
    """A topic by its name, or by its id from a version on."""
    return {**fields, "topic_id": topic_id} if version >= from_version else {**fields, "name": "t"}


def _offset_fetch(version: int, topic_id: bytes) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic("t", [0])])
    topic = OffsetFetchRequestGroupTopic(**_named(version, topic_id, 10, partition_indexes=[0]))
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def _offset_commit(version: int, topic_id: bytes) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=2)]
    topic = OffsetCommitRequestTopic(**_named(version, topic_id, 10, partitions=partitions))
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])


def delete_topics(version: int, topic_id: bytes) -> DeleteTopicsRequest:
    if version < 6:
        return DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    by_id = DeleteTopicsRequestTopic(name=None, topic_id=topic_id)
    return DeleteTopicsRequest(topics=[by_id], timeout_ms=1000)


def _leave(version: int, _id: bytes) -> LeaveGroupRequest:
    if version < 3:
        return LeaveGroupRequest(group_id="g", member_id="m")
    return LeaveGroupRequest(group_id="g", members=[LeaveGroupRequestMember(member_id="m")])


def _find_coordinator(version: int, _id: bytes) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key="g") if version < 4 else FindCoordinatorRequest(coordinator_keys=["g"])


CASES: dict[ApiKey, Case] = {
    ApiKey.PRODUCE: Case(
        lambda version, topic_id: produce(topic_id if version >= 13 else "t", batch(b"v")),
        (need(29, "responses.partition_responses", (Action.WRITE, TOPIC)),),
    ),
    ApiKey.FETCH: Case(
        lambda version, topic_id: fetch(topic_id if version >= 13 else "t", 0, session_epoch=-1),
        (need(29, "responses.partitions", (Action.READ, TOPIC)),),
    ),
    ApiKey.LIST_OFFSETS: Case(
        lambda *_: ListOffsetsRequest(
            topics=[ListOffsetsRequestTopic("t", [ListOffsetsRequestPartition(partition_index=0, timestamp=-1)])]
        ),
        (need(29, "topics.partitions", (Action.DESCRIBE, TOPIC)),),
    ),
    ApiKey.METADATA: Case(
        lambda *_: MetadataRequest(topics=[MetadataRequestTopic(name="t")]),
        (need(29, "topics", (Action.DESCRIBE, TOPIC)),),
    ),
    ApiKey.OFFSET_COMMIT: Case(
        _offset_commit,
        (
            need(30, "topics.partitions", (Action.READ, GROUP)),
            need(29, "topics.partitions", (Action.READ, TOPIC)),
        ),
    ),
    ApiKey.OFFSET_FETCH: Case(
        _offset_fetch,
        (
            need(
                30,
                lambda version: "topics.partitions" if version < 2 else "" if version < 8 else "groups",
                (Action.DESCRIBE, GROUP),
            ),
            need(
                29,
                lambda version: "topics.partitions" if version < 8 else "groups.topics.partitions",
                (Action.DESCRIBE, TOPIC),
            ),
        ),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Case(
        lambda *_: DescribeUserScramCredentialsRequest(None), (need(31, "", (Action.DESCRIBE, CLUSTER)),)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Case(
        lambda *_: AlterUserScramCredentialsRequest([AlterUserScramCredentialsRequestDeletion("u", 1)]),
        (need(31, "results", (Action.ALTER, CLUSTER)),),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Case(
        lambda *_: DescribeClientQuotasRequest(), (need(31, "", (Action.DESCRIBE_CONFIGS, CLUSTER)),)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Case(
        lambda *_: AlterClientQuotasRequest(
            [
                AlterClientQuotasRequestEntry(
                    [AlterClientQuotasRequestEntity("user", "u")],
                    [AlterClientQuotasRequestOp("producer_byte_rate", 1.0)],
                )
            ]
        ),
        (need(31, "entries", (Action.ALTER_CONFIGS, CLUSTER)),),
    ),
    ApiKey.DESCRIBE_ACLS: Case(
        lambda *_: DescribeAclsRequest(1, None, 1, None, None, 1, 1), (need(31, "", (Action.DESCRIBE, CLUSTER)),)
    ),
    ApiKey.CREATE_ACLS: Case(
        lambda *_: CreateAclsRequest([CreateAclsRequestCreation(2, "t", 3, "User:eve", "*", 3, 3)]),
        (need(31, "results", (Action.ALTER, CLUSTER)),),
    ),
    ApiKey.DELETE_ACLS: Case(
        lambda *_: DeleteAclsRequest([DeleteAclsRequestFilter(1, None, 1, None, None, 1, 1)]),
        (need(31, "filter_results", (Action.ALTER, CLUSTER)),),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Case(
        lambda *_: AlterReplicaLogDirsRequest(
            [AlterReplicaLogDirsRequestDir("/elsewhere", [AlterReplicaLogDirsRequestTopic("t", [0])])]
        ),
        (need(31, "results.partitions", (Action.ALTER, CLUSTER)),),
    ),
    ApiKey.DESCRIBE_QUORUM: Case(lambda *_: DescribeQuorumRequest(), (need(31, "", (Action.DESCRIBE, CLUSTER)),)),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Case(
        lambda *_: ConsumerGroupHeartbeatRequest(group_id="g", member_id="m"),
        (need(30, "", (Action.READ, GROUP)),),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Case(
        lambda *_: ListConfigResourcesRequest(), (need(31, "", (Action.DESCRIBE_CONFIGS, CLUSTER)),)
    ),
    ApiKey.FIND_COORDINATOR: Case(
        _find_coordinator,
        (need(30, lambda version: "" if version < 4 else "coordinators", (Action.DESCRIBE, GROUP)),),
    ),
    ApiKey.JOIN_GROUP: Case(
        lambda *_: JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        ),
        (need(30, "", (Action.READ, GROUP)),),
    ),
    ApiKey.HEARTBEAT: Case(lambda *_: HeartbeatRequest("g", 1, "m"), (need(30, "", (Action.READ, GROUP)),)),
    ApiKey.LEAVE_GROUP: Case(_leave, (need(30, "", (Action.READ, GROUP)),)),
    ApiKey.SYNC_GROUP: Case(
        lambda *_: SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", assignments=[SyncGroupRequestAssignment("m", b"")]
        ),
        (need(30, "", (Action.READ, GROUP)),),
    ),
    ApiKey.DESCRIBE_GROUPS: Case(
        lambda *_: DescribeGroupsRequest(["g"]), (need(30, "groups", (Action.DESCRIBE, GROUP)),)
    ),
    ApiKey.LIST_GROUPS: Case(
        lambda *_: ListGroupsRequest(),
        (need(30, lambda _: None, (Action.DESCRIBE, CLUSTER), (Action.DESCRIBE, GROUP)),),
    ),
    ApiKey.CREATE_TOPICS: Case(
        lambda *_: create("new"),
        (need(29, "topics", (Action.CREATE, CLUSTER), (Action.CREATE, "topic new")),),
    ),
    ApiKey.DELETE_TOPICS: Case(
        delete_topics, (need(29, "responses", (Action.DELETE, CLUSTER), (Action.DELETE, TOPIC)),)
    ),
    ApiKey.DELETE_RECORDS: Case(
        lambda *_: DeleteRecordsRequest(
            [DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, 1)])], timeout_ms=1000
        ),
        (need(29, "topics.partitions", (Action.DELETE, TOPIC)),),
    ),
    ApiKey.INIT_PRODUCER_ID: Case(
        lambda *_: InitProducerIdRequest(None, 1000),
        (need(31, "", (Action.IDEMPOTENT_WRITE, CLUSTER), (Action.WRITE, "any topic")),),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Case(
        lambda *_: OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderEpochRequestTopic("t", [OffsetForLeaderEpochRequestPartition(partition=0)])]
        ),
        (need(29, "topics.partitions", (Action.CLUSTER_ACTION, CLUSTER), (Action.DESCRIBE, TOPIC)),),
    ),
    ApiKey.DESCRIBE_CONFIGS: Case(
        lambda *_: DescribeConfigsRequest(
            [
                DescribeConfigsRequestResource(TOPIC_RESOURCE, "t", None),
                DescribeConfigsRequestResource(BROKER_RESOURCE, "7", None),
                DescribeConfigsRequestResource(GROUP_RESOURCE, "g", None),
            ]
        ),
        (
            need(29, "results", (Action.DESCRIBE_CONFIGS, TOPIC)),
            need(31, "results", (Action.DESCRIBE_CONFIGS, CLUSTER)),
            need(30, "results", (Action.DESCRIBE_CONFIGS, GROUP)),
        ),
    ),
    ApiKey.ALTER_CONFIGS: Case(
        lambda *_: AlterConfigsRequest(
            [
                AlterConfigsRequestResource(TOPIC_RESOURCE, "t", [AlterConfigsRequestConfig("retention.ms", "1")]),
                AlterConfigsRequestResource(BROKER_RESOURCE, "7", []),
                AlterConfigsRequestResource(GROUP_RESOURCE, "g", []),
            ]
        ),
        (
            need(29, "responses", (Action.ALTER_CONFIGS, TOPIC)),
            need(31, "responses", (Action.ALTER_CONFIGS, CLUSTER)),
            need(30, "responses", (Action.ALTER_CONFIGS, GROUP)),
        ),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Case(
        lambda *_: DescribeLogDirsRequest(None),
        (need(31, lambda version: None if version < 3 else "", (Action.DESCRIBE, CLUSTER)),),
    ),
    ApiKey.CREATE_PARTITIONS: Case(
        lambda *_: CreatePartitionsRequest([CreatePartitionsRequestTopic("t", 9, None)], timeout_ms=1000),
        (need(29, "results", (Action.ALTER, TOPIC)),),
    ),
    ApiKey.DELETE_GROUPS: Case(lambda *_: DeleteGroupsRequest(["g"]), (need(30, "results", (Action.DELETE, GROUP)),)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Case(
        lambda *_: IncrementalAlterConfigsRequest(
            [
                IncrementalAlterConfigsRequestResource(
                    TOPIC_RESOURCE, "t", [IncrementalAlterConfigsRequestConfig("retention.ms", 0, "1")]
                ),
                IncrementalAlterConfigsRequestResource(BROKER_RESOURCE, "7", []),
                IncrementalAlterConfigsRequestResource(GROUP_RESOURCE, "g", []),
            ]
        ),
        (
            need(29, "responses", (Action.ALTER_CONFIGS, TOPIC)),
            need(31, "responses", (Action.ALTER_CONFIGS, CLUSTER)),
            need(30, "responses", (Action.ALTER_CONFIGS, GROUP)),
        ),
    ),
    ApiKey.OFFSET_DELETE: Case(
        lambda *_: OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]),
        (need(30, "", (Action.DELETE, GROUP)), need(29, "topics.partitions", (Action.READ, TOPIC))),
    ),
    ApiKey.ELECT_LEADERS: Case(
        lambda *_: ElectLeadersRequest(topic_partitions=[ElectLeadersRequestTopicPartitions("t", [0])]),
        (
            need(
                31,
                lambda version: "" if version else "replica_election_results.partition_result",
                (Action.ALTER, CLUSTER),
            ),
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Case(
        lambda *_: AlterPartitionReassignmentsRequest(
            topics=[AlterPartitionReassignmentsRequestTopic("t", [AlterPartitionReassignmentsRequestPartition(0, [7])])]
        ),
        (need(31, "", (Action.ALTER, CLUSTER)),),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Case(
        lambda *_: ListPartitionReassignmentsRequest(topics=None), (need(31, "", (Action.DESCRIBE, CLUSTER)),)
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Case(
        lambda *_: DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequestTopic("t")], 10, None),
        (need(29, "topics", (Action.DESCRIBE, TOPIC)),),
    ),
}

FIRST_SERVED = {ApiKey.PRODUCE: 3}
"""Listed for old clients and refused when used: there is nothing to ask below it."""

EACH = [
    pytest.param(key, version, id=f"{API[key].name}-{version}")
    for key in CASES
    for version in range(FIRST_SERVED.get(key, API[key].min_version), API[key].max_version + 1)
]

CHOICES = [
    pytest.param(*each.values, choice, id=f"{each.id}-{choice}")
    for each in EACH
    for choice in range(max(len(need.any_of) for need in CASES[each.values[0]].needs))
]
"""Where one of several rights is enough, each of them."""


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[WireNode]:
    """A node with two records in ``t`` and an offset of ``g`` in it."""
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        await node.append("t", 0, 2)
        done: list[Reason | None] = []
        item = OffsetToCommit(PartitionKey(TopicName("t"), 0), 1, -1, "")
        node.broker.groups.commit_offset(GroupId("g"), item, done.append)
        await node.append("t", 1, 1)
        assert done == [None]
        yield node


def snapshot(node: WireNode) -> object:
    """All that a refused request could have changed."""
    broker = node.broker
    return (
        [(topic, broker.topics.partitions(topic)) for topic in broker.topics],
        [(log.directory, log.start_offset, log.next_offset) for log in broker.open_logs()],
        [(group, broker.groups.describe(group.group_id)) for group in broker.groups.list_groups()],
        broker.groups.fetch_offsets(GroupId("g"), None),
    )


def placed(answer: Any, way: str = "") -> Iterator[tuple[str, int]]:
    """Every error code in an answer, with the fields on the way to it."""
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        below = f"{way}.{name}" if way else name
        if name == "error_code":
            yield way, value
        elif isinstance(value, msgspec.Struct):
            yield from placed(value, below)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, msgspec.Struct):
                    yield from placed(item, below)


def codes(answer: Any) -> set[int]:
    return {code for _, code in placed(answer)}


def refusals(answer: Any) -> set[tuple[str, int]]:
    """The places where rights are missing."""
    return {(way, code) for way, code in placed(answer) if code in AUTHORIZATION_CODES}


async def ask(node: WireNode, key: ApiKey, version: int) -> Any:
    topic_id = node.broker.topics.require("t").topic_id.bytes
    return await (await node.connect()).ask(key, CASES[key].request(version, topic_id), version)


def test_every_served_api_has_a_case() -> None:
    assert CASES.keys() | ASKS_NOTHING == HANDLERS.keys()


@pytest.mark.parametrize(("key", "version"), EACH)
async def test_who_may_nothing_changes_nothing_and_is_told(node: WireNode, key: ApiKey, version: int) -> None:
    needs = CASES[key].needs
    guard = node.broker.access = Guard()
    before = snapshot(node)
    answer = await ask(node, key, version)
    assert guard.asked[0] in {asked for each in needs for asked in each.any_of}
    assert {(caller.gateway, caller.client) for caller in guard.callers} == {(Gateway.KAFKA, "127.0.0.1")}
    # The right that is asked for first may hide the others.
    assert refusals(answer) <= {(each.place(version), each.code) for each in needs}
    assert bool(refusals(answer)) == (needs[0].place(version) is not None)
    assert snapshot(node) == before


@pytest.mark.parametrize(("key", "version"), EACH)
async def test_each_right_that_is_missing_is_told_in_its_place(node: WireNode, key: ApiKey, version: int) -> None:
    for missing in CASES[key].needs:
        guard = node.broker.access = all_but(*missing.any_of)
        before = snapshot(node)
        answer = await ask(node, key, version)
        assert set(missing.any_of) <= set(guard.asked)
        place = missing.place(version)
        assert refusals(answer) == (set() if place is None else {(place, missing.code)})
        if len(CASES[key].needs) == 1:
            assert snapshot(node) == before


@pytest.mark.parametrize(("key", "version", "choice"), CHOICES)
async def test_no_other_right_is_needed(node: WireNode, key: ApiKey, version: int, choice: int) -> None:
    needs = CASES[key].needs
    node.broker.access = only(*(each.any_of[choice] for each in needs))
    assert refusals(await ask(node, key, version)) == set()


@pytest.mark.parametrize("version", [0, 4])
async def test_the_versions_are_told_to_everybody(node: WireNode, version: int) -> None:
    node.broker.access = Guard()
    answer = await (await node.connect()).ask(ApiKey.API_VERSIONS, ApiVersionsRequest("raw", "1"), version)
    assert answer.error_code == 0
    assert {api.api_key for api in answer.api_keys} == {int(key) for key in HANDLERS}


async def test_a_lane_that_knows_the_request_asks_once_access_is_restricted(node: WireNode) -> None:
    client = await node.connect()
    for _ in range(3):
        assert not any(codes(await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9)))
        assert not any(codes(await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11)))
    node.broker.access = Guard()
    end = node.broker.partition("t", 0).log.next_offset
    assert (codes(await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9))) == {29}
    answer = await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11)
    assert (codes(answer)) == {0, 29}
    assert not answer.responses[0].partitions[0].records
    assert node.broker.partition("t", 0).log.next_offset == end


async def test_lists_show_only_what_the_caller_may_see(node: WireNode) -> None:
    await node.create("hidden")
    node.broker.access = Guard(lambda _action, what: what in ("topic hidden", "group g", CLUSTER))
    client = await node.connect()
    metadata = await client.ask(ApiKey.METADATA, MetadataRequest(topics=None), 12)
    assert {topic.name for topic in metadata.topics} == {topic.name for topic in node.broker.topics} - {"hidden"}
    described = await client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest([], 100, None), 0)
    assert "hidden" not in {topic.name for topic in described.topics}
    assert (await client.ask(ApiKey.LIST_GROUPS, ListGroupsRequest(), 4)).groups == []


async def test_the_brokers_configs_are_the_clusters(node: WireNode) -> None:
    node.broker.access = Guard(lambda _action, what: what == CLUSTER)
    client = await node.connect()
    request = AlterConfigsRequest([AlterConfigsRequestResource(BROKER_RESOURCE, "7", [])])
    assert (codes(await client.ask(ApiKey.ALTER_CONFIGS, request, 2))) == {31}


async def test_a_topic_is_not_made_on_demand_for_who_may_not_create(node: WireNode) -> None:
    node.broker.access = Guard(lambda action, _what: action is Action.CREATE)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    [topic] = (await (await node.connect()).ask(ApiKey.METADATA, request, 12)).topics
    assert topic.error_code == 29
    assert "new" not in node.broker.topics


async def test_the_operations_told_are_those_allowed(node: WireNode) -> None:
    node.broker.access = Guard(lambda action, _what: action is not Action.DESCRIBE)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], include_topic_authorized_operations=True)
    [topic] = (await (await node.connect()).ask(ApiKey.METADATA, request, 12)).topics
    describe = 8
    assert topic.topic_authorized_operations == 1 << describe


async def test_a_refusal_comes_before_mistakes_in_the_request(node: WireNode) -> None:
    node.broker.access = Guard()
    client = await node.connect()
    twice = create("new")
    twice.topics *= 2
    partitions = CreatePartitionsRequest([CreatePartitionsRequestTopic("t", 9, None)] * 2, timeout_ms=1000)
    no_such_kind = 99
    for key, request, version, code in (
        (ApiKey.CREATE_TOPICS, twice, 7, 29),
        (ApiKey.CREATE_PARTITIONS, partitions, 3, 29),
        (ApiKey.ELECT_LEADERS, ElectLeadersRequest(no_such_kind, []), 2, 31),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics=[]), 1, 31),
        (ApiKey.ALTER_CONFIGS, AlterConfigsRequest([AlterConfigsRequestResource(no_such_kind, "x", [])]), 2, 31),
        (
            ApiKey.DESCRIBE_CONFIGS,
            DescribeConfigsRequest([DescribeConfigsRequestResource(no_such_kind, "x", None)]),
            4,
            31,
        ),
    ):
        assert (codes(await client.ask(key, request, version))) - {0} == {code}, key
