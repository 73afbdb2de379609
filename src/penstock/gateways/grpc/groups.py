"""Consumer groups: CommitOffset and GroupStatus."""

from typing import Any

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.operations.groups import CommitOffset, DescribeGroup
from penstock.operations.queues import QueueStatus
from penstock.wire.mq.mq_generated import (
    CommitOffsetRequest,
    CommitOffsetResponse,
    GroupMember,
    GroupPartition,
    GroupQueue,
    GroupStatusRequest,
    GroupStatusResponse,
    QueueOwner,
    QueuePartition,
    TopicPartitions,
)


async def commit_offset(request: CommitOffsetRequest, call: GrpcCall) -> CommitOffsetResponse:
    """Set the offset that a group reads next, which may be past the end; answered once it is stored."""
    operation = CommitOffset(group_in(request), request.topic, request.partition, request.offset)
    await call.broker.do(operation, call.caller)
    return CommitOffsetResponse(success=True)


async def group_status(request: GroupStatusRequest, call: GrpcCall) -> GroupStatusResponse:
    """Show the members, offsets, lag and queues of a group."""
    group = group_in(request)
    found = await call.broker.do(DescribeGroup(group), call.caller)
    return GroupStatusResponse(
        consumer_group=group,
        state=found.state,
        members=[
            GroupMember(
                consumer_id=member.member_id,
                client=member.client_host,
                assigned=[TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in member.assignment],
            )
            for member in found.members
        ],
        members_left_out=found.members_left_out,
        partitions=[
            GroupPartition(
                topic=partition.topic,
                partition=partition.partition,
                committed_offset=partition.committed,
                end_offset=partition.end_offset,
                lag=partition.lag,
                lag_ms=partition.lag_ms,
                consumer_id=partition.member_id,
            )
            for partition in found.partitions
        ],
        queues=[_queue(queue) for queue in found.queues],
    )


def _queue(queue: QueueStatus) -> GroupQueue:
    return GroupQueue(
        topic=queue.topic,
        partitions=[
            QueuePartition(
                partition=partition.partition,
                floor=partition.floor,
                end_offset=partition.end,
                leased=partition.leased,
                waiting=partition.waiting,
                ready=partition.ready,
                moving=partition.moving,
                finished_above_floor=partition.finished_above_floor,
                lag=partition.lag,
            )
            for partition in queue.partitions
        ],
        owners=[
            QueueOwner(consumer_id=owner.owner, leased=owner.leased, streams=owner.workers) for owner in queue.owners
        ],
        in_flight_max=queue.in_flight_max,
    )


def group_in(request: Any) -> str:
    """The group in a request."""
    group: str = request.consumer_group
    if not group:
        raise PenstockError(Reason.INVALID_GROUP_ID, "The field consumer_group is empty: specify the group")
    return group
