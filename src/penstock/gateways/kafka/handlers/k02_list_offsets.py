"""ListOffsets (API key 2): the first, last or a timestamp's offset.

Version 2 brings isolation, 4 leader epochs, 7 the offset of the largest timestamp (-3), 8 the earliest local one (-4), 9 the
last tiered one (-5), 11 the earliest that waits for upload (-6). No match is -1, without an error.

Records that were acknowledged with acks=1 count, and so do those that an earlier leader may have acknowledged: where the answer depends on some that are not
known to be committed yet, it waits for them (``core/partitions/settling.py``). A new leader whose followers do not answer in that time must not report an end before one that its
predecessor reported: it answers OFFSET_NOT_AVAILABLE from version 5 on, LEADER_NOT_AVAILABLE before.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Final

from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.gateways.kafka.portions import AT_ONCE_MAX, Turns, in_portions
from penstock.operations.operation import Action
from penstock.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
READ_COMMITTED: Final = 1
_NOT_AVAILABLE_FROM: Final = 5


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11))
def handle(
    request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Each partition by itself: an error of one is no error of the others."""
    settling: list[Partition] = []
    if sum(len(topic.partitions) for topic in request.topics) > AT_ONCE_MAX:
        return _when_settled(request, context, settling)
    response = _few(request, context, settling)
    return _when_settled(request, context, settling) if settling else response


async def _when_settled(
    request: ListOffsetsRequest, context: RequestContext, settling: list[Partition]
) -> ListOffsetsResponse:
    """The answer, given again once the records that it depends on are committed."""
    if not settling:
        response = await _many(request, context, settling)
        if not settling:
            return response
    await context.broker.settling.settled(*settling)
    return await _many(request, context, [])


def _few(request: ListOffsetsRequest, context: RequestContext, settling: list[Partition]) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponseTopic(
                topic.name,
                [_answer(topic.name, asked, request.isolation_level, context, settling) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _many(request: ListOffsetsRequest, context: RequestContext, settling: list[Partition]) -> ListOffsetsResponse:
    turns, topics = Turns(), []
    for topic in request.topics:
        answer = partial(
            _answer, topic.name, isolation_level=request.isolation_level, context=context, settling=settling
        )
        topics.append(ListOffsetsResponseTopic(topic.name, await in_portions(topic.partitions, answer, turns)))
    return ListOffsetsResponse(topics=topics)


def _answer(
    topic: str,
    asked: ListOffsetsRequestPartition,
    isolation_level: int,
    context: RequestContext,
    settling: list[Partition],
) -> ListOffsetsResponsePartition:
    """What is known now; a partition whose answer may be another in a moment is added to ``settling``."""
    try:
        context.require_topic(Action.DESCRIBE, topic)
        partition = context.broker.partition(topic, asked.partition_index)
        partition.check_epoch(asked.current_leader_epoch)
        offset, timestamp, epoch = _find(partition, asked.timestamp, committed_only=isolation_level == READ_COMMITTED)
        # A record found by its time is the first one, whatever follows.
        if asked.timestamp in (LATEST, MAX_TIMESTAMP) or (asked.timestamp >= 0 and offset == NO_OFFSET):
            if partition.is_settling(partition.acknowledged_offset):
                settling.append(partition)
            _check_known(partition)
    except (PenstockError, OSError) as error:
        reason = reason_for_readers(error)
        if reason is Reason.OFFSET_NOT_AVAILABLE and context.version < _NOT_AVAILABLE_FROM:
            reason = Reason.LEADER_NOT_AVAILABLE
        return ListOffsetsResponsePartition(partition_index=asked.partition_index, error_code=context.code(reason))
    return ListOffsetsResponsePartition(
        partition_index=asked.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _check_known(partition: Partition) -> None:
    """OFFSET_NOT_AVAILABLE while more may be committed than is known here."""
    if partition.high_watermark < partition.in_sync.epoch_start:
        raise PenstockError(Reason.OFFSET_NOT_AVAILABLE)


def _find(partition: Partition, timestamp: int, *, committed_only: bool) -> tuple[int, int, int]:
    log = partition.log
    end = partition.stable_offset if committed_only else partition.high_watermark
    if timestamp == LATEST:
        return end, NO_TIMESTAMP, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, NO_TIMESTAMP, log.epochs.epoch_at(log.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NO_OFFSET, NO_TIMESTAMP, NO_EPOCH
    if timestamp < EARLIEST_PENDING_UPLOAD:
        raise PenstockError(Reason.INVALID_REQUEST, f"{timestamp} is neither a timestamp nor -1 to -6")
    found = log.latest_by_time(end) if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp, end)
    if found is None:
        return NO_OFFSET, NO_TIMESTAMP, NO_EPOCH
    return found.offset, found.timestamp, found.leader_epoch
