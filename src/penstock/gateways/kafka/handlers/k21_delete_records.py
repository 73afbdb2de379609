"""DeleteRecords (API key 21): forget the beginning of partitions that this node leads; its followers do the same.

It is answered when every replica that may lead has done it, or with REQUEST_TIMED_OUT when the request's time is over: then it is done here, and the others
do it later.

Version 2 is flexible; nothing else changed.
"""

import asyncio
from collections.abc import Awaitable

from penstock.core.partitions.delete_records import TO_HIGH_WATERMARK, delete_records
from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.operations.operation import Action
from penstock.types import NO_OFFSET
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)

_Begun = tuple[DeleteRecordsResponsePartition, Partition, int]
"""An answer that is not final, and what has to be deleted everywhere first."""


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2))
async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Each partition by itself; the answer goes out when all of it is durable here, and the followers have heard of it."""
    until = asyncio.get_running_loop().time() + max(request.timeout_ms, 0) / 1000
    topics: list[DeleteRecordsResponseTopic] = []
    begun: list[_Begun] = []
    for topic in request.topics:
        partitions: list[DeleteRecordsResponsePartition] = []
        for asked in topic.partitions:
            partitions.append(await _delete(topic.name, asked, context, until, begun))
            # Each one is a small synced write: let others have their turn in between.
            await asyncio.sleep(0)
        topics.append(DeleteRecordsResponseTopic(topic.name, partitions))
    for answer, partition, offset in begun:
        reason = await _deleted(partition, offset, until)
        if reason is not None:
            answer.error_code = context.code(reason_for_readers(PenstockError(reason)))
        answer.low_watermark = NO_OFFSET if partition.gone else partition.low_watermark
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    topic: str, asked: DeleteRecordsRequestPartition, context: RequestContext, until: float, begun: list[_Begun]
) -> DeleteRecordsResponsePartition:
    index = asked.partition_index
    try:
        context.require_topic(Action.DELETE, topic)
        partition = context.broker.partition(topic, index)
        if asked.offset == TO_HIGH_WATERMARK:
            # All of them, so those too that were acknowledged just now.
            await _in_time(context.broker.settling.settled(partition), until)
            partition = context.broker.partition(topic, index)
        elif partition.high_watermark < asked.offset <= partition.log.next_offset:
            # Acknowledged by the leader and on its way to the disk: it can be deleted once it is committed.
            await _in_time(_committed(partition, asked.offset), until)
            partition = context.broker.partition(topic, index)
        start = delete_records(partition, asked.offset)
    except PenstockError as error:
        return DeleteRecordsResponsePartition(index, NO_OFFSET, context.code(reason_for_readers(error)))
    answer = DeleteRecordsResponsePartition(index, start)
    begun.append((answer, partition, start if asked.offset == TO_HIGH_WATERMARK else asked.offset))
    return answer


async def _in_time(committed: Awaitable[None], until: float) -> None:
    """Wait for it; whatever came of that, the rules say what can be deleted then."""
    try:
        async with asyncio.timeout_at(until):
            await committed
    except TimeoutError:
        return


async def _deleted(partition: Partition, offset: int, until: float) -> Reason | None:
    """None once nobody who may lead has records before ``offset``, else why that is not known."""
    if partition.gone:
        return Reason.NOT_LEADER_OR_FOLLOWER
    told: asyncio.Future[Reason | None] = asyncio.get_running_loop().create_future()

    def done(reason: Reason | None) -> None:
        if not told.done():
            told.set_result(reason)

    partition.when_deleted(offset, done)
    try:
        async with asyncio.timeout_at(until):
            return await told
    except TimeoutError:
        return Reason.REQUEST_TIMED_OUT
    finally:
        partition.forget_deleted(done)


async def _committed(partition: Partition, offset: int) -> None:
    """Return once everything below ``offset`` is committed, or cannot be here. The caller bounds the time."""
    moved = asyncio.Event()
    partition.watch(moved.set)
    try:
        while partition.high_watermark < offset and partition.log.failed is None and not partition.gone:
            await moved.wait()
            moved.clear()
    finally:
        partition.unwatch(moved.set)
