"""TopicStats, GroupStatus and DeliveryStatus: the state of a topic, of a group and of one record."""

import re
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.groups import group_in
from penstock.operations.groups import DescribeGroup
from penstock.operations.queues import ExplainRecord, QueueStatus, WhyState
from penstock.operations.topics import DescribeTopicStats
from penstock.wire.mq import ids
from penstock.wire.mq.mq_generated import (
    DeliveryStatusRequest,
    DeliveryStatusResponse,
    GroupMember,
    GroupPartition,
    GroupQueue,
    GroupStatusRequest,
    GroupStatusResponse,
    PartitionStats,
    QueueOwner,
    QueuePartition,
    TopicPartitions,
    TopicStatsRequest,
    TopicStatsResponse,
)

_PLACE: Final = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9})@(?P<offset>[0-9]{1,18})", re.ASCII)


async def topic_stats(request: TopicStatsRequest, call: Call) -> TopicStatsResponse:
    """Sizes, offsets and rates."""
    found = await call.broker.do(DescribeTopicStats(request.topic), call.caller)
    return TopicStatsResponse(
        topic=found.topic,
        partitions=[
            PartitionStats(
                partition=partition.partition,
                start_offset=partition.start_offset,
                end_offset=partition.end_offset,
                size_bytes=partition.size_bytes,
            )
            for partition in found.partitions
        ],
        records=found.records,
        size_bytes=found.size_bytes,
        records_in_per_second=found.records_in_per_second,
        bytes_in_per_second=found.bytes_in_per_second,
        records_out_per_second=found.records_out_per_second,
        bytes_out_per_second=found.bytes_out_per_second,
    )


async def group_status(request: GroupStatusRequest, call: Call) -> GroupStatusResponse:
    """Members, offsets and lag, and the queues that the group works."""
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


async def delivery_status(request: DeliveryStatusRequest, call: Call) -> DeliveryStatusResponse:
    """What became of one record in a group, and why it is or is not being delivered."""
    topic, partition, offset = _place(request, call)
    why = await call.broker.do(ExplainRecord(topic, partition, offset, group_in(request)), call.caller)
    if why.state is WhyState.NO_SUCH_TOPIC:
        raise topic_not_found(topic)
    return DeliveryStatusResponse(
        state=why.state.value,
        sentence=why.sentence,
        owner=why.owner,
        until_ms=why.until_ms,
        attempts=why.attempts,
        last_error=why.last_error,
    )


def _place(request: DeliveryStatusRequest, call: Call) -> tuple[str, int, int]:
    if not request.message_id:
        return request.topic, request.partition, request.offset
    if request.topic or request.partition or request.offset:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "message_id includes topic, partition and offset: set either message_id or the other three",
        )
    found = _PLACE.fullmatch(request.message_id)
    if found is not None:
        return found["topic"], int(found["partition"]), int(found["offset"])
    parsed = ids.parse(request.message_id)
    if parsed is None:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"{request.message_id[:64]!r} is not a message id; use the id of a message, or its position such as orders/0@42",
        )
    for topic in call.broker.topics:
        partition = ids.partition_of(parsed, topic.topic_id, topic.partition_count)
        if partition is not None:
            return topic.name, partition, parsed.offset
    raise PenstockError(
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
        f"No topic has a message {request.message_id}: its topic was deleted, or the id is from another cluster",
    )
