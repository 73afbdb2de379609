import pytest

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
TOPIC, BROKER = 2, 4
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


async def test_the_brokers_configs_and_other_resources_do_not_change(node: KafkaNode) -> None:
    await node.create("twice")
    change = ("num.partitions", SET, "5")
    answers = await ask(
        node,
        resource(str(NODE), change, kind=BROKER),
        resource("", change, kind=BROKER),
        resource("99", change, kind=BROKER),
        resource("group", change, kind=32),
        resource("twice", ("retention.ms", SET, "1")),
        resource("twice", ("segment.ms", SET, "1")),
    )
    assert {reason_of(answer.error_code) for answer in answers} == {Reason.INVALID_REQUEST}
    assert "TOML" in (answers[0].error_message or "")
    assert node.broker.topics.require("twice").overrides == {}
