"""DeleteGroups (API key 42): groups without members, with their offsets. Version 2 is flexible."""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Mapping
from functools import partial

from penstock.errors import Reason
from penstock.gateways.kafka.answers import answer_later
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import AT_ONCE_MAX
from penstock.operations.operation import Action
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_groups_generated import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseResult,
)


@handles(ApiKey.DELETE_GROUPS, versions=(0, 2))
def handle(request: DeleteGroupsRequest, context: RequestContext) -> Awaitable[DeleteGroupsResponse]:
    """Answered once the groups are gone for good."""
    group_ids = [GroupId(name) for name in dict.fromkeys(request.groups_names)]
    return _delete(group_ids, context) if len(group_ids) <= AT_ONCE_MAX else _delete_many(group_ids, context)


async def _delete_many(group_ids: list[GroupId], context: RequestContext) -> DeleteGroupsResponse:
    results: list[DeleteGroupsResponseResult] = []
    for first in range(0, len(group_ids), AT_ONCE_MAX):
        results += (await _delete(group_ids[first : first + AT_ONCE_MAX], context)).results
        await asyncio.sleep(0)
    return DeleteGroupsResponse(results=results)


def _delete(group_ids: list[GroupId], context: RequestContext) -> Future[DeleteGroupsResponse]:
    allowed = [group_id for group_id in group_ids if context.allows_group(Action.DELETE, group_id)]
    return answer_later(partial(context.broker.groups.delete_groups, allowed), partial(_response, context, group_ids))


def _response(
    context: RequestContext, group_ids: list[GroupId], answers: Mapping[GroupId, Reason | None]
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponseResult(
                group_id=group_id,
                # Those that were not handed on have no answer.
                error_code=context.code(answers.get(group_id, Reason.GROUP_AUTHORIZATION_FAILED)),
            )
            for group_id in group_ids
        ]
    )
