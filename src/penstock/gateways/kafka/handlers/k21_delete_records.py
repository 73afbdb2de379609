"""DeleteRecords (API key 21): delete the first records of partitions that this node leads, here and on the followers.

It is answered when every replica that may lead has deleted them, or with REQUEST_TIMED_OUT after the client's timeout: then they are deleted here, and
the others delete them later.

Version 2 is flexible; nothing else changed.
"""

import asyncio

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import reason_for_readers
from penstock.operations.records import DeleteRecords
from penstock.types import NO_OFFSET
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2))
async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Each partition by itself, and all of them wait for their followers at the same time."""
    begun: list[tuple[str, list[asyncio.Task[DeleteRecordsResponsePartition]]]] = []
    async with asyncio.TaskGroup() as tasks:
        for topic in request.topics:
            begun.append((topic.name, []))
            for asked in topic.partitions:
                delete = DeleteRecords(topic.name, asked.partition_index, asked.offset, request.timeout_ms)
                begun[-1][1].append(tasks.create_task(_delete(delete, context)))
                # Each one is a small synced write: let others be served in between.
                await asyncio.sleep(0)
    return DeleteRecordsResponse(
        topics=[DeleteRecordsResponseTopic(name, [each.result() for each in answers]) for name, answers in begun]
    )


async def _delete(asked: DeleteRecords, context: RequestContext) -> DeleteRecordsResponsePartition:
    try:
        deleted = await context.do(asked)
    except PenstockError as error:
        return DeleteRecordsResponsePartition(asked.partition, NO_OFFSET, context.code(reason_for_readers(error)))
    code = 0 if deleted.reason is None else context.code(reason_for_readers(deleted.reason))
    return DeleteRecordsResponsePartition(asked.partition, deleted.low_watermark, code)
