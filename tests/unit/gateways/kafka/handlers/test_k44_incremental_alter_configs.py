import pytest

from penstock.core.dynamic_configs import ALL_BROKERS, ConfigResource, ResourceKind
from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.incremental_alter_configs_generated import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponseResource,
)
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(
    name: str, *configs: tuple[str, int, str | None], kind: int = TOPIC
) -> IncrementalAlterConfigsRequestResource:
    changes = [IncrementalAlterConfigsRequestConfig(*config) for config in configs]
    return IncrementalAlterConfigsRequestResource(kind, name, changes)


async def ask(
    node: KafkaNode, *resources: IncrementalAlterConfigsRequestResource, version: int = 1, validate_only: bool = False
) -> list[IncrementalAlterConfigsResponseResource]:
    request = IncrementalAlterConfigsRequest(list(resources), validate_only)
    answers: list[IncrementalAlterConfigsResponseResource] = (await node.ask(KEY, request, version)).responses
    return answers


@pytest.mark.parametrize("version", versions(KEY))
async def test_only_what_is_named_changes(node: KafkaNode, version: int) -> None:
    await node.create("t", retention_ms="5", segment_ms="6")
    changes = ("retention.ms", DELETE, None), ("retention.bytes", SET, "8"), ("cleanup.policy", APPEND, "compact")
    [answer] = await ask(node, resource("t", *changes), version=version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert node.broker.topics.require("t").overrides == {
        "segment.ms": "6",
        "retention.bytes": "8",
        "cleanup.policy": "delete,compact",
    }
    await ask(node, resource("t", ("cleanup.policy", SUBTRACT, "delete")))
    assert node.broker.topics.require("t").config.is_compacted


@pytest.mark.parametrize("kind", [TOPIC, BROKER, GROUP])
@pytest.mark.parametrize("text", ["\0" * 32_000, "n" * 32_767])
async def test_long_names_and_values_are_refused_with_a_text_that_fits(node: KafkaNode, kind: int, text: str) -> None:
    await node.create("t")
    name = {TOPIC: "t", BROKER: "", GROUP: "g"}[kind]
    number = {TOPIC: "retention.ms", BROKER: "log.retention.ms", GROUP: "share.delivery.count.limit"}[kind]
    changes = [[(text, SET, "1")], [(text, DELETE, None)] * 2, [(number, SET, text)]]
    for configs in changes:
        [answer] = await ask(node, resource(name, *configs, kind=kind), version=0)
        assert reason_of(answer.error_code) in (Reason.INVALID_CONFIG, Reason.INVALID_REQUEST)
        assert answer.error_message
        assert len(answer.error_message) < 1000


async def test_a_duration_of_a_group_is_bounded(node: KafkaNode) -> None:
    endless = f"by_duration:P{'1' * 900_000}D"
    [answer] = await ask(node, resource("g", ("share.auto.offset.reset", SET, endless), kind=GROUP))
    assert reason_of(answer.error_code) is Reason.INVALID_CONFIG
    assert node.broker.configs.group_names() == []


async def test_validate_only_changes_nothing(node: KafkaNode) -> None:
    await node.create("t")
    good, bad = await ask(
        node, resource("t", ("retention.ms", SET, "5")), resource("u", ("retention.ms", SET, "5")), validate_only=True
    )
    assert (good.error_code, reason_of(bad.error_code)) == (0, Reason.UNKNOWN_TOPIC_OR_PARTITION)
    assert node.broker.topics.require("t").overrides == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("retention.ms", SET, "x")], Reason.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("segment.bytes", SET, "1")], Reason.INVALID_CONFIG),
        ([("nonsense", SET, "1")], Reason.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], Reason.INVALID_CONFIG),
        ([("retention.ms", SET, None)], Reason.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], Reason.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], Reason.INVALID_REQUEST),
    ],
)
async def test_a_change_that_cannot_be_is_refused_whole(
    node: KafkaNode, changes: list[tuple[str, int, str | None]], reason: Reason
) -> None:
    await node.create("t")
    [answer] = await ask(node, resource("t", *changes))
    assert reason_of(answer.error_code) is reason
    assert answer.error_message
    assert node.broker.topics.require("t").overrides == {}


async def test_configs_that_cannot_change_and_other_resources_are_refused(node: KafkaNode) -> None:
    await node.create("twice")
    change = ("num.partitions", SET, "5")
    answers = await ask(
        node,
        resource(str(NODE), change, kind=BROKER),
        resource("", ("num.io.threads", SET, "5"), kind=BROKER),
        resource("99", ("max.connections", SET, "5"), kind=BROKER),
        resource("x", change, kind=8),
        resource("twice", ("retention.ms", SET, "1")),
        resource("twice", ("segment.ms", SET, "1")),
    )
    assert {reason_of(answer.error_code) for answer in answers} == {Reason.INVALID_REQUEST}
    assert "Set topics.partitions in the broker's configuration file" in (answers[0].error_message or "")
    assert "no setting for it" in (answers[1].error_message or "")
    assert node.broker.topics.require("twice").overrides == {}


async def test_configs_of_brokers_and_groups_are_set_and_deleted(node: KafkaNode) -> None:
    async def change(kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False) -> None:
        [answer] = await ask(node, resource(name, *changes, kind=kind), validate_only=validate_only)
        assert (answer.error_code, answer.error_message) == (0, None)

    configs, here = node.broker.configs, ConfigResource(ResourceKind.BROKER, str(NODE))
    await change(BROKER, str(NODE), ("leader.replication.throttled.rate", SET, "1000"))
    await change(BROKER, "", ("log.cleanup.policy", APPEND, "compact"), ("message.max.bytes", SET, "5"))
    await change(GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "6000"))
    await change(GROUP, "h", ("consumer.heartbeat.interval.ms", SET, "6000"), validate_only=True)
    assert configs.values(here) == {"leader.replication.throttled.rate": "1000"}
    assert configs.values(ALL_BROKERS) == {"log.cleanup.policy": "delete,compact", "message.max.bytes": "5"}
    assert configs.group_names() == ["g"]
    await change(
        BROKER, str(NODE), ("leader.replication.throttled.rate", DELETE, None), ("max.connections", DELETE, None)
    )
    await change(GROUP, "g", ("consumer.heartbeat.interval.ms", DELETE, None))
    assert (configs.values(here), configs.group_names()) == ({}, [])
