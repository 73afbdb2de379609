"""DeleteGroups (API key 42): groups without members, with their offsets. Version 2 is flexible."""

import asyncio
from asyncio import Future
from collections.abc import Awaitable
from functools import partial
from itertools import repeat

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import AT_ONCE_MAX
from penstock.operations.groups import DeleteGroups
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
    return context.later(DeleteGroups(tuple(group_ids)), partial(_response, context, group_ids))


def _response(
    context: RequestContext, group_ids: list[GroupId], found: tuple[Reason | None, ...] | PenstockError
) -> DeleteGroupsResponse:
    reasons = repeat(found) if isinstance(found, PenstockError) else found
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponseResult(group_id=group_id, error_code=context.code(reason))
            for group_id, reason in zip(group_ids, reasons, strict=False)
        ]
    )
