"""SyncGroup (API key 14): the leader sends the assignments, and every member gets its own.

Version 3 adds static members, 4 is flexible, 5 checks and returns the type and name of the protocol.
"""

from asyncio import Future
from functools import partial

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import SyncClassicGroup, SyncResult
from penstock.types import GroupId, MemberId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sync_group_generated import SyncGroupRequest, SyncGroupResponse


@handles(ApiKey.SYNC_GROUP, versions=(0, 5))
def handle(request: SyncGroupRequest, context: RequestContext) -> Future[SyncGroupResponse]:
    """Answered once the leader's assignment is durable."""
    sync = SyncClassicGroup(
        group=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={MemberId(each.member_id): each.assignment for each in request.assignments},
    )
    return context.later(sync, partial(_response, context))


def _response(context: RequestContext, result: SyncResult | PenstockError) -> SyncGroupResponse:
    if isinstance(result, PenstockError):
        return SyncGroupResponse(error_code=context.code(result))
    return SyncGroupResponse(
        error_code=context.code(result.reason),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
