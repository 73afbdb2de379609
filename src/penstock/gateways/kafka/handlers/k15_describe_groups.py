"""DescribeGroups (API key 15): the state and the members of groups.

Version 3 adds the allowed operations, 4 static members, 5 is flexible, 6 says of an unknown group that it is not found, where
earlier ones say that it is dead.
"""

from typing import Final

from penstock.core.groups.requests import GroupDescription, GroupState
from penstock.errors import Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import code_for
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_groups_generated import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseGroup,
    DescribeGroupsResponseMember,
)

KEY: Final = ApiKey.DESCRIBE_GROUPS

_NOT_ASKED: Final = -(2**31)
_READ, _DELETE, _DESCRIBE = 3, 6, 8
_EVERYTHING: Final = 1 << _READ | 1 << _DELETE | 1 << _DESCRIBE
"""Without access control everybody may do all that can be done to a group."""


def handle(request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    """Each group by itself."""
    allowed = _EVERYTHING if request.include_authorized_operations else _NOT_ASKED
    return DescribeGroupsResponse(
        groups=[
            _group(context.broker.groups.describe(GroupId(group_id)), allowed, context.version)
            for group_id in request.groups
        ]
    )


def _group(group: GroupDescription, allowed: int, version: int) -> DescribeGroupsResponseGroup:
    reason, text = group.reason, None
    if reason is None and group.state is GroupState.DEAD and version >= 6:
        reason, text = Reason.GROUP_ID_NOT_FOUND, f"There is no group {group.group_id}."
    return DescribeGroupsResponseGroup(
        error_code=code_for(reason),
        error_message=text,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        authorized_operations=allowed,
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
