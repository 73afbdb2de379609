"""DescribeLogDirs (API key 35): the disk space that the replicas on this node take.

Version 3 has an error for the whole request; 4 adds the size of the disk and its free space; 5 whether it accepts new partitions.
"""

import shutil
from itertools import groupby

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.cluster import ListReplicas
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_log_dirs_generated import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseResult,
    DescribeLogDirsResponseTopic,
)


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5))
async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    """There is one directory. Partitions that do not exist are left out, as Kafka does."""
    wanted = request.topics
    try:
        replicas = await context.do(
            ListReplicas(None if wanted is None else tuple((each.topic, tuple(each.partitions)) for each in wanted))
        )
    except PenstockError as error:
        return DescribeLogDirsResponse(error_code=context.code(error), results=[])
    topics = [
        DescribeLogDirsResponseTopic(
            name, [DescribeLogDirsResponsePartition(each.partition, each.size_bytes) for each in of_topic]
        )
        for name, of_topic in groupby(replicas, lambda each: each.topic)
    ]
    data_dir = context.broker.logs.data_dir
    try:
        disk = shutil.disk_usage(data_dir)
        total_bytes, usable_bytes = disk.total, disk.free
    except OSError:
        total_bytes = usable_bytes = -1
    result = DescribeLogDirsResponseResult(0, data_dir, topics, total_bytes, usable_bytes)
    return DescribeLogDirsResponse(results=[result])
