"""ListPartitionReassignments (API key 46): partitions that are on their way to other nodes. Version 0; no list asks for all."""

from typing import Final

from penstock.core.access import Action
from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.moves import door_of
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_partition_reassignments_generated import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)

KEY: Final = ApiKey.LIST_PARTITION_REASSIGNMENTS


def handle(request: ListPartitionReassignmentsRequest, context: RequestContext) -> ListPartitionReassignmentsResponse:
    """What does not move, or does not exist, is left out."""
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        return ListPartitionReassignmentsResponse(error_code=context.code(error), error_message=error.text)
    asked = None
    if request.topics is not None:
        asked = dict.fromkeys((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    by_topic: dict[str, list[ListPartitionReassignmentsResponsePartition]] = {}
    for move in door_of(context).list(asked):
        by_topic.setdefault(move.topic, []).append(
            ListPartitionReassignmentsResponsePartition(
                move.partition, list(move.replicas), list(move.adding), list(move.removing)
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[ListPartitionReassignmentsResponseTopic(topic, found) for topic, found in by_topic.items()],
    )
