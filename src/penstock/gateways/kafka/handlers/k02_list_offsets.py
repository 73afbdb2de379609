"""ListOffsets (API key 2): the first offset, the last, or that of a timestamp.

Version 2 adds the isolation level, 4 leader epochs, 7 the offset of the largest timestamp (-3), 8 the earliest local one (-4), 9 the
last tiered one (-5), 11 the earliest that waits for upload (-6). Without a match the offset is -1, and there is no error.

Records that were acknowledged with acks=1, or may have been acknowledged by an earlier leader, count: if the answer depends on records that are not known to be
committed yet, it waits for them (``core/partitions/settling.py``). A new leader whose followers do not answer in that time must not report an end before one that its
predecessor reported: it answers OFFSET_NOT_AVAILABLE from version 5 on, LEADER_NOT_AVAILABLE before.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.operations.records import FindOffsets, FoundOffset, OffsetQuery
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)

READ_COMMITTED: Final = 1
_NOT_AVAILABLE_FROM: Final = 5


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11))
def handle(
    request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Each partition by itself: an error of one does not affect the others."""
    queries = [
        OffsetQuery(topic.name, asked.partition_index, asked.timestamp, asked.current_leader_epoch)
        for topic in request.topics
        for asked in topic.partitions
    ]
    committed_only = request.isolation_level == READ_COMMITTED
    return context.each(
        queries, partial(FindOffsets, committed_only=committed_only), partial(_response, request, context)
    )


def _response(
    request: ListOffsetsRequest, context: RequestContext, found: Sequence[FoundOffset | Reason] | PenstockError
) -> ListOffsetsResponse:
    assert not isinstance(found, PenstockError)
    results = iter(found)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponseTopic(
                topic.name,
                [_answer(asked.partition_index, next(results), context) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _answer(index: int, found: FoundOffset | Reason, context: RequestContext) -> ListOffsetsResponsePartition:
    if not isinstance(found, Reason):
        return ListOffsetsResponsePartition(
            partition_index=index, timestamp=found.timestamp_ms, offset=found.offset, leader_epoch=found.leader_epoch
        )
    reason = reason_for_readers(found)
    if reason is Reason.OFFSET_NOT_AVAILABLE and context.version < _NOT_AVAILABLE_FROM:
        reason = Reason.LEADER_NOT_AVAILABLE
    return ListOffsetsResponsePartition(partition_index=index, error_code=context.code(reason))
