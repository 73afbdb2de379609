import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_groups_generated import DescribeGroupsRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import SUBSCRIPTION, stable

KEY = ApiKey.DESCRIBE_GROUPS


@pytest.mark.parametrize("version", versions(KEY))
async def test_groups_are_described_in_every_version(node: KafkaNode, version: int) -> None:
    joined = await stable(node)
    group, unknown = (await node.ask(KEY, DescribeGroupsRequest(["g", "nobody"]), version)).groups
    assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"mine")
    assert (unknown.group_id, unknown.group_state, unknown.members) == ("nobody", "Dead", [])
    if version >= 6:
        assert reason_of(unknown.error_code) is Reason.GROUP_ID_NOT_FOUND
        assert "nobody" in unknown.error_message
    else:
        assert unknown.error_code == 0


@pytest.mark.parametrize(("asked", "told"), [(False, -(2**31)), (True, 0b1101_0100_1000)])
async def test_the_allowed_operations_are_told_to_who_asks(node: KafkaNode, asked: bool, told: int) -> None:
    await stable(node)
    (group,) = (await node.ask(KEY, DescribeGroupsRequest(["g"], asked), 6)).groups
    assert group.authorized_operations == told


async def test_a_node_that_does_not_have_the_group_says_so(node: KafkaNode) -> None:
    for partition in list(node.broker.groups.family.shards):
        node.broker.groups.family.unload(partition)
    (group,) = (await node.ask(KEY, DescribeGroupsRequest(["g"]), 6)).groups
    assert reason_of(group.error_code) is Reason.NOT_COORDINATOR
