"""DeleteRecords (API key 21): forget the beginning of partitions that this node leads; its followers do the same.

Version 2 is flexible; nothing else changed.
"""

import asyncio
from functools import partial
from typing import Final

from penstock.core.access import Action
from penstock.core.delete_records import delete_records
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.gateways.kafka.waiting import answer_later
from penstock.types import NO_OFFSET
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)

KEY: Final = ApiKey.DELETE_RECORDS


async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Each partition by itself; the answer goes out when all of it is durable."""
    topics: list[DeleteRecordsResponseTopic] = []
    for topic in request.topics:
        partitions: list[DeleteRecordsResponsePartition] = []
        for asked in topic.partitions:
            partitions.append(await _delete(topic.name, asked, context))
            # Each one is a small synced write: let others have their turn in between.
            await asyncio.sleep(0)
        topics.append(DeleteRecordsResponseTopic(topic.name, partitions))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    topic: str, asked: DeleteRecordsRequestPartition, context: RequestContext
) -> DeleteRecordsResponsePartition:
    index = asked.partition_index
    try:
        context.require_topic(Action.DELETE, topic)
        partition = context.broker.partition(topic, index)
        if partition.high_watermark < asked.offset <= partition.log.next_offset:
            # Acknowledged by the leader and on its way to the disk: it can be deleted once it is committed.
            await answer_later(partial(partition.when_committed, asked.offset), _nothing)
        return DeleteRecordsResponsePartition(index, delete_records(partition, asked.offset))
    except PenstockError as error:
        return DeleteRecordsResponsePartition(index, NO_OFFSET, context.code(reason_for_readers(error)))


def _nothing(_: Reason | None) -> None:
    """Whatever came of it, the rules say what can be deleted now."""
