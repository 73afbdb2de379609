"""What Kafka clients learn of topics, configs and operations when rights are missing; and the fast lanes, which keep to the rights."""

import pytest

from penstock.core.security.access import Principal
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.describe_cluster_generated import DescribeClusterRequest
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic
from tests.support.access import CLUSTER, Guard, all_but, only
from tests.support.kafka_wire import WireNode, batch, create, fetch, produce
from tests.unit.gateways.kafka.test_access import TOPIC, codes, delete_topics, node

__all__ = ["node"]


# Where the answer is more than an error code.


async def test_the_configs_of_a_new_topic_are_for_who_may_describe_configs(node: WireNode) -> None:
    node.broker.access = only((Action.CREATE, "topic new"))
    client = await node.connect()
    for version in (5, 7):
        await node.broker.topics.delete("new") if "new" in node.broker.topics else None
        [topic] = (await client.ask(ApiKey.CREATE_TOPICS, create("new"), version)).topics
        assert (topic.error_code, topic.topic_config_error_code, topic.configs) == (0, 29, None)
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
    node.broker.access = only((Action.CREATE, CLUSTER), (Action.DESCRIBE_CONFIGS, "topic newer"))
    [topic] = (await client.ask(ApiKey.CREATE_TOPICS, create("newer"), 7)).topics
    assert topic.topic_config_error_code == 0
    assert topic.configs


async def test_who_deletes_by_id_is_told_the_name_of_what_it_may_describe(node: WireNode) -> None:
    topic_id = node.broker.topics.require("t").topic_id.bytes
    client = await node.connect()
    for allowed, name in (((), None), (((Action.DESCRIBE, TOPIC),), "t")):
        node.broker.access = only(*allowed)
        [refused] = (await client.ask(ApiKey.DELETE_TOPICS, delete_topics(6, topic_id), 6)).responses
        assert (refused.error_code, refused.name, refused.topic_id) == (29, name, topic_id)
        assert name is not None or "topic t" not in refused.error_message


async def test_who_uses_ids_is_not_told_names(node: WireNode) -> None:
    node.broker.access = Guard()
    topic_id = node.broker.topics.require("t").topic_id.bytes
    client = await node.connect()
    [topic] = (await client.ask(ApiKey.PRODUCE, produce(topic_id, batch(b"v")), 13)).responses
    assert "topic t" not in topic.partition_responses[0].error_message
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
    [topic] = (await client.ask(ApiKey.METADATA, request, 12)).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (29, None, topic_id)
    [topic] = (await client.ask(ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (29, "t", bytes(16))


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_cluster_is_described_to_everybody_but_not_its_operations(node: WireNode, version: int) -> None:
    client = await node.connect()
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    for guard, operations in (
        (Guard(), 0),
        (all_but((Action.DESCRIBE, CLUSTER)), 0),
        (only((Action.DESCRIBE, CLUSTER), (Action.IDEMPOTENT_WRITE, CLUSTER)), 1 << 8 | 1 << 12),
        (all_but(), sum(1 << number for number in (5, 7, 8, 9, 10, 11, 12))),
    ):
        node.broker.access = guard
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, request, version)
        assert (answer.error_code, answer.cluster_id) == (0, "penstock-test")
        assert [broker.broker_id for broker in answer.brokers] == [7]
        assert answer.cluster_authorized_operations == operations
        metadata = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
        asked = await client.ask(ApiKey.METADATA, metadata, 9)
        assert asked.cluster_authorized_operations == operations


@pytest.mark.parametrize("version", range(API[ApiKey.FIND_COORDINATOR].min_version + 1, 7))
async def test_coordinators_of_transactions_and_share_groups_need_their_own_rights(
    node: WireNode, version: int
) -> None:
    client = await node.connect()
    unsupported = 53 if version < 4 else 35
    for key_type, asked, refused, allowed in (
        (1, (Action.DESCRIBE, "transactional id x"), 53, unsupported),
        (2, (Action.CLUSTER_ACTION, CLUSTER), 31, 42),
    ):
        request = (
            FindCoordinatorRequest(key="x", key_type=key_type)
            if version < 4
            else FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
        )
        for guard, code in ((all_but(asked), refused), (only(asked), allowed)):
            node.broker.access = guard
            answer = await client.ask(ApiKey.FIND_COORDINATOR, request, version)
            assert guard.asked == [asked]
            assert codes(answer) - {0} == {code}


async def test_transactional_ids_are_authorised_before_they_are_refused(node: WireNode) -> None:
    client = await node.connect()
    request = produce("t", batch(b"v"))
    request.transactional_id = "x"
    for key, asked, version in (
        (ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest("x", 1000), 4),
        (ApiKey.PRODUCE, request, 9),
    ):
        guard = node.broker.access = Guard()
        answer = await client.ask(key, asked, version)
        assert guard.asked == [(Action.WRITE, "transactional id x")]
        assert codes(answer) - {0} == {53}


# The fast lanes.


async def test_lanes_serve_while_access_is_on_and_stop_when_it_changes(
    node: WireNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = node.broker.access = all_but()
    client = await node.connect()

    async def both() -> set[int]:
        produced = await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9)
        fetched = await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11)
        return (codes(produced) | codes(fetched)) - {0}

    assert await both() == set()
    asked = len(guard.asked)
    for _ in range(3):
        assert await both() == set()
    assert len(guard.asked) == asked
    monkeypatch.setattr(guard, "_refuses", lambda _action, _what: True)
    guard.forget()
    end = node.broker.partition("t", 0).log.next_offset
    assert await both() == {29}
    assert await both() == {29}
    assert node.broker.partition("t", 0).log.next_offset == end


async def test_a_lane_forgets_what_another_caller_of_the_connection_could_do(node: WireNode) -> None:
    node.broker.access = all_but()
    client = await node.connect()
    for _ in range(2):
        await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9)
        await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11)
    [connection] = node.gateway._connections
    access = node.broker.access
    connection.caller = connection.caller._replace(principal=Principal("User:other"))
    access._refuses = lambda _action, _what: True
    assert codes(await client.ask(ApiKey.PRODUCE, produce("t", batch(b"v")), 9)) == {29}
    assert 29 in codes(await client.ask(ApiKey.FETCH, fetch("t", 0, session_epoch=-1), 11))
