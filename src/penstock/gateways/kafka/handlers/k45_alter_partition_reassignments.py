"""AlterPartitionReassignments (API key 45): let other nodes have partitions, or take that back. Any node takes it, not the controller alone.

Version 1 lets a client forbid a change of the replication factor. The answer says that a move is agreed on; it is over when
ListPartitionReassignments does not name it any more.
"""

from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import Turns
from penstock.gateways.kafka.reassignments import change_each
from penstock.operations.operation import Action
from penstock.wire.kafka.alter_partition_reassignments_generated import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
)
from penstock.wire.kafka.apis import ApiKey


class _Change(NamedTuple):
    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Each partition by itself."""
    may_change = request.allow_replication_factor_change
    try:
        context.require_cluster(Action.ALTER)
    except PenstockError as error:
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_change, error_code=context.code(error), error_message=error.text
        )
    changes = [
        _Change(topic.name, asked.partition_index, None if asked.replicas is None else tuple(asked.replicas))
        for topic in request.topics
        for asked in topic.partitions
    ]
    reassignments = context.broker.cluster.reassignments
    done = await change_each(
        changes,
        lambda change: reassignments.alter(*change, allow_replication_factor_change=may_change),
        request.timeout_ms,
    )
    by_topic: dict[str, list[AlterPartitionReassignmentsResponsePartition]] = {}
    turns = Turns()
    for change, refusal in done:
        await turns.pause_if_long()
        text = None if refusal is None else refusal.text
        by_topic.setdefault(change.topic, []).append(
            AlterPartitionReassignmentsResponsePartition(change.partition, context.code(refusal), text)
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change,
        error_message=None,
        responses=[AlterPartitionReassignmentsResponseTopic(topic, found) for topic, found in by_topic.items()],
    )
