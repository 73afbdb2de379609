"""CommitOffset: where a group goes on reading."""

from penstock.core.access import Action
from penstock.core.groups.requests import OffsetToCommit, PartitionKey
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call, stored
from penstock.gateways.standing import standing
from penstock.types import GroupId
from penstock.wire.mq.mq_generated import CommitOffsetRequest, CommitOffsetResponse


async def commit_offset(request: CommitOffsetRequest, call: Call) -> CommitOffsetResponse:
    """Answered once it is durable. An offset that the partition cannot have is refused, and nothing has changed."""
    topic = call.topic(request.topic, Action.READ)
    group = call.group(request.consumer_group, Action.READ)
    if not 0 <= request.partition < topic.partition_count:
        raise no_partition(topic.name, request.partition, topic.partition_count)
    item = OffsetToCommit(key=PartitionKey(topic.name, request.partition), offset=request.offset)
    end_offset = None
    if call.broker.cluster is not None:
        end_offset = (await standing(call.broker, topic, request.partition)).high_watermark
    commit = call.broker.groups.commit_offset_checked
    await stored(lambda done: commit(GroupId(group), item, done, end_offset))
    return CommitOffsetResponse(success=True)


def no_partition(topic: str, partition: int, count: int) -> PenstockError:
    """What is said of a partition that is not there."""
    return PenstockError(
        Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' has no partition {partition}; it has 0 to {count - 1}"
    )
