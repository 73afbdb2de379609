"""ListPartitionReassignments (API key 46): partitions that are on their way to other nodes. Version 0; no list asks for all."""

from collections.abc import AsyncIterator

from penstock.core.cluster.reassignment import Reassignments, ReplicaMove
from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import Turns
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_partition_reassignments_generated import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0))
async def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """What does not move, or does not exist, is left out."""
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        return ListPartitionReassignmentsResponse(error_code=context.code(error), error_message=error.text)
    by_topic: dict[str, list[ListPartitionReassignmentsResponsePartition]] = {}
    async for move in _moves(request, context.broker.cluster.reassignments):
        by_topic.setdefault(move.topic, []).append(
            ListPartitionReassignmentsResponsePartition(
                move.partition, list(move.replicas), list(move.adding), list(move.removing)
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[ListPartitionReassignmentsResponseTopic(topic, found) for topic, found in by_topic.items()],
    )


async def _moves(
    request: ListPartitionReassignmentsRequest, reassignments: Reassignments
) -> AsyncIterator[ReplicaMove]:
    """The moves of the partitions in the request, each once; all moves if it has no list."""
    if request.topics is None:
        for move in reassignments.list():
            yield move
        return
    turns = Turns()
    listed: set[tuple[str, int]] = set()
    for topic in request.topics:
        for index in topic.partition_indexes:
            await turns.pause_if_long()
            for move in reassignments.list([(topic.name, index)]):
                if (move.topic, move.partition) not in listed:
                    listed.add((move.topic, move.partition))
                    yield move
