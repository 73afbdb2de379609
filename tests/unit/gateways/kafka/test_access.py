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

from penstock.core.security.access import Access, Caller
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.errors import CODES
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
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.consumer_group_heartbeat_generated import ConsumerGroupHeartbeatRequest
from penstock.wire.kafka.create_partitions_generated import CreatePartitionsRequest, CreatePartitionsRequestTopic
from penstock.wire.kafka.delete_groups_generated import DeleteGroupsRequest
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from penstock.wire.kafka.delete_topics_generated import DeleteTopicsRequest, DeleteTopicsRequestTopic
from penstock.wire.kafka.describe_acls_generated import DescribeAclsRequest
from penstock.wire.kafka.describe_client_quotas_generated import DescribeClientQuotasRequest
from penstock.wire.kafka.describe_cluster_generated import DescribeClusterRequest
from penstock.wire.kafka.describe_configs_generated import DescribeConfigsRequest, DescribeConfigsRequestResource
from penstock.wire.kafka.describe_groups_generated import DescribeGroupsRequest
from penstock.wire.kafka.describe_log_dirs_generated import DescribeLogDirsRequest
from penstock.wire.kafka.describe_quorum_generated import DescribeQuorumRequest
from penstock.wire.kafka.describe_topic_partitions_generated import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
)
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
from tests.support.kafka_wire import WireNode, batch, create, fetch, produce

TOPIC, GROUP, CLUSTER = "topic t", "group g", "cluster"
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
ASKS_NOTHING = {ApiKey.API_VERSIONS}
"""How a client learns what it may say, before it has said who it is. Kafka refuses it to nobody."""

Asked = tuple[Action, str]


class Guard(Access):
    """Refuses what it was told to, and remembers what it was asked."""

    allows_all = False

    def __init__(self, refuses: Callable[[Action, str], bool]) -> None:
        self._refuses = refuses
        self.asked: list[Asked] = []
        self.callers: set[Caller] = set()

    def _ask(self, caller: Caller, action: Action, what: str, reason: Reason) -> None:
        self.callers.add(caller)
        self.asked.append((action, what))
        if self._refuses(action, what):
            raise PenstockError(reason, "Ask an administrator for access.")

    def require_topic(self, caller: Caller, action: Action, topic: str) -> None:
        self._ask(caller, action, f"topic {topic}", Reason.TOPIC_AUTHORIZATION_FAILED)

    def require_group(self, caller: Caller, action: Action, group: str) -> None:
        self._ask(caller, action, f"group {group}", Reason.GROUP_AUTHORIZATION_FAILED)

    def require_cluster(self, caller: Caller, action: Action) -> None:
        self._ask(caller, action, CLUSTER, Reason.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class Case:
    """A request, made for a version and with the id of the topic, and what must be asked for it."""

    request: Callable[[int, bytes], Any]
    asked: tuple[Asked, ...]
    told: bool = True
    """Whether the answer says that it was refused; else it shows nothing."""


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


def _delete_topics(version: int, topic_id: bytes) -> DeleteTopicsRequest:
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
        lambda version, topic_id: produce(topic_id if version >= 13 else "t", batch(b"v")), ((Action.WRITE, TOPIC),)
    ),
    ApiKey.FETCH: Case(
        lambda version, topic_id: fetch(topic_id if version >= 13 else "t", 0, session_epoch=-1),
        ((Action.READ, TOPIC),),
    ),
    ApiKey.LIST_OFFSETS: Case(
        lambda *_: ListOffsetsRequest(
            topics=[ListOffsetsRequestTopic("t", [ListOffsetsRequestPartition(partition_index=0, timestamp=-1)])]
        ),
        ((Action.DESCRIBE, TOPIC),),
    ),
    ApiKey.METADATA: Case(
        lambda *_: MetadataRequest(topics=[MetadataRequestTopic(name="t")]), ((Action.DESCRIBE, TOPIC),)
    ),
    ApiKey.OFFSET_COMMIT: Case(_offset_commit, ((Action.READ, GROUP), (Action.READ, TOPIC))),
    ApiKey.OFFSET_FETCH: Case(_offset_fetch, ((Action.DESCRIBE, GROUP), (Action.DESCRIBE, TOPIC))),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Case(lambda *_: DescribeClientQuotasRequest(), ((Action.DESCRIBE, CLUSTER),)),
    ApiKey.ALTER_CLIENT_QUOTAS: Case(
        lambda *_: AlterClientQuotasRequest(
            [
                AlterClientQuotasRequestEntry(
                    [AlterClientQuotasRequestEntity("user", "u")],
                    [AlterClientQuotasRequestOp("producer_byte_rate", 1.0)],
                )
            ]
        ),
        ((Action.ALTER, CLUSTER),),
    ),
    ApiKey.DESCRIBE_ACLS: Case(lambda *_: DescribeAclsRequest(), ((Action.DESCRIBE, CLUSTER),)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Case(
        lambda *_: AlterReplicaLogDirsRequest(
            [AlterReplicaLogDirsRequestDir("/elsewhere", [AlterReplicaLogDirsRequestTopic("t", [0])])]
        ),
        ((Action.ALTER, CLUSTER),),
    ),
    ApiKey.DESCRIBE_QUORUM: Case(lambda *_: DescribeQuorumRequest(), ((Action.DESCRIBE, CLUSTER),)),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Case(
        lambda *_: ConsumerGroupHeartbeatRequest(group_id="g", member_id="m"), ((Action.READ, GROUP),)
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Case(lambda *_: ListConfigResourcesRequest(), ((Action.DESCRIBE, CLUSTER),)),
    ApiKey.FIND_COORDINATOR: Case(_find_coordinator, ((Action.DESCRIBE, GROUP),)),
    ApiKey.JOIN_GROUP: Case(
        lambda *_: JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        ),
        ((Action.READ, GROUP),),
    ),
    ApiKey.HEARTBEAT: Case(lambda *_: HeartbeatRequest("g", 1, "m"), ((Action.READ, GROUP),)),
    ApiKey.LEAVE_GROUP: Case(_leave, ((Action.READ, GROUP),)),
    ApiKey.SYNC_GROUP: Case(
        lambda *_: SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", assignments=[SyncGroupRequestAssignment("m", b"")]
        ),
        ((Action.READ, GROUP),),
    ),
    ApiKey.DESCRIBE_GROUPS: Case(lambda *_: DescribeGroupsRequest(["g"]), ((Action.DESCRIBE, GROUP),)),
    ApiKey.LIST_GROUPS: Case(
        lambda *_: ListGroupsRequest(), ((Action.DESCRIBE, CLUSTER), (Action.DESCRIBE, GROUP)), told=False
    ),
    ApiKey.CREATE_TOPICS: Case(lambda *_: create("new"), ((Action.CREATE, "topic new"),)),
    ApiKey.DELETE_TOPICS: Case(_delete_topics, ((Action.DELETE, TOPIC),)),
    ApiKey.DELETE_RECORDS: Case(
        lambda *_: DeleteRecordsRequest(
            [DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, 1)])], timeout_ms=1000
        ),
        ((Action.DELETE, TOPIC),),
    ),
    ApiKey.INIT_PRODUCER_ID: Case(lambda *_: InitProducerIdRequest(None, 1000), ((Action.WRITE, CLUSTER),)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Case(
        lambda *_: OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderEpochRequestTopic("t", [OffsetForLeaderEpochRequestPartition(partition=0)])]
        ),
        ((Action.DESCRIBE, TOPIC),),
    ),
    ApiKey.DESCRIBE_CONFIGS: Case(
        lambda *_: DescribeConfigsRequest(
            [
                DescribeConfigsRequestResource(TOPIC_RESOURCE, "t", None),
                DescribeConfigsRequestResource(BROKER_RESOURCE, "7", None),
            ]
        ),
        ((Action.DESCRIBE, TOPIC), (Action.DESCRIBE, CLUSTER)),
    ),
    ApiKey.ALTER_CONFIGS: Case(
        lambda *_: AlterConfigsRequest(
            [AlterConfigsRequestResource(TOPIC_RESOURCE, "t", [AlterConfigsRequestConfig("retention.ms", "1")])]
        ),
        ((Action.ALTER, TOPIC),),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Case(lambda *_: DescribeLogDirsRequest(None), ((Action.DESCRIBE, CLUSTER),)),
    ApiKey.CREATE_PARTITIONS: Case(
        lambda *_: CreatePartitionsRequest([CreatePartitionsRequestTopic("t", 9, None)], timeout_ms=1000),
        ((Action.ALTER, TOPIC),),
    ),
    ApiKey.DELETE_GROUPS: Case(lambda *_: DeleteGroupsRequest(["g"]), ((Action.DELETE, GROUP),)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Case(
        lambda *_: IncrementalAlterConfigsRequest(
            [
                IncrementalAlterConfigsRequestResource(
                    TOPIC_RESOURCE, "t", [IncrementalAlterConfigsRequestConfig("retention.ms", 0, "1")]
                )
            ]
        ),
        ((Action.ALTER, TOPIC),),
    ),
    ApiKey.OFFSET_DELETE: Case(
        lambda *_: OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]),
        ((Action.DELETE, GROUP), (Action.READ, TOPIC)),
    ),
    ApiKey.ELECT_LEADERS: Case(
        lambda *_: ElectLeadersRequest(topic_partitions=[ElectLeadersRequestTopicPartitions("t", [0])]),
        ((Action.ALTER, CLUSTER),),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Case(
        lambda *_: AlterPartitionReassignmentsRequest(
            topics=[AlterPartitionReassignmentsRequestTopic("t", [AlterPartitionReassignmentsRequestPartition(0, [7])])]
        ),
        ((Action.ALTER, CLUSTER),),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Case(
        lambda *_: ListPartitionReassignmentsRequest(topics=None), ((Action.DESCRIBE, CLUSTER),)
    ),
    ApiKey.DESCRIBE_CLUSTER: Case(lambda *_: DescribeClusterRequest(), ((Action.DESCRIBE, CLUSTER),)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Case(
        lambda *_: DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequestTopic("t")], 10, None),
        ((Action.DESCRIBE, TOPIC),),
    ),
}

FIRST_SERVED = {ApiKey.PRODUCE: 3}
"""Listed for old clients and refused when used: there is nothing to ask below it."""

EACH = [
    pytest.param(key, version, id=f"{API[key].name}-{version}")
    for key in CASES
    for version in range(FIRST_SERVED.get(key, API[key].min_version), API[key].max_version + 1)
]


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


def codes(answer: Any) -> Iterator[int]:
    """Every error code in an answer."""
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        if name == "error_code":
            yield value
        elif isinstance(value, msgspec.Struct):
            yield from codes(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, msgspec.Struct):
                    yield from codes(item)


def test_every_served_api_has_a_case() -> None:
    assert CASES.keys() | ASKS_NOTHING == HANDLERS.keys()


@pytest.mark.parametrize(("key", "version"), EACH)
async def test_who_may_nothing_changes_nothing_and_is_told(node: WireNode, key: ApiKey, version: int) -> None:
    case = CASES[key]
    topic_id = node.broker.topics.require("t").topic_id.bytes
    guard = node.broker.access = Guard(lambda _action, _what: True)
    before = snapshot(node)
    client = await node.connect()
    answer = await client.ask(key, case.request(version, topic_id), version)
    assert guard.asked[0] in case.asked
    assert {caller.gateway for caller in guard.callers} == {Gateway.KAFKA}
    assert {caller.client for caller in guard.callers} == {"127.0.0.1"}
    refusals = {
        CODES[Reason.TOPIC_AUTHORIZATION_FAILED],
        CODES[Reason.GROUP_AUTHORIZATION_FAILED],
        CODES[Reason.CLUSTER_AUTHORIZATION_FAILED],
    }
    told = set(codes(answer)) & refusals
    # The oldest versions of DescribeLogDirs have no place to say it: they show nothing.
    assert bool(told) == (case.told and not (key is ApiKey.DESCRIBE_LOG_DIRS and version < 3))
    assert snapshot(node) == before


@pytest.mark.parametrize(("key", "version"), EACH)
async def test_each_question_can_refuse_alone(node: WireNode, key: ApiKey, version: int) -> None:
    case = CASES[key]
    topic_id = node.broker.topics.require("t").topic_id.bytes
    client = await node.connect()
    for question in case.asked if case.told else ():
        guard = node.broker.access = Guard(lambda action, what, refused=question: (action, what) == refused)
        before = snapshot(node)
        answer = await client.ask(key, case.request(version, topic_id), version)
        assert question in guard.asked
        if case.told and not (key is ApiKey.DESCRIBE_LOG_DIRS and version < 3):
            assert set(codes(answer)) & {29, 30, 31}
        assert snapshot(node) == before


@pytest.mark.parametrize("version", [0, 4])
async def test_the_versions_are_told_to_everybody(node: WireNode, version: int) -> None:
    node.broker.access = Guard(lambda _action, _what: True)
    answer = await (await node.connect()).ask(ApiKey.API_VERSIONS, ApiVersionsRequest("raw", "1"), version)
    assert answer.error_code == 0
    assert {api.api_key for api in answer.api_keys} == {int(key) for key in HANDLERS}


async def test_a_lane_that_knows_the_request_asks_once_access_is_restricted(node: WireNode) -> None:
    client = await node.connect()
    for _ in range(3):
        assert not any(codes(await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9)))
        assert not any(codes(await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11)))
    node.broker.access = Guard(lambda _action, _what: True)
    end = node.broker.partition("t", 0).log.next_offset
    assert set(codes(await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9))) == {29}
    answer = await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11)
    assert set(codes(answer)) == {0, 29}
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
    assert set(codes(await client.ask(ApiKey.ALTER_CONFIGS, request, 2))) == {31}


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
    describe, describe_configs = 8, 10
    assert topic.topic_authorized_operations == 1 << describe | 1 << describe_configs


async def test_a_refusal_comes_before_mistakes_in_the_request(node: WireNode) -> None:
    node.broker.access = Guard(lambda _action, _what: True)
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
        assert set(codes(await client.ask(key, request, version))) - {0} == {code}, key
