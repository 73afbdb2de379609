"""CommitOffset: where a group goes on reading."""

from functools import partial

from penstock.core.groups.requests import OffsetToCommit, PartitionKey
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call, stored
from penstock.operations.operation import Action
from penstock.types import GroupId
from penstock.wire.mq.mq_generated import CommitOffsetRequest, CommitOffsetResponse


async def commit_offset(request: CommitOffsetRequest, call: Call) -> CommitOffsetResponse:
    """Answered once it is durable. It may be past the end of the partition."""
    topic = call.topic(request.topic, Action.READ)
    group = call.group(request.consumer_group, Action.READ)
    if not 0 <= request.partition < topic.partition_count:
        raise no_partition(topic.name, request.partition, topic.partition_count)
    item = OffsetToCommit(key=PartitionKey(topic.name, request.partition), offset=request.offset)
    await stored(partial(call.broker.groups.commit_offset, GroupId(group), item))
    return CommitOffsetResponse(success=True)


def no_partition(topic: str, partition: int, count: int) -> PenstockError:
    """What is said of a partition that is not there."""
    return PenstockError(
        Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' has no partition {partition}; it has 0 to {count - 1}"
    )
