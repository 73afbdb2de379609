import asyncio
from pathlib import Path

import pytest

from penstock.core.topics.names import INTERNAL_TOPICS
from penstock.core.topics.topics import NewTopic
from penstock.errors import Reason
from penstock.settings import TopicSettings
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.kafka.primitives import UUID_ZERO
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.METADATA


async def ask(
    node: KafkaNode, names: list[str] | None, version: int = 13, *, may_create: bool = True, operations: bool = False
) -> MetadataResponse:
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics, may_create, operations, operations)
    answer: MetadataResponse = await node.ask(KEY, request, version)
    return answer


async def test_a_staging_topic_is_told_to_who_names_it_and_to_nobody_else(node: KafkaNode) -> None:
    await node.broker.topics.create(NewTopic("__staging.q", 1), internal=True)
    [told] = (await ask(node, ["__staging.q"])).topics
    assert (told.error_code, told.is_internal, len(told.partitions)) == (0, True, 1)
    assert [topic.name for topic in (await ask(node, None)).topics] == sorted(INTERNAL_TOPICS)


async def test_a_staging_topic_is_not_made_by_asking_for_it(node: KafkaNode) -> None:
    [told] = (await ask(node, ["__staging.q"])).topics
    assert reason_of(told.error_code) is Reason.INVALID_TOPIC
    [told] = (await ask(node, ["__staging.q"], may_create=False)).topics
    assert reason_of(told.error_code) is Reason.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_topic_is_told_with_its_leader_in_every_version(node: KafkaNode, version: int) -> None:
    topic = await node.create("orders", 3)
    answer = await ask(node, ["orders"], version)
    [broker] = answer.brokers
    assert (broker.node_id, broker.host, broker.port, broker.rack) == (NODE, "127.0.0.1", 9092, None)
    [told] = answer.topics
    assert (told.error_code, told.name) == (0, "orders")
    assert [partition.partition_index for partition in told.partitions] == [0, 1, 2]
    for partition in told.partitions:
        assert (partition.error_code, partition.leader_id) == (0, NODE)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([NODE], [NODE], [])
    if version >= 1:
        assert answer.controller_id == NODE
    if version >= 2:
        assert answer.cluster_id == "penstock-test"
    if version >= 7:
        assert told.partitions[0].leader_epoch == 0
    if version >= 10:
        assert told.topic_id == topic.topic_id.bytes


async def test_all_topics_are_asked_for_with_null_and_in_version_0_with_an_empty_list(node: KafkaNode) -> None:
    await node.create("b")
    await node.create("a")
    everything = [*sorted(INTERNAL_TOPICS), "a", "b"]
    assert [topic.name for topic in (await ask(node, None, 1)).topics] == everything
    assert [topic.name for topic in (await ask(node, [], 0)).topics] == everything
    for version in (1, 13):
        assert (await ask(node, [], version)).topics == []


async def test_the_brokers_own_topics_are_marked(node: KafkaNode) -> None:
    await node.create("t")
    told = {topic.name: topic.is_internal for topic in (await ask(node, None)).topics}
    assert told == {**dict.fromkeys(INTERNAL_TOPICS, True), "t": False}


async def test_an_unknown_topic_is_made_and_works_at_once(node: KafkaNode) -> None:
    [told] = (await ask(node, ["fresh"])).topics
    assert (told.error_code, len(told.partitions)) == (0, 1)
    assert told.partitions[0].leader_id == NODE
    assert (await node.append("fresh", 0, 1)).high_watermark == 1


async def test_an_unknown_topic_is_not_made_when_the_client_forbids_it(node: KafkaNode) -> None:
    [told] = (await ask(node, ["fresh"], may_create=False)).topics
    assert reason_of(told.error_code) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert "fresh" not in node.broker.topics


async def test_versions_before_4_cannot_forbid_it(node: KafkaNode) -> None:
    [told] = (await ask(node, ["fresh"], 3)).topics
    assert told.error_code == 0


async def test_an_unknown_topic_is_not_made_when_the_broker_forbids_it(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path / "sub", topics=TopicSettings(auto_create=False)) as node:
        [told] = (await ask(node, ["fresh"])).topics
        assert reason_of(told.error_code) is Reason.UNKNOWN_TOPIC_OR_PARTITION
        [bad] = (await ask(node, ["a/b"])).topics
        assert reason_of(bad.error_code) is Reason.INVALID_TOPIC


@pytest.mark.parametrize("may_create", [True, False])
async def test_a_bad_name_is_an_invalid_topic_and_no_error_of_the_others(node: KafkaNode, may_create: bool) -> None:
    await node.create("good")
    answer = await ask(node, ["a/b", "good", ""], may_create=may_create)
    told = {topic.name: reason_of(topic.error_code) for topic in answer.topics}
    assert told == {"a/b": Reason.INVALID_TOPIC, "good": None, "": Reason.INVALID_TOPIC}


async def test_a_name_that_collides_is_not_made(node: KafkaNode) -> None:
    await node.create("a.b")
    [told] = (await ask(node, ["a_b"])).topics
    assert reason_of(told.error_code) is Reason.INVALID_TOPIC


async def test_a_topic_named_twice_is_told_once(node: KafkaNode) -> None:
    assert len((await ask(node, ["t", "t"])).topics) == 1


async def test_clients_that_make_one_topic_at_the_same_time_are_told_the_same(node: KafkaNode) -> None:
    answers = await asyncio.gather(*(ask(node, ["fresh"]) for _ in range(10)))
    assert {(answer.topics[0].error_code, answer.topics[0].topic_id) for answer in answers} == {
        (0, node.broker.topics.require("fresh").topic_id.bytes)
    }


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_a_topic_can_be_asked_for_by_its_id(node: KafkaNode, version: int) -> None:
    topic = await node.create("t", 2)
    name = None if version >= 12 else ""
    wanted = [MetadataRequestTopic(topic.topic_id.bytes, name), MetadataRequestTopic(b"\x01" * 16, name)]
    answer = await node.ask(KEY, MetadataRequest(wanted), version)
    known, unknown = answer.topics
    assert (known.error_code, known.name, len(known.partitions)) == (0, "t", 2)
    assert (reason_of(unknown.error_code), unknown.topic_id) == (Reason.UNKNOWN_TOPIC_ID, b"\x01" * 16)


async def test_neither_a_name_nor_an_id_is_a_bad_request(node: KafkaNode) -> None:
    answer = await node.ask(KEY, MetadataRequest([MetadataRequestTopic(UUID_ZERO, None)]), 12)
    assert reason_of(answer.topics[0].error_code) is Reason.INVALID_REQUEST


async def test_operations_are_told_when_asked_for(node: KafkaNode) -> None:
    await node.create("t")
    silent, told = await ask(node, ["t"], 10), await ask(node, ["t"], 10, operations=True)
    assert silent.cluster_authorized_operations == silent.topics[0].topic_authorized_operations == -(2**31)
    # The sets that Kafka without an authorizer answers with.
    assert (told.cluster_authorized_operations, told.topics[0].topic_authorized_operations) == (8096, 3576)


async def test_a_partition_without_a_record_has_no_leader(node: KafkaNode) -> None:
    topic = await node.create("t", 2)
    node.broker.topics._partitions._records[topic.topic_id].pop()
    [told] = (await ask(node, ["t"])).topics
    first, second = told.partitions
    assert (first.error_code, first.leader_id) == (0, NODE)
    assert (reason_of(second.error_code), second.leader_id) == (Reason.LEADER_NOT_AVAILABLE, -1)
