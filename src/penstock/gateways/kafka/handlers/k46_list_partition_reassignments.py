"""ListPartitionReassignments (API key 46): partitions that are being reassigned. There is only version 0; a request without a list is for all of them."""

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.cluster import ListReassignments
from penstock.types import PartitionKey, TopicName
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
    """Partitions that are not being reassigned, or do not exist, are left out."""
    partitions = None
    if request.topics is not None:
        partitions = tuple(
            PartitionKey(TopicName(topic.name), index) for topic in request.topics for index in topic.partition_indexes
        )
    try:
        moves = await context.do(ListReassignments(partitions))
    except PenstockError as error:
        return ListPartitionReassignmentsResponse(error_code=context.code(error), error_message=error.text)
    by_topic: dict[str, list[ListPartitionReassignmentsResponsePartition]] = {}
    for move in moves:
        by_topic.setdefault(move.topic, []).append(
            ListPartitionReassignmentsResponsePartition(
                move.partition, list(move.replicas), list(move.adding), list(move.removing)
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[ListPartitionReassignmentsResponseTopic(topic, found) for topic, found in by_topic.items()],
    )
