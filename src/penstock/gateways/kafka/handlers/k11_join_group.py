"""JoinGroup (API key 11): become a member of the next generation.

Version 1 separates the rebalance timeout from the session timeout, 4 gives new members their id before they join, 5 adds static
members, 6 is flexible, 7 answers with the protocol type and a null protocol on errors, 8 carries a reason for the log, 9 can tell
a returning static leader not to assign.
"""

from asyncio import Future
from functools import partial

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import JoinClassicGroup, JoinResult, MemberProtocol
from penstock.types import GroupId, MemberId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.join_group_generated import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember


@handles(ApiKey.JOIN_GROUP, versions=(0, 9))
def handle(request: JoinGroupRequest, context: RequestContext) -> Future[JoinGroupResponse]:
    """Answered when the generation begins."""
    version = context.version
    join = JoinClassicGroup(
        group=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        # Kafka's notation of an address, which tools show and compare.
        client_host=f"/{context.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in request.protocols),
        require_known_member_id=version >= 4,
        can_skip_assignment=version >= 9,
    )
    return context.later(join, partial(_response, context, join.member_id))


def _response(context: RequestContext, member_id: MemberId, result: JoinResult | PenstockError) -> JoinGroupResponse:
    if isinstance(result, PenstockError):
        result = JoinResult(result.reason, member_id)
    return JoinGroupResponse(
        error_code=context.code(result.reason),
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol if context.version >= 7 else result.protocol or "",
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )
