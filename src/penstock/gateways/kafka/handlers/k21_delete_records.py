"""DeleteRecords (API key 21): forget the beginning of partitions. Version 2 is flexible; nothing else changed."""

import asyncio
from typing import Final

from penstock.core.delete_records import delete_records
from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import code_of
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
            partitions.append(_delete(topic.name, asked, context))
            # Each one is a small synced write: let others have their turn in between.
            await asyncio.sleep(0)
        topics.append(DeleteRecordsResponseTopic(topic.name, partitions))
    return DeleteRecordsResponse(topics=topics)


def _delete(
    topic: str, asked: DeleteRecordsRequestPartition, context: RequestContext
) -> DeleteRecordsResponsePartition:
    index = asked.partition_index
    try:
        return DeleteRecordsResponsePartition(
            index, delete_records(context.broker.partition(topic, index), asked.offset)
        )
    except PenstockError as error:
        return DeleteRecordsResponsePartition(index, NO_OFFSET, code_of(error))
