import pytest

from penstock.core.dynamic_configs import ALL_BROKERS
from penstock.errors import Reason
from penstock.wire.kafka.alter_configs_generated import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    AlterConfigsResponseResource,
)
from penstock.wire.kafka.apis import ApiKey
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.ALTER_CONFIGS
TOPIC, BROKER, GROUP = 2, 4, 32


def resource(kind: int, name: str, *configs: tuple[str, str | None]) -> AlterConfigsRequestResource:
    return AlterConfigsRequestResource(kind, name, [AlterConfigsRequestConfig(*config) for config in configs])


async def ask(
    node: KafkaNode, *resources: AlterConfigsRequestResource, version: int = 2, validate_only: bool = False
) -> list[AlterConfigsResponseResource]:
    request = AlterConfigsRequest(list(resources), validate_only)
    answers: list[AlterConfigsResponseResource] = (await node.ask(KEY, request, version)).responses
    return answers


@pytest.mark.parametrize("version", versions(KEY))
async def test_what_is_not_named_goes_back_to_its_default(node: KafkaNode, version: int) -> None:
    await node.create("t", retention_ms="5", segment_ms="6")
    [answer] = await ask(node, resource(TOPIC, "t", ("segment.ms", "7")), version=version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert node.broker.topics.require("t").overrides == {"segment.ms": "7"}


async def test_a_running_partition_follows_the_change(node: KafkaNode) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 1)
    await ask(node, resource(TOPIC, "t", ("max.message.bytes", "100")))
    assert partition.topic.config.max_message_bytes == 100


async def test_validate_only_changes_nothing(node: KafkaNode) -> None:
    await node.create("t", retention_ms="5")
    good, bad = await ask(
        node, resource(TOPIC, "t"), resource(TOPIC, "nobody", ("retention.ms", "1")), validate_only=True
    )
    assert (good.error_code, reason_of(bad.error_code)) == (0, Reason.UNKNOWN_TOPIC_OR_PARTITION)
    assert node.broker.topics.require("t").overrides == {"retention.ms": "5"}


async def test_each_resource_is_changed_or_refused_by_itself(node: KafkaNode) -> None:
    for name in ("good", "bad", "null", "config-twice", "twice"):
        await node.create(name)
    answers = await ask(
        node,
        resource(TOPIC, "good", ("retention.ms", "1")),
        resource(TOPIC, "bad", ("retention.ms", "1"), ("nonsense", "1")),
        resource(TOPIC, "null", ("retention.ms", None)),
        resource(TOPIC, "config-twice", ("retention.ms", "1"), ("retention.ms", "2")),
        resource(TOPIC, "twice", ("retention.ms", "1")),
        resource(TOPIC, "twice", ("retention.ms", "2")),
        resource(TOPIC, "a/b"),
        resource(BROKER, str(NODE), ("num.partitions", "5")),
        resource(BROKER, "", ("max.connections", "5")),
        resource(GROUP, "g", ("share.isolation.level", "read_committed")),
        resource(8, str(NODE)),
    )
    assert [reason_of(answer.error_code) for answer in answers] == [
        None,
        Reason.INVALID_CONFIG,
        Reason.INVALID_CONFIG,
        Reason.INVALID_REQUEST,
        Reason.INVALID_REQUEST,
        Reason.INVALID_REQUEST,
        Reason.INVALID_TOPIC,
        Reason.INVALID_REQUEST,
        None,
        None,
        Reason.INVALID_REQUEST,
    ]
    assert "configuration file" in (answers[7].error_message or "")
    assert node.broker.configs.values(ALL_BROKERS) == {"max.connections": "5"}
    [answer] = await ask(node, resource(BROKER, "", ("log.segment.bytes", "2000000")))
    assert answer.error_code == 0
    assert node.broker.configs.values(ALL_BROKERS) == {"log.segment.bytes": "2000000"}, "what is not named is gone"
    changed = {topic.name for topic in node.broker.topics if "retention.ms" in topic.overrides}
    assert changed == {"good"}
