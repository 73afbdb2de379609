import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sync_group_generated import SyncGroupRequest, SyncGroupRequestAssignment
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import join

KEY = ApiKey.SYNC_GROUP


@pytest.mark.parametrize("version", versions(KEY))
async def test_the_leaders_assignment_is_given_in_every_version(node: KafkaNode, version: int) -> None:
    joined = await join(node)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(joined.member_id, b"mine")],
    )
    answer = await node.ask(KEY, request, version)
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


async def test_the_protocol_is_checked_where_the_version_has_it(node: KafkaNode) -> None:
    joined = await join(node)
    request = SyncGroupRequest("g", joined.generation_id, joined.member_id, protocol_name="sticky")
    answer = await node.ask(KEY, request, 5)
    assert reason_of(answer.error_code) is Reason.INCONSISTENT_GROUP_PROTOCOL
    assert answer.assignment == b""
    assert (await node.ask(KEY, request, 4)).error_code == 0
