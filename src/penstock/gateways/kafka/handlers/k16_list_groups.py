"""ListGroups (API key 16): the groups of this node.

Version 3 is flexible, 4 adds the state and a filter by it, 5 the type and a filter by it.
"""

from typing import Final

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import GroupState, ListGroups
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_groups_generated import ListGroupsRequest, ListGroupsResponse, ListGroupsResponseGroup

_CLASSIC: Final = "classic"
_STATES: Final = {state.value.lower(): state.value for state in GroupState}


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """Those that the caller may see. States and types are case-insensitive; an unknown one matches nothing."""
    states = {_STATES[name.lower()] for name in request.states_filter if name.lower() in _STATES}
    matches_nothing = (request.states_filter and not states) or (
        request.types_filter and _CLASSIC not in (name.lower() for name in request.types_filter)
    )
    if matches_nothing:
        return ListGroupsResponse()
    try:
        groups = context.answer(ListGroups())
    except PenstockError as error:
        return ListGroupsResponse(error_code=context.code(error))
    return ListGroupsResponse(
        groups=[
            ListGroupsResponseGroup(
                group_id=group.group,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=_CLASSIC,
            )
            for group in groups
            if not states or group.state in states
        ]
    )
