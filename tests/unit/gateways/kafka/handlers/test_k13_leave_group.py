import pytest

from penstock.errors import Reason
from penstock.operations.groups import GroupState
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.leave_group_generated import LeaveGroupRequest, LeaveGroupRequestMember
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import join_request, stable

KEY = ApiKey.LEAVE_GROUP


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_member_leaves_in_every_version(node: KafkaNode, version: int) -> None:
    joined = await stable(node)
    request = LeaveGroupRequest("g", [LeaveGroupRequestMember(joined.member_id)], joined.member_id)
    answer = await node.ask(KEY, request, version)
    assert answer.error_code == 0
    if version >= 3:
        assert [(each.member_id, each.error_code) for each in answer.members] == [(joined.member_id, 0)]
    assert node.broker.groups.describe(GroupId("g")).state is GroupState.EMPTY
    answer = await node.ask(KEY, request, version)
    code = answer.members[0].error_code if version >= 3 else answer.error_code
    assert reason_of(code) is Reason.UNKNOWN_MEMBER_ID


async def test_a_static_member_is_removed_by_its_instance_id(node: KafkaNode) -> None:
    await node.ask(ApiKey.JOIN_GROUP, join_request(group_instance_id="i"), 9)
    request = LeaveGroupRequest("g", [LeaveGroupRequestMember("", "i"), LeaveGroupRequestMember("", "other")])
    answer = await node.ask(KEY, request, 5)
    assert answer.error_code == 0
    assert [(each.group_instance_id, reason_of(each.error_code)) for each in answer.members] == [
        ("i", None),
        ("other", Reason.UNKNOWN_MEMBER_ID),
    ]


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_group_without_a_name_is_refused_as_a_whole(node: KafkaNode, version: int) -> None:
    request = LeaveGroupRequest("", [LeaveGroupRequestMember("m")], "m")
    assert reason_of((await node.ask(KEY, request, version)).error_code) is Reason.INVALID_GROUP_ID
