"""ConsumerGroupHeartbeat (API key 68): refused with ``UNSUPPORTED_VERSION``, as a Kafka broker does whose feature group.version is 0.

The newer consumer protocol (KIP-848) does not exist here. The API is listed all the same: where it is not, librdkafka waits for ever without a word, and with this
answer it fails at once. Java's consumer fails at once either way.
"""

from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.consumer_group_heartbeat_generated import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

KEY: Final = ApiKey.CONSUMER_GROUP_HEARTBEAT
_TEXT: Final = "This broker does not support the consumer group protocol of KIP-848. Set group.protocol=classic"


def handle(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> ConsumerGroupHeartbeatResponse:
    """The same for every member."""
    refusal = PenstockError(Reason.UNSUPPORTED_VERSION, _TEXT)
    try:
        context.require_group(Action.READ, request.group_id)
    except PenstockError as error:
        refusal = error
    return ConsumerGroupHeartbeatResponse(error_code=context.code(refusal), error_message=refusal.text)
