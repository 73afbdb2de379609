"""AlterPartitionReassignments (API key 45): move partitions to other nodes, or cancel that. Every node accepts it, not only the controller.

Version 1 lets a client forbid a change of the replication factor. The answer says that the move is stored; it is complete when
ListPartitionReassignments no longer lists it.
"""

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.reassignments import by_topics, change_each
from penstock.operations.cluster import ReassignPartition
from penstock.wire.kafka.alter_partition_reassignments_generated import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
)
from penstock.wire.kafka.apis import ApiKey


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Each partition by itself."""
    may_change = request.allow_replication_factor_change
    try:
        context.check(ReassignPartition("", 0, None))
    except PenstockError as error:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_change, error_code=context.code(error), error_message=error.text
        )
    moves = [
        ReassignPartition(
            topic.name,
            asked.partition_index,
            None if asked.replicas is None else tuple(asked.replicas),
            may_change,
        )
        for topic in request.topics
        for asked in topic.partitions
    ]
    done = await change_each(moves, context, request.timeout_ms)
    by_topic = await by_topics(done, context, AlterPartitionReassignmentsResponsePartition)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change,
        error_message=None,
        responses=[AlterPartitionReassignmentsResponseTopic(topic, found) for topic, found in by_topic.items()],
    )
