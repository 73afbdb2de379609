"""DeleteGroups (API key 42): groups without members, with their offsets. Version 2 is flexible."""

from collections.abc import Awaitable, Sequence
from functools import partial

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import DeleteGroups
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_groups_generated import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseResult,
)


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2))
def handle(
    request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse | Awaitable[DeleteGroupsResponse]:
    """Answered once the groups are gone for good."""
    group_ids = [GroupId(name) for name in dict.fromkeys(request.groups_names)]
    return context.each(group_ids, DeleteGroups, partial(_response, context, group_ids))


def _response(
    context: RequestContext, group_ids: list[GroupId], found: Sequence[Reason | None] | PenstockError
) -> DeleteGroupsResponse:
    assert not isinstance(found, PenstockError)
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponseResult(group_id=group_id, error_code=context.code(reason))
            for group_id, reason in zip(group_ids, found, strict=True)
        ]
    )
