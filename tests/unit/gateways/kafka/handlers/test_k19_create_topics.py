import pytest

from penstock.core.topics.config_table import TOPIC_CONFIGS
from penstock.core.topics.names import INTERNAL_TOPICS, OFFSETS_TOPIC
from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_topics_generated import (
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponseTopic,
)
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.CREATE_TOPICS


def wanted(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> CreateTopicsRequestTopic:
    named = [CreateTopicsRequestConfig(key.replace("_", "."), value) for key, value in configs.items()]
    return CreateTopicsRequestTopic(name, partitions, factor, [], named)


async def ask(
    node: KafkaNode, *topics: CreateTopicsRequestTopic, version: int = 7, validate_only: bool = False
) -> list[CreateTopicsResponseTopic]:
    request = CreateTopicsRequest(list(topics), 1000, validate_only)
    answers: list[CreateTopicsResponseTopic] = (await node.ask(KEY, request, version)).topics
    return answers


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_topic_is_made_in_every_version(node: KafkaNode, version: int) -> None:
    [answer] = await ask(node, wanted("t", 3, 1, retention_ms="5"), version=version)
    topic = node.broker.topics.require("t")
    assert (topic.partition_count, topic.config.retention_ms) == (3, 5)
    assert (answer.name, answer.error_code, answer.error_message) == ("t", 0, None)
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor) == (3, 1)
        assert answer.configs is not None
        told = {config.name: (config.value, config.config_source) for config in answer.configs}
        assert list(told) == list(TOPIC_CONFIGS)
        assert (told["retention.ms"], told["segment.ms"]) == (("5", 1), ("604800000", 5))
    if version >= 7:
        assert answer.topic_id == topic.topic_id.bytes


async def test_each_topic_is_made_or_refused_by_itself(node: KafkaNode) -> None:
    await node.create("there")
    answers = await ask(
        node,
        wanted("good"),
        wanted("there"),
        wanted("a/b"),
        wanted("none", 0),
        wanted("copies", 1, 3),
        wanted("config", nonsense="1"),
        wanted("null", retention_ms=None),
        wanted("twice"),
        wanted("twice"),
        wanted(OFFSETS_TOPIC),
    )
    assert {answer.name: reason_of(answer.error_code) for answer in answers} == {
        "good": None,
        "there": Reason.TOPIC_ALREADY_EXISTS,
        "a/b": Reason.INVALID_TOPIC,
        "none": Reason.INVALID_PARTITIONS,
        "copies": Reason.INVALID_REPLICATION_FACTOR,
        "config": Reason.INVALID_CONFIG,
        "null": Reason.INVALID_CONFIG,
        "twice": Reason.INVALID_REQUEST,
        OFFSETS_TOPIC: Reason.INVALID_TOPIC,
    }
    assert all(answer.error_message for answer in answers if answer.error_code)
    assert [topic.name for topic in node.broker.topics] == [*sorted(INTERNAL_TOPICS), "good", "there"]


async def test_validate_only_makes_nothing(node: KafkaNode) -> None:
    good, bad = await ask(node, wanted("t", 2), wanted("bad", 0), validate_only=True)
    assert (good.error_code, good.num_partitions) == (0, 2)
    assert reason_of(bad.error_code) is Reason.INVALID_PARTITIONS
    assert "t" not in node.broker.topics


async def test_assignments_by_hand_are_honoured_and_checked(node: KafkaNode) -> None:
    def assigned(name: str, *assignments: tuple[int, int]) -> CreateTopicsRequestTopic:
        by_hand = [CreateTopicsRequestAssignment(index, [broker]) for index, broker in assignments]
        return CreateTopicsRequestTopic(name, -1, -1, by_hand, [])

    good, elsewhere, twice = await ask(
        node,
        assigned("good", (0, NODE), (1, NODE)),
        assigned("elsewhere", (0, 3)),
        assigned("twice", (0, NODE), (0, NODE)),
    )
    assert (good.error_code, good.num_partitions) == (0, 2)
    assert reason_of(elsewhere.error_code) is reason_of(twice.error_code) is Reason.INVALID_REPLICA_ASSIGNMENT


async def test_a_config_named_twice_is_refused(node: KafkaNode) -> None:
    configs = [CreateTopicsRequestConfig("retention.ms", "1"), CreateTopicsRequestConfig("retention.ms", "2")]
    [answer] = await ask(node, CreateTopicsRequestTopic("t", 1, 1, [], configs))
    assert reason_of(answer.error_code) is Reason.INVALID_CONFIG


async def test_a_hundred_topics_in_one_request_are_all_made(node: KafkaNode) -> None:
    answers = await ask(node, *(wanted(f"t{n}") for n in range(100)))
    assert [answer.name for answer in answers] == [f"t{n}" for n in range(100)]
    assert not any(answer.error_code for answer in answers)
