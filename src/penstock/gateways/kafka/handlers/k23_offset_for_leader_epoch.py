"""OffsetForLeaderEpoch (API key 23): where the log of a leader epoch ends, by which a reader learns whether its log was truncated.

Version 3 adds the replica id, 4 is flexible. A future epoch gets -1 and -1; a past one the end of the nearest epoch at or below it.
"""

from collections.abc import Awaitable, Sequence
from functools import partial

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.operations.records import EpochEnd, EpochQuery, FindEpochEnds
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_for_leader_epoch_generated import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
def handle(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """Each partition by itself."""
    queries = [
        EpochQuery(topic.topic, asked.partition, asked.leader_epoch, asked.current_leader_epoch)
        for topic in request.topics
        for asked in topic.partitions
    ]
    return context.each(queries, FindEpochEnds, partial(_response, request, context))


def _response(
    request: OffsetForLeaderEpochRequest, context: RequestContext, found: Sequence[EpochEnd | Reason] | PenstockError
) -> OffsetForLeaderEpochResponse:
    assert not isinstance(found, PenstockError)
    results = iter(found)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponseTopic(
                topic=topic.topic,
                partitions=[_answer(asked.partition, next(results), context) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _answer(index: int, found: EpochEnd | Reason, context: RequestContext) -> OffsetForLeaderEpochResponsePartition:
    if isinstance(found, Reason):
        code = context.code(reason_for_readers(found))
        return OffsetForLeaderEpochResponsePartition(partition=index, error_code=code)
    return OffsetForLeaderEpochResponsePartition(partition=index, leader_epoch=found.epoch, end_offset=found.end_offset)
