"""The APIs that are always refused. They are listed, because without them clients wait forever, or guess."""

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.cluster import DescribeQuorum
from penstock.operations.groups import ConsumerGroupHeartbeat
from penstock.operations.operation import Operation
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.consumer_group_heartbeat_generated import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.kafka.describe_quorum_generated import DescribeQuorumRequest, DescribeQuorumResponse


@handles(ApiKey.DESCRIBE_QUORUM, versions=(0, 2))
def describe_quorum(_request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
    """Refused with the code that clients got from a Kafka cluster on ZooKeeper, so tools that look for the quorum do without it.

    Version 2 adds the text.
    """
    code, text = _refused(DescribeQuorum(), context)
    return DescribeQuorumResponse(error_code=code, error_message=text)


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1))
def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Refused as by a Kafka broker whose feature group.version is 0.

    If this API were not listed, librdkafka would wait forever; with this answer it fails at once. Java's consumer
    fails at once either way.
    """
    code, text = _refused(ConsumerGroupHeartbeat(request.group_id), context)
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=text)


def _refused(operation: Operation[None], context: RequestContext) -> tuple[int, str | None]:
    try:
        context.answer(operation)
    except PenstockError as error:
        return context.code(error), error.text
    return 0, None
