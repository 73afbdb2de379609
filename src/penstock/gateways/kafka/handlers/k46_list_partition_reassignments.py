"""ListPartitionReassignments (API key 46): partitions that are on their way to other nodes. Version 0; no list asks for all."""

from collections.abc import AsyncIterator
from typing import Final

from penstock.core.access import Action
from penstock.core.replication.reassignment import ReplicaMove
from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.moves import Door, door_of
from penstock.gateways.kafka.portions import Turns
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_partition_reassignments_generated import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)

KEY: Final = ApiKey.LIST_PARTITION_REASSIGNMENTS


async def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """What does not move, or does not exist, is left out."""
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        return ListPartitionReassignmentsResponse(error_code=context.code(error), error_message=error.text)
    by_topic: dict[str, list[ListPartitionReassignmentsResponsePartition]] = {}
    async for move in _moves(request, door_of(context)):
        by_topic.setdefault(move.topic, []).append(
            ListPartitionReassignmentsResponsePartition(
                move.partition, list(move.replicas), list(move.adding), list(move.removing)
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[ListPartitionReassignmentsResponseTopic(topic, found) for topic, found in by_topic.items()],
    )


async def _moves(request: ListPartitionReassignmentsRequest, door: Door) -> AsyncIterator[ReplicaMove]:
    """Those that were asked for, each once; all of them when none is named."""
    if request.topics is None:
        for move in door.list():
            yield move
        return
    turns = Turns()
    told: set[tuple[str, int]] = set()
    for topic in request.topics:
        for index in topic.partition_indexes:
            await turns.pause_if_long()
            for move in door.list([(topic.name, index)]):
                if (move.topic, move.partition) not in told:
                    told.add((move.topic, move.partition))
                    yield move
