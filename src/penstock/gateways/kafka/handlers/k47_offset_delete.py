"""OffsetDelete (API key 47): forget the offsets of a group in partitions that none of its members reads. There is one version."""

from asyncio import Future
from collections.abc import Mapping
from functools import partial

from penstock.core.groups.requests import PartitionKey
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.answers import answer_later
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.operation import Action
from penstock.types import GroupId, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_delete_generated import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(ApiKey.OFFSET_DELETE, versions=(0, 0))
def handle(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | Future[OffsetDeleteResponse]:
    """Answered once the offsets are gone for good."""
    keys = [
        PartitionKey(TopicName(topic.name), partition.partition_index)
        for topic in request.topics
        if context.allows_topic(Action.READ, topic.name)
        for partition in topic.partitions
    ]
    try:
        context.require_group(Action.DELETE, request.group_id)
        return answer_later(
            partial(context.broker.groups.delete_offsets, GroupId(request.group_id), keys),
            partial(_response, context, request.topics),
        )
    except PenstockError as error:
        return OffsetDeleteResponse(error_code=context.code(error))


def _response(
    context: RequestContext, topics: list[OffsetDeleteRequestTopic], answers: Mapping[PartitionKey, Reason | None]
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition.partition_index,
                        context.code(
                            # Those that were not handed on have no answer.
                            answers.get(
                                PartitionKey(TopicName(topic.name), partition.partition_index),
                                Reason.TOPIC_AUTHORIZATION_FAILED,
                            )
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ]
    )
