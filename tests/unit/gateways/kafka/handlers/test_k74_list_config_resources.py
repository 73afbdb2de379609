from penstock.core.dynamic_configs import ConfigResource, ResourceKind
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_config_resources_generated import ListConfigResourcesRequest
from tests.support.kafka_node import NODE, KafkaNode, reason_of

KEY = ApiKey.LIST_CONFIG_RESOURCES
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32


async def ask(node: KafkaNode, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    answer = await node.ask(KEY, ListConfigResourcesRequest(list(kinds)), version)
    assert answer.error_code == 0
    return [(each.resource_type, each.resource_name) for each in answer.config_resources]


async def test_resources_are_listed_by_type(node: KafkaNode) -> None:
    await node.create("t")
    await node.broker.configs.alter(
        ConfigResource(ResourceKind.GROUP, "g"),
        [ConfigChange("share.isolation.level", ChangeKind.SET, "read_committed")],
    )
    assert await ask(node, GROUP, BROKER, GROUP) == [(BROKER, str(NODE)), (GROUP, "g")]
    assert await ask(node, CLIENT_METRICS) == []
    listed = await ask(node)
    assert {(TOPIC, "t"), (TOPIC, "__consumer_offsets"), (BROKER, str(NODE)), (GROUP, "g")} <= set(listed)


async def test_version_0_asks_for_client_metrics_alone(node: KafkaNode) -> None:
    await node.create("t")
    assert await ask(node, version=0) == []


async def test_a_type_that_does_not_exist_is_refused(node: KafkaNode) -> None:
    answer = await node.ask(KEY, ListConfigResourcesRequest([77]), 1)
    assert reason_of(answer.error_code) is Reason.UNSUPPORTED_VERSION
    assert answer.config_resources == []
