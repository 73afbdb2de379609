"""The context of a request: its client and version, and how its handler calls the core."""

from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.core.operations.rights import may
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.answers import answer_later
from penstock.gateways.kafka.errors import counted_code
from penstock.gateways.kafka.portions import AT_ONCE_MAX, Turns
from penstock.operations.operation import Action, AnyOperation, Operation, Resource
from penstock.transport.listener import Listener

if TYPE_CHECKING:
    from penstock.gateways.kafka.gateway import KafkaGateway

R = TypeVar("R")
Item = TypeVar("Item")
Response = TypeVar("Response")

_TOPIC_OPERATIONS: Final[Mapping[int, Action]] = {
    3: Action.READ,
    4: Action.WRITE,
    5: Action.CREATE,
    6: Action.DELETE,
    7: Action.ALTER,
    8: Action.DESCRIBE,
    10: Action.DESCRIBE,  # DESCRIBE_CONFIGS
    11: Action.ALTER,  # ALTER_CONFIGS
}
"""The numbers of Kafka's operations on a topic, with the core's actions."""
_GROUP_OPERATIONS: Final[Mapping[int, Action]] = {3: Action.READ, 6: Action.DELETE, 8: Action.DESCRIBE}
_CLUSTER_OPERATIONS: Final[Mapping[int, Action]] = {
    5: Action.CREATE,
    7: Action.ALTER,
    8: Action.DESCRIBE,
    9: Action.ALTER,  # CLUSTER_ACTION
    10: Action.DESCRIBE,  # DESCRIBE_CONFIGS
    11: Action.ALTER,  # ALTER_CONFIGS
    12: Action.WRITE,  # IDEMPOTENT_WRITE
}
OPERATIONS_NOT_REQUESTED: Final = -(2**31)
"""The answer if the request did not ask for the operations."""


@dataclass(slots=True)
class RequestContext:
    """The context of one request. ``now_ms`` is wall time, ``monotonic_ms`` is for timeouts."""

    broker: Broker
    gateway: "KafkaGateway"
    version: int
    client_id: str | None
    client_host: str
    caller: Caller
    now_ms: int
    monotonic_ms: int
    listener: Listener
    local: Address
    """The address that the client connected to."""

    @property
    def advertised(self) -> Address:
        """The address that clients of this listener should connect to: the configured one, else the one that this client used."""
        return self.listener.advertised or self.local

    # Operations. They are carried out on this node, because clients find the right node by themselves.

    def check(self, operation: AnyOperation[Any]) -> None:
        """PenstockError unless the caller has the rights to an operation, which is not carried out."""
        self.broker.door.check(operation, self.caller)

    def answer(self, operation: Operation[R]) -> R:
        """The result of an operation that has it at once."""
        return self.broker.door.answer_here(operation, self.caller)

    async def do(self, operation: Operation[R]) -> R:
        """The result of any operation."""
        return await self.broker.door.do_here(operation, self.caller)

    def later(self, operation: Operation[R], translate: Callable[[R | PenstockError], Response]) -> Future[Response]:
        """The response that ``translate`` makes of the result or the refusal, once there is one."""
        return answer_later(partial(self.broker.door.begin_here, operation, self.caller), translate)

    def each(
        self,
        items: Sequence[Item],
        operation: Callable[[tuple[Item, ...]], Operation[tuple[R, ...]]],
        translate: Callable[[Sequence[R] | PenstockError], Response],
        count_max: int = AT_ONCE_MAX,
    ) -> Response | Awaitable[Response]:
        """The response about many items: one operation for every ``count_max`` of them, with pauses in which others are served."""
        if len(items) > count_max:
            return self._in_pieces(items, operation, translate, count_max)
        response = self.later(operation(tuple(items)), translate)
        return response.result() if response.done() else response

    async def _in_pieces(
        self,
        items: Sequence[Item],
        operation: Callable[[tuple[Item, ...]], Operation[tuple[R, ...]]],
        translate: Callable[[Sequence[R] | PenstockError], Response],
        count_max: int,
    ) -> Response:
        turns, pieces = Turns(), []
        for first in range(0, len(items), count_max):
            await turns.pause_if_long()
            pieces.append(self.later(operation(tuple(items[first : first + count_max])), lambda found: found))
        results: list[R] = []
        for piece in pieces:
            found = await piece
            if isinstance(found, PenstockError):
                # A refusal of the whole operation, which is the same for every piece.
                return translate(found)
            results += found
        return translate(results)

    # The allowed operations, as Kafka's bit sets.

    def topic_operations(self, topic: str) -> int:
        """What the caller may do with a topic."""
        return self._operations(_TOPIC_OPERATIONS, Resource.TOPIC, topic)

    def group_operations(self, group: str) -> int:
        """What the caller may do with a group."""
        return self._operations(_GROUP_OPERATIONS, Resource.GROUP, group)

    def cluster_operations(self) -> int:
        """What the caller may do with the cluster."""
        return self._operations(_CLUSTER_OPERATIONS, Resource.CLUSTER)

    def _operations(self, operations: Mapping[int, Action], resource: Resource, name: str = "") -> int:
        """The bit of an operation is 1 shifted by its number."""
        broker, caller = self.broker, self.caller
        return sum(1 << number for number, action in operations.items() if may(broker, caller, action, resource, name))

    def code(self, refusal: PenstockError | Reason | None) -> int:
        """Kafka's code for a refusal, which is counted; 0 for no refusal."""
        if refusal is None:
            return 0
        return counted_code(self.broker.meters, refusal.reason if isinstance(refusal, PenstockError) else refusal)
