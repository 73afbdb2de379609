"""FindCoordinator (API key 10): the node that coordinates a group. A broker that is alone names itself.

Version 1 adds the type of the key (0 group, 1 transactional id, 2 share group) and an error text, 3 is flexible, 4 can name several
keys. Transactional ids are refused with an error with which clients give up at once: with "not available" they would look for a coordinator forever. Before
version 4 that is ``TRANSACTIONAL_ID_AUTHORIZATION_FAILED``, the only such error of librdkafka, which shows the text with it. Java's producer uses a later version
and has a text of its own for that error, so there it is ``UNSUPPORTED_VERSION``, with which it shows ours.
"""

from collections.abc import Awaitable
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import coordinator_of
from penstock.gateways.kafka.portions import respond
from penstock.limits import FIND_COORDINATOR_KEYS_MAX
from penstock.operations.groups import FindCoordinator
from penstock.operations.transactions import FindShareCoordinator, FindTransactionCoordinator
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.find_coordinator_generated import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_NO_NODE: Final = -1
_MANY_FROM: Final = 4


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6))
def handle(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    """Each key by itself, up to a bound."""
    if context.version < _MANY_FROM:
        one = _find(request.key, request.key_type, context)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    keys = request.coordinator_keys
    too_many = PenstockError(
        Reason.INVALID_REQUEST,
        f"{len(keys)} keys are too many for one request; request at most {FIND_COORDINATOR_KEYS_MAX} at a time.",
    )

    def find(at: int) -> FindCoordinatorResponseCoordinator:
        if at >= FIND_COORDINATOR_KEYS_MAX:
            return _refused(keys[at], too_many, context)
        return _find(keys[at], request.key_type, context)

    return respond(range(len(keys)), find, lambda found: FindCoordinatorResponse(coordinators=found))


def _find(key: str, key_type: int, context: RequestContext) -> FindCoordinatorResponseCoordinator:
    try:
        node = coordinator_of(context, _coordinator(key, key_type, context))
    except PenstockError as error:
        return _refused(key, error, context)
    host, port = node.address
    return FindCoordinatorResponseCoordinator(key=key, node_id=node.node_id, host=host, port=port, error_message=None)


def _refused(key: str, error: PenstockError, context: RequestContext) -> FindCoordinatorResponseCoordinator:
    return FindCoordinatorResponseCoordinator(
        key=key, node_id=_NO_NODE, host="", port=_NO_NODE, error_code=context.code(error), error_message=error.text
    )


def _coordinator(key: str, key_type: int, context: RequestContext) -> int:
    if key_type == _GROUP:
        return context.answer(FindCoordinator(key))
    if key_type == _TRANSACTION:
        try:
            return context.answer(FindTransactionCoordinator(key))
        except PenstockError as error:
            if error.reason is Reason.TRANSACTIONS_NOT_SUPPORTED and context.version >= _MANY_FROM:
                raise PenstockError(Reason.UNSUPPORTED_VERSION, error.text) from None
            raise
    if key_type == _SHARE:
        return context.answer(FindShareCoordinator(key))
    raise PenstockError(
        Reason.INVALID_REQUEST,
        f"This broker has no coordinators of type {key_type}; use type 0 (group).",
    )
