"""FindCoordinator (API key 10): which node speaks for a group. Alone, it is this one.

Version 1 adds the kind of key (0 group, 1 transactional id, 2 share group) and an error text, 3 is flexible, 4 asks for several
keys. Transactional ids are refused with the code on which clients give up at once, and a text that says why: on "not
available" they would look for a coordinator for ever.
"""

from typing import Final

from penstock.errors import Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import code_for
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.find_coordinator_generated import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

KEY: Final = ApiKey.FIND_COORDINATOR

_GROUP: Final = 0
_TRANSACTION: Final = 1
_NO_NODE: Final = -1


def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    """The same answer for every key."""
    reason, text = _refusal(request.key_type)
    code = code_for(reason)
    node_id, host, port = _NO_NODE, "", _NO_NODE
    if reason is None:
        node_id, host, port = context.broker.node_id, context.advertised.host, context.advertised.port
    if context.version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=text, node_id=node_id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponseCoordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=text
            )
            for key in request.coordinator_keys
        ]
    )


def _refusal(key_type: int) -> tuple[Reason | None, str | None]:
    if key_type == _GROUP:
        return None, None
    if key_type == _TRANSACTION:
        return (
            Reason.TRANSACTIONS_NOT_SUPPORTED,
            "This broker has no transactions. Produce without transactional.id; idempotence works without it.",
        )
    return Reason.INVALID_REQUEST, f"This broker has no coordinators of type {key_type}; ask for a group (type 0)."
