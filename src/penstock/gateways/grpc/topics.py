"""Topics: CreateTopic, DeleteTopic, ListTopics and TopicStats."""

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.operations import topics
from penstock.wire.mq.mq_generated import (
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    ListTopicsRequest,
    ListTopicsResponse,
    PartitionStats,
    TopicStatsRequest,
    TopicStatsResponse,
)


async def create_topic(request: CreateTopicRequest, call: GrpcCall) -> CreateTopicResponse:
    """Create a topic, with one partition by default. An existing topic is compared only in the fields that are set."""
    if request.partitions < 0:
        raise PenstockError(
            Reason.INVALID_PARTITIONS,
            f"A topic cannot have {request.partitions} partitions; omit the field for one partition",
        )
    operation = topics.CreateTopic(
        request.name, request.partitions or None, configs=_configs(request), default_partitions=1
    )
    await call.broker.do(operation, call.caller)
    return CreateTopicResponse(success=True)


def _configs(request: CreateTopicRequest) -> dict[str, str | None]:
    configs: dict[str, str | None] = dict(request.configs)
    for field, name in (("retention_ms", "retention.ms"), ("retention_bytes", "retention.bytes")):
        if request.HasField(field):
            if name in configs:
                raise PenstockError(Reason.INVALID_CONFIG, f"{name} is set twice, also as {field}; set it once")
            configs[name] = str(getattr(request, field))
    return configs


async def delete_topic(request: DeleteTopicRequest, call: GrpcCall) -> DeleteTopicResponse:
    """Delete a topic with its records, offsets and leases."""
    await call.broker.do(topics.DeleteTopic(request.name), call.caller)
    return DeleteTopicResponse(success=True)


async def list_topics(_: ListTopicsRequest, call: GrpcCall) -> ListTopicsResponse:
    """List the topics that the caller may describe, except internal ones."""
    found = await call.broker.do(topics.ListTopics(), call.caller)
    return ListTopicsResponse(topics=[topic.name for topic in found])


async def topic_stats(request: TopicStatsRequest, call: GrpcCall) -> TopicStatsResponse:
    """Show the sizes, offsets and rates of a topic."""
    found = await call.broker.do(topics.DescribeTopicStats(request.topic), call.caller)
    return TopicStatsResponse(
        topic=found.topic,
        partitions=[
            PartitionStats(
                partition=partition.partition,
                start_offset=partition.start_offset,
                end_offset=partition.end_offset,
                size_bytes=partition.size_bytes,
            )
            for partition in found.partitions
        ],
        records=found.records,
        size_bytes=found.size_bytes,
        records_in_per_second=found.records_in_per_second,
        bytes_in_per_second=found.bytes_in_per_second,
        records_out_per_second=found.records_out_per_second,
        bytes_out_per_second=found.bytes_out_per_second,
    )
