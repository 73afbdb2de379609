"""CommitOffset: the offset that a group reads next."""

from typing import Any

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.operations.groups import CommitOffset
from penstock.wire.mq.mq_generated import CommitOffsetRequest, CommitOffsetResponse


async def commit_offset(request: CommitOffsetRequest, call: Call) -> CommitOffsetResponse:
    """Answered once it is durable. It may be past the end of the partition."""
    operation = CommitOffset(group_in(request), request.topic, request.partition, request.offset)
    await call.broker.do(operation, call.caller)
    return CommitOffsetResponse(success=True)


def group_in(request: Any) -> str:
    """The group that a request names."""
    group: str = request.consumer_group
    if not group:
        raise PenstockError(Reason.INVALID_GROUP_ID, "consumer_group is empty: specify the group")
    return group
