"""DescribeGroups (API key 15): the state and the members of groups.

Version 3 adds the allowed operations, 4 static members, 5 is flexible, 6 has an error for an unknown group, which earlier versions
describe as dead.
"""

from collections.abc import Awaitable

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import OPERATIONS_NOT_REQUESTED, RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import respond
from penstock.operations.groups import DescribeMembers, GroupState
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_groups_generated import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseGroup,
    DescribeGroupsResponseMember,
)


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
def handle(
    request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse | Awaitable[DescribeGroupsResponse]:
    """Each group by itself, and once, however often it is named, because it may be a large answer."""
    groups = list(dict.fromkeys(request.groups))
    return respond(
        groups,
        lambda group_id: _describe(group_id, request, context),
        lambda found: DescribeGroupsResponse(groups=found),
    )


def _describe(group_id: str, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponseGroup:
    try:
        group = context.answer(DescribeMembers(GroupId(group_id)))
    except PenstockError as error:
        return DescribeGroupsResponseGroup(
            group_id=group_id,
            error_code=context.code(error),
            error_message=error.text,
            authorized_operations=OPERATIONS_NOT_REQUESTED,
        )
    reason, text = None, None
    if group.state is GroupState.DEAD and context.version >= 6:
        reason, text = Reason.GROUP_ID_NOT_FOUND, f"There is no group {group_id}."
    return DescribeGroupsResponseGroup(
        error_code=context.code(reason),
        error_message=text,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        authorized_operations=context.group_operations(group_id)
        if request.include_authorized_operations
        else OPERATIONS_NOT_REQUESTED,
        members=[
            DescribeGroupsResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )
