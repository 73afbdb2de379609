"""CreateTopic, DeleteTopic and ListTopics."""

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.operations import topics
from penstock.wire.mq.mq_generated import (
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    ListTopicsRequest,
    ListTopicsResponse,
)


async def create_topic(request: CreateTopicRequest, call: Call) -> CreateTopicResponse:
    """One partition by default. A topic that exists is compared in what is asked for, and in nothing else."""
    if request.partitions < 0:
        raise PenstockError(
            Reason.INVALID_PARTITIONS,
            f"a topic cannot have {request.partitions} partitions; omit the field for one partition",
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


async def delete_topic(request: DeleteTopicRequest, call: Call) -> DeleteTopicResponse:
    """With its records, offsets and leases."""
    await call.broker.do(topics.DeleteTopic(request.name), call.caller)
    return DeleteTopicResponse(success=True)


async def list_topics(_: ListTopicsRequest, call: Call) -> ListTopicsResponse:
    """Those that the caller may describe, without the broker's own."""
    found = await call.broker.do(topics.ListTopics(), call.caller)
    return ListTopicsResponse(topics=[topic.name for topic in found])
