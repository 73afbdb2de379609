"""CreateTopic, DeleteTopic and ListTopics."""

from penstock.core.access import Action
from penstock.core.topics import UNSET, NewTopic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.wire.mq.mq_generated import (
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    ListTopicsRequest,
    ListTopicsResponse,
)


async def create_topic(request: CreateTopicRequest, call: Call) -> CreateTopicResponse:
    """One partition unless told. A topic that is there already is compared in what is asked for, and in nothing else."""
    broker = call.broker
    broker.access.require_topic(call.caller, Action.CREATE, request.name)
    partitions = request.partitions
    if not partitions:
        partitions = UNSET if request.name in broker.topics else 1
    elif partitions < 0:
        raise PenstockError(
            Reason.INVALID_PARTITIONS, f"a topic cannot have {partitions} partitions; omit the field for one partition"
        )
    await broker.topics.create(NewTopic(request.name, partitions, configs=_configs(request)), exist_ok=True)
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
    call.topic(request.name, Action.DELETE)
    await call.broker.topics.delete(request.name)
    return DeleteTopicResponse(success=True)


async def list_topics(_: ListTopicsRequest, call: Call) -> ListTopicsResponse:
    """All but the broker's own."""
    call.broker.access.require_cluster(call.caller, Action.DESCRIBE)
    return ListTopicsResponse(topics=sorted(topic.name for topic in call.broker.topics if not topic.internal))
