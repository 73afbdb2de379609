import pytest

from penstock.core.topics.names import INTERNAL_TOPICS, OFFSETS_TOPIC
from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_topics_generated import DeleteTopicsRequest, DeleteTopicsRequestTopic
from penstock.wire.kafka.primitives import UUID_ZERO
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.DELETE_TOPICS


@pytest.mark.parametrize("version", versions(KEY))
async def test_topics_are_deleted_by_name_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("gone", 3)
    await node.create("stays")
    names = ["gone", "nobody", "a/b", OFFSETS_TOPIC]
    request = DeleteTopicsRequest([DeleteTopicsRequestTopic(name) for name in names], names, 1000)
    answers = (await node.ask(KEY, request, version)).responses
    assert [(answer.name, reason_of(answer.error_code)) for answer in answers] == [
        ("gone", None),
        ("nobody", Reason.UNKNOWN_TOPIC_OR_PARTITION),
        ("a/b", Reason.INVALID_TOPIC),
        (OFFSETS_TOPIC, Reason.INVALID_REQUEST),
    ]
    if version >= 5:
        assert [answer.error_message is None for answer in answers] == [True, False, False, False]
    assert [topic.name for topic in node.broker.topics] == [*sorted(INTERNAL_TOPICS), "stays"]


async def test_topics_are_deleted_by_id(node: KafkaNode) -> None:
    topic = await node.create("t")
    wanted = [DeleteTopicsRequestTopic(None, topic.topic_id.bytes), DeleteTopicsRequestTopic(None, b"\x01" * 16)]
    known, unknown = (await node.ask(KEY, DeleteTopicsRequest(wanted), 6)).responses
    assert (known.name, known.topic_id, known.error_code) == ("t", topic.topic_id.bytes, 0)
    assert (unknown.name, reason_of(unknown.error_code)) == (None, Reason.UNKNOWN_TOPIC_ID)
    assert "t" not in node.broker.topics


async def test_a_topic_is_named_one_way_only(node: KafkaNode) -> None:
    topic = await node.create("t")
    both = DeleteTopicsRequestTopic("t", topic.topic_id.bytes)
    neither = DeleteTopicsRequestTopic(None, UUID_ZERO)
    answers = (await node.ask(KEY, DeleteTopicsRequest([both, neither]), 6)).responses
    assert [reason_of(answer.error_code) for answer in answers] == [Reason.INVALID_REQUEST] * 2
    assert "t" in node.broker.topics


async def test_records_of_a_deleted_topic_do_not_come_back_with_its_name(node: KafkaNode) -> None:
    await node.create("t")
    await node.append("t", 0, 3)
    await node.ask(KEY, DeleteTopicsRequest([DeleteTopicsRequestTopic("t")]), 6)
    await node.create("t")
    assert node.broker.partition("t", 0).high_watermark == 0
