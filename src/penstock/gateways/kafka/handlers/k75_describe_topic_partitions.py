"""DescribeTopicPartitions (API key 75): the partitions of topics, by name and in bounded pieces.

There is only version 0. An incomplete answer has a cursor: the first partition that did not fit.
"""

from collections.abc import AsyncIterator
from typing import Final

from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import leader_of, offline_of, topics_from
from penstock.gateways.kafka.portions import Turns
from penstock.limits import DESCRIBED_PARTITIONS_MAX
from penstock.operations.topics import FindTopic
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_topic_partitions_generated import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

LEADER_NOT_AVAILABLE: Final = CODES[Reason.LEADER_NOT_AVAILABLE]


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0))
async def handle(request: DescribeTopicPartitionsRequest, context: RequestContext) -> DescribeTopicPartitionsResponse:
    """A request without names is for all topics. A limit below 1 still gets one partition, so that a client always makes progress."""
    left = min(max(request.response_partition_limit, 1), DESCRIBED_PARTITIONS_MAX)
    start_name = request.cursor.topic_name if request.cursor is not None else ""
    start_index = max(request.cursor.partition_index, 0) if request.cursor is not None else 0
    response = DescribeTopicPartitionsResponse(topics=[])
    async for name, topic in _topics(request, context, start_name):
        first = start_index if name == start_name else 0
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(name, first)
            break
        if isinstance(topic, PenstockError):
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=context.code(topic), name=name))
            continue
        last = min(first + left, topic.partition_count)
        response.topics.append(_describe(topic, range(first, last), context))
        left -= max(last - first, 0)
        if last < topic.partition_count:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(name, last)
            break
    return response


async def _topics(
    request: DescribeTopicPartitionsRequest, context: RequestContext, start_name: str
) -> AsyncIterator[tuple[str, Topic | PenstockError]]:
    """The topics from a name on, by name."""
    if not request.topics:
        async for topic in topics_from(start_name, context):
            yield topic.name, topic
        return
    turns = Turns()
    for name in sorted({topic.name for topic in request.topics if topic.name >= start_name}):
        await turns.pause_if_long()
        try:
            context.answer(FindTopic(name))
            yield name, context.broker.topics.require(name)
        except PenstockError as error:
            yield name, error


def _describe(topic: Topic, indexes: range, context: RequestContext) -> DescribeTopicPartitionsResponseTopic:
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    for index in indexes:
        record = context.broker.topics.partition(topic, index)
        leader = leader_of(context, record)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
                partition_index=index,
                leader_id=leader,
                leader_epoch=record.leader_epoch,
                replica_nodes=list(record.replicas),
                isr_nodes=list(record.in_sync),
                eligible_leader_replicas=list(record.elr),
                last_known_elr=[],
                offline_replicas=offline_of(context, record.replicas),
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.topic_id.bytes, topic.internal, partitions, context.topic_operations(topic.name)
    )
