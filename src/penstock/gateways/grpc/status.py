"""TopicStats, GroupStatus and DeliveryStatus: how a topic, a group and one record stand."""

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.core import stats
from penstock.core.access import Action
from penstock.core.queues.delivery import QueueStatus
from penstock.core.topic_records import NO_LEADER
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call, Told
from penstock.types import GroupId, NodeId, TopicName
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

if TYPE_CHECKING:
    from penstock.gateways.grpc.carrier import Carrier

_PLACE: Final = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9})@(?P<offset>[0-9]{1,18})", re.ASCII)


async def topic_stats(request: TopicStatsRequest, call: Call) -> TopicStatsResponse:
    """Sizes, offsets and rates."""
    topic = call.topic(request.topic, Action.DESCRIBE)
    carrier = call.serving.carrier
    if carrier is None:
        return _topic_here(call, topic.name)
    own = _topic_here(call, topic.name)
    leaders = [record.leader for record in call.broker.topics.partitions(topic)]
    if call.carried is None:
        asked = {NodeId(leader) for leader in leaders} - {call.broker.node_id, NodeId(NO_LEADER)}
        others = await asyncio.gather(*(_topic_there(carrier, node, request, call) for node in asked))
        by_node = {
            call.broker.node_id: own,
            **{node: found for node, found in zip(asked, others, strict=True) if found},
        }
    else:
        by_node = {call.broker.node_id: own}
    return _merged(own, leaders, by_node)


async def _topic_there(
    carrier: "Carrier", node: NodeId, request: TopicStatsRequest, call: Call
) -> TopicStatsResponse | None:
    """What another node says of the partitions that it leads; None when it does not answer."""
    try:
        found: TopicStatsResponse = TopicStatsResponse.FromString(await carrier.ask(node, "TopicStats", request, call))
    except (PenstockError, Told):
        return None
    return found


def _merged(
    own: TopicStatsResponse, leaders: list[int], by_node: Mapping[NodeId, TopicStatsResponse]
) -> TopicStatsResponse:
    """Of each partition what its leader says; of a partition whose leader is silent, nothing is known."""
    found = TopicStatsResponse(topic=own.topic)
    for index, leader in enumerate(leaders):
        told = by_node.get(NodeId(leader))
        known = told is not None and index < len(told.partitions)
        partition = found.partitions.add()
        partition.CopyFrom(told.partitions[index] if told is not None and known else PartitionStats(partition=index))
        found.records += partition.end_offset - partition.start_offset
        found.size_bytes += partition.size_bytes
    for told in by_node.values():
        found.records_in_per_second += told.records_in_per_second
        found.bytes_in_per_second += told.bytes_in_per_second
        found.records_out_per_second += told.records_out_per_second
        found.bytes_out_per_second += told.bytes_out_per_second
    return found


def _topic_here(call: Call, topic: str) -> TopicStatsResponse:
    found = stats.topic_stats(call.broker, topic)
    return TopicStatsResponse(
        topic=topic,
        partitions=[
            PartitionStats(
                partition=partition.index,
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
    group = call.group(request.consumer_group, Action.DESCRIBE)
    found = stats.group_status(call.broker, group)
    return GroupStatusResponse(
        consumer_group=group,
        state=found.state.value,
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
    call.topic(topic, Action.DESCRIBE)
    group = call.group(request.consumer_group, Action.DESCRIBE)
    why = call.broker.queues.why(TopicName(topic), partition, offset, GroupId(group))
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
