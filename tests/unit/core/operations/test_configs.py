"""Configs of topics, groups and nodes: each is named by a field of its own, and needs the right on it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.topics.names import AUDIT_TOPIC
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.operations.configs import (
    AlterConfigs,
    ConfigEdit,
    DescribeConfigs,
    ListConfiguredResources,
    ReplaceConfigs,
)
from penstock.operations.operation import Action, Operation
from penstock.types import Gateway
from tests.support.access import CLUSTER, Guard, only
from tests.support.kafka_node import NODE, KafkaNode

CALLER = Caller(ANONYMOUS, Gateway.HTTP)
SET = 0


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        await started.create("t", retention_ms="5")
        yield started


async def refusal(node: KafkaNode, operation: Operation[object]) -> Reason:
    with pytest.raises(PenstockError) as refused:
        await node.broker.do(operation, CALLER)
    return refused.value.reason


@pytest.mark.parametrize(
    ("resource", "right"),
    [
        ({"topic": "t"}, "topic t"),
        ({"group": "g"}, "group g"),
        ({"node": str(NODE)}, CLUSTER),
        ({"node": ""}, CLUSTER),
    ],
)
async def test_configs_need_the_right_on_their_own_resource(
    node: KafkaNode, resource: dict[str, str], right: str
) -> None:
    kind = right.partition(" ")[0].upper()
    edit = ConfigEdit("retention.ms" if kind == "TOPIC" else "no.such.config", SET, "6")
    for action, operation in (
        (Action.DESCRIBE_CONFIGS, DescribeConfigs(**resource)),
        (Action.ALTER_CONFIGS, AlterConfigs((edit,), validate_only=True, **resource)),
        (Action.ALTER_CONFIGS, ReplaceConfigs({}, validate_only=True, **resource)),
    ):
        node.broker.access = Guard()
        assert await refusal(node, operation) is Reason[f"{kind}_AUTHORIZATION_FAILED"]
        node.broker.access = only((action, right))
        if isinstance(operation, AlterConfigs) and kind != "TOPIC":
            assert await refusal(node, operation) in (Reason.INVALID_CONFIG, Reason.INVALID_REQUEST)
        else:
            await node.broker.do(operation, CALLER)


async def test_what_names_no_resource_is_refused(node: KafkaNode) -> None:
    for operation in (DescribeConfigs(), AlterConfigs(()), ReplaceConfigs({})):
        assert await refusal(node, operation) is Reason.INVALID_REQUEST


async def test_what_was_set_is_described_and_changed(node: KafkaNode) -> None:
    assert await node.broker.do(DescribeConfigs(topic="t"), CALLER) == {"retention.ms": "5"}
    await node.broker.do(AlterConfigs((ConfigEdit("segment.ms", SET, "7"),), topic="t"), CALLER)
    assert await node.broker.do(DescribeConfigs(topic="t"), CALLER) == {"retention.ms": "5", "segment.ms": "7"}
    await node.broker.do(ReplaceConfigs({}, topic="t"), CALLER)
    assert await node.broker.do(DescribeConfigs(topic="t"), CALLER) == {}
    assert await refusal(node, AlterConfigs((ConfigEdit("segment.ms", 4),), topic="t")) is Reason.INVALID_REQUEST


async def test_resources_are_listed_as_far_as_the_caller_may_describe_them(node: KafkaNode) -> None:
    await node.create("u")
    node.broker.access = only((Action.DESCRIBE_CONFIGS, CLUSTER), (Action.DESCRIBE, "topic u"))
    found = await node.broker.do(ListConfiguredResources(), CALLER)
    assert (found.topics, found.groups) == (("u",), ())


async def test_the_configs_of_the_audit_log_need_the_right_to_alter_the_cluster(node: KafkaNode) -> None:
    await node.broker.topics.create(NewTopic(AUDIT_TOPIC), internal=True)
    edit = ConfigEdit("retention.ms", SET, "1")
    for operation in (
        AlterConfigs((edit,), topic=AUDIT_TOPIC),
        ReplaceConfigs({"retention.ms": "1"}, topic=AUDIT_TOPIC),
    ):
        topic = (Action.ALTER_CONFIGS, f"topic {AUDIT_TOPIC}")
        node.broker.access = only(topic)
        assert await refusal(node, operation) is Reason.CLUSTER_AUTHORIZATION_FAILED
        assert not node.broker.topics.require(AUDIT_TOPIC).overrides
        node.broker.access = only(topic, (Action.ALTER, CLUSTER))
        await node.broker.do(operation, CALLER)
        assert node.broker.topics.require(AUDIT_TOPIC).overrides == {"retention.ms": "1"}
        await node.broker.topics.replace_configs(AUDIT_TOPIC, {})
