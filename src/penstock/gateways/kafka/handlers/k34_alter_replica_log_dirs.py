"""AlterReplicaLogDirs (API key 34): move replicas between the log directories of this broker. There is only one, which has every replica."""

from functools import partial

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import LOG_DIR_NOT_FOUND
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import Turns, in_portions
from penstock.operations.cluster import MoveToFolder
from penstock.wire.kafka.alter_replica_log_dirs_generated import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsResponsePartition,
    AlterReplicaLogDirsResponseResult,
)
from penstock.wire.kafka.apis import ApiKey


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(1, 2))
async def handle(request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
    """A move to the directory that has the replica is done already."""
    results: dict[str, AlterReplicaLogDirsResponseResult] = {}
    turns = Turns()
    for wanted in request.dirs:
        for topic in wanted.topics:
            await turns.pause_if_long()
            result = results.setdefault(topic.name, AlterReplicaLogDirsResponseResult(topic.name, []))
            codes = await in_portions(topic.partitions, partial(_code, wanted.path, topic.name, context), turns)
            result.partitions += map(AlterReplicaLogDirsResponsePartition, topic.partitions, codes)
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def _code(path: str, name: str, context: RequestContext, index: int) -> int:
    try:
        return 0 if context.answer(MoveToFolder(name, index, path)) else LOG_DIR_NOT_FOUND
    except PenstockError as error:
        return context.code(error)
