"""LeaveGroup (API key 13): remove members, whose partitions are assigned to the others at once.

Version 3 removes several members, by id or (static ones) by instance id, 4 is flexible, 5 carries a reason for the log.
"""

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import LeaveClassicGroup, LeavingMember
from penstock.types import GroupId, MemberId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.leave_group_generated import LeaveGroupRequest, LeaveGroupResponse, LeaveGroupResponseMember


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5))
def handle(request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    """One answer for each member; before version 3 there is one member, whose error is that of the response."""
    if context.version < 3:
        leaving: tuple[LeavingMember, ...] = (LeavingMember(MemberId(request.member_id)),)
    else:
        leaving = tuple(
            LeavingMember(MemberId(member.member_id), member.group_instance_id) for member in request.members
        )
    try:
        answers = context.answer(LeaveClassicGroup(GroupId(request.group_id), leaving))
    except PenstockError as error:
        return LeaveGroupResponse(error_code=context.code(error))
    codes = [context.code(reason) for reason in answers]
    if context.version < 3:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponseMember(member_id=member.member_id, group_instance_id=member.instance_id, error_code=code)
            for member, code in zip(leaving, codes, strict=True)
        ]
    )
