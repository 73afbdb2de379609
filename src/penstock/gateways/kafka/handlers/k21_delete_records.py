"""DeleteRecords (API key 21): forget the beginning of partitions. Version 2 is flexible; nothing else changed."""

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


def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Each partition by itself; the answer goes out when all of it is durable."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponseTopic(topic.name, [_delete(topic.name, asked, context) for asked in topic.partitions])
            for topic in request.topics
        ]
    )


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
