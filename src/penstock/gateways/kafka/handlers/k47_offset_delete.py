"""OffsetDelete (API key 47): delete the offsets of a group in partitions that none of its members reads. There is only version 0."""

from asyncio import Future
from functools import partial

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import DeleteOffsets
from penstock.types import GroupId, PartitionKey, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_delete_generated import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0))
def handle(request: OffsetDeleteRequest, context: RequestContext) -> Future[OffsetDeleteResponse]:
    """Answered once the offsets are gone for good."""
    keys = tuple(
        PartitionKey(TopicName(topic.name), partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    return context.later(DeleteOffsets(GroupId(request.group_id), keys), partial(_response, context, request.topics))


def _response(
    context: RequestContext, topics: list[OffsetDeleteRequestTopic], found: tuple[Reason | None, ...] | PenstockError
) -> OffsetDeleteResponse:
    if isinstance(found, PenstockError):
        return OffsetDeleteResponse(error_code=context.code(found))
    reasons = iter(found)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition.partition_index, context.code(next(reasons)))
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ]
    )
