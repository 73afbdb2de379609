import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.heartbeat_generated import HeartbeatRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import stable

KEY = ApiKey.HEARTBEAT


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_heartbeat_is_answered_in_every_version(node: KafkaNode, version: int) -> None:
    joined = await stable(node)
    request = HeartbeatRequest("g", joined.generation_id, joined.member_id)
    assert (await node.ask(KEY, request, version)).error_code == 0
    request.generation_id += 1
    assert reason_of((await node.ask(KEY, request, version)).error_code) is Reason.ILLEGAL_GENERATION
    request.member_id = "nobody"
    assert reason_of((await node.ask(KEY, request, version)).error_code) is Reason.UNKNOWN_MEMBER_ID


async def test_an_instance_id_is_checked(node: KafkaNode) -> None:
    joined = await stable(node)
    request = HeartbeatRequest("g", joined.generation_id, joined.member_id, "nobody")
    assert reason_of((await node.ask(KEY, request, 3)).error_code) is Reason.UNKNOWN_MEMBER_ID
