"""Heartbeat (API key 12): keep a member in its group, or have it join again.

Version 3 adds static members, 4 is flexible.
"""

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import ClassicHeartbeat
from penstock.types import GroupId, MemberId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.heartbeat_generated import HeartbeatRequest, HeartbeatResponse


@handles(ApiKey.HEARTBEAT, versions=(0, 4))
def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Answered at once."""
    heartbeat = ClassicHeartbeat(
        GroupId(request.group_id), MemberId(request.member_id), request.generation_id, request.group_instance_id
    )
    try:
        context.answer(heartbeat)
    except PenstockError as error:
        return HeartbeatResponse(error_code=context.code(error))
    return HeartbeatResponse()
