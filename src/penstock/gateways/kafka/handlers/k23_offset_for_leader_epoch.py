"""OffsetForLeaderEpoch (API key 23): where the log of a leader epoch ends, so that a reader can tell whether it was cut.

Version 3 adds the replica id, 4 is flexible. A future epoch gets -1 and -1; a past one the end of the nearest at or below it.
"""

from collections.abc import Awaitable
from functools import partial

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.gateways.kafka.portions import AT_ONCE_MAX, Turns, in_portions
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_for_leader_epoch_generated import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
def handle(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """Each partition by itself."""
    if sum(len(topic.partitions) for topic in request.topics) > AT_ONCE_MAX:
        return _many(request, context)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponseTopic(
                topic=topic.topic, partitions=[_answer(topic.topic, asked, context) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


async def _many(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    turns, topics = Turns(), []
    for topic in request.topics:
        answer = partial(_answer, topic.topic, context=context)
        topics.append(
            OffsetForLeaderEpochResponseTopic(topic.topic, await in_portions(topic.partitions, answer, turns))
        )
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(
    topic: str, asked: OffsetForLeaderEpochRequestPartition, context: RequestContext
) -> OffsetForLeaderEpochResponsePartition:
    try:
        context.require_topic(Action.DESCRIBE, topic)
        partition = context.broker.partition(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
    except PenstockError as error:
        code = context.code(reason_for_readers(error))
        return OffsetForLeaderEpochResponsePartition(partition=asked.partition, error_code=code)
    epoch, end_offset = partition.end_offset_for(asked.leader_epoch)
    return OffsetForLeaderEpochResponsePartition(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
