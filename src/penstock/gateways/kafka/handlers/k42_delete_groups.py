"""DeleteGroups (API key 42): groups without members, with their offsets. Version 2 is flexible."""

from asyncio import Future
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.errors import Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import code_for
from penstock.gateways.kafka.waiting import answer_later
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_groups_generated import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseResult,
)

KEY: Final = ApiKey.DELETE_GROUPS


def handle(request: DeleteGroupsRequest, context: RequestContext) -> Future[DeleteGroupsResponse]:
    """Answered once the groups are gone for good."""
    group_ids = [GroupId(name) for name in request.groups_names]
    return answer_later(partial(context.broker.groups.delete_groups, group_ids), partial(_response, group_ids))


def _response(group_ids: list[GroupId], answers: Mapping[GroupId, Reason | None]) -> DeleteGroupsResponse:
    results = []
    for group_id in dict.fromkeys(group_ids):
        reason = answers[group_id]
        code = code_for(reason)
        results.append(DeleteGroupsResponseResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)
