import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.consumer_group_heartbeat_generated import ConsumerGroupHeartbeatRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_member_is_refused_for_good_and_told_what_to_set(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, ConsumerGroupHeartbeatRequest(group_id="g", member_id="m"), version)
    assert reason_of(answer.error_code) is Reason.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in answer.error_message
