"""DescribeLogDirs (API key 35): how much room partitions take on this node's disk, led here or copied.

Version 3 has an error for the whole; 4 tells the size of the disk and the room left; 5 whether it takes new partitions.
"""

import asyncio
import shutil
from collections.abc import Iterable
from typing import Final

from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_log_dirs_generated import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseResult,
    DescribeLogDirsResponseTopic,
)

_PARTITIONS_A_TURN: Final = 64
"""A partition may have to be opened first; others are served in between."""


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5))
async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    """There is one directory. Partitions that do not exist are left out, as Kafka does."""
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        return DescribeLogDirsResponse(error_code=context.code(error), results=[])
    topics = [
        DescribeLogDirsResponseTopic(topic.name, partitions)
        for topic, indexes in _wanted(request, context)
        if (partitions := await _partitions(topic, indexes, context))
    ]
    data_dir = context.broker.logs.data_dir
    try:
        disk = shutil.disk_usage(data_dir)
        total_bytes, usable_bytes = disk.total, disk.free
    except OSError:
        total_bytes = usable_bytes = -1
    result = DescribeLogDirsResponseResult(0, data_dir, topics, total_bytes, usable_bytes)
    return DescribeLogDirsResponse(results=[result])


def _wanted(request: DescribeLogDirsRequest, context: RequestContext) -> Iterable[tuple[Topic, Iterable[int]]]:
    topics = context.broker.topics
    if request.topics is None:
        return [(topic, range(topic.partition_count)) for topic in topics]
    named = ((topics.get(asked.topic), asked.partitions) for asked in request.topics)
    return [(topic, indexes) for topic, indexes in named if topic is not None]


async def _partitions(
    topic: Topic, indexes: Iterable[int], context: RequestContext
) -> list[DescribeLogDirsResponsePartition]:
    broker = context.broker
    found: list[DescribeLogDirsResponsePartition] = []
    for at, index in enumerate(indexes):
        if at % _PARTITIONS_A_TURN == 0:
            await asyncio.sleep(0)
        try:
            if broker.node_id not in broker.topics.partition(topic, index).replicas:
                continue
            size_bytes = broker.replica(topic.name, index).log.size_bytes
        except PenstockError:
            continue
        found.append(DescribeLogDirsResponsePartition(index, size_bytes))
    return found
