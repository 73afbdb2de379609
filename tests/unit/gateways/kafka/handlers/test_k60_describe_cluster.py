import pytest

from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_cluster_generated import DescribeClusterRequest
from tests.support.kafka_node import NODE, KafkaNode, versions

KEY = ApiKey.DESCRIBE_CLUSTER


@pytest.mark.parametrize("version", versions(KEY))
@pytest.mark.parametrize(("asked", "operations"), [(False, -(2**31)), (True, 8096)])
async def test_this_broker_is_the_cluster_in_every_version(
    node: KafkaNode, version: int, asked: bool, operations: int
) -> None:
    answer = await node.ask(KEY, DescribeClusterRequest(asked), version)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "penstock-test", NODE)
    [broker] = answer.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (NODE, "127.0.0.1", 9092, None)
    assert answer.cluster_authorized_operations == operations


async def test_a_listener_for_clients_knows_no_controllers(node: KafkaNode) -> None:
    answer = await node.ask(KEY, DescribeClusterRequest(endpoint_type=2), 1)
    assert (answer.error_code, answer.brokers, answer.endpoint_type) == (114, [], 1)
    assert answer.error_message
