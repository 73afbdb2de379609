"""The context of a request: its client and version, and how its handler calls the core."""

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.address import Address
from penstock.core.broker import Broker
from penstock.core.operations.rights import may
from penstock.core.quotas.names import QuotaKey
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.acls import ACTIONS
from penstock.gateways.kafka.answers import answer_later
from penstock.gateways.kafka.errors import counted_code
from penstock.gateways.kafka.portions import AT_ONCE_MAX, Turns
from penstock.limits import THROTTLE_MS_MAX
from penstock.operations.access import CLUSTER_NAME
from penstock.operations.operation import Action, AnyOperation, Operation, Resource
from penstock.transport.listener import Listener

if TYPE_CHECKING:
    from penstock.gateways.kafka.gateway import KafkaGateway

R = TypeVar("R")
Item = TypeVar("Item")
Response = TypeVar("Response")

_TOPIC_OPERATIONS: Final = (3, 4, 5, 6, 7, 8, 10, 11)
"""The numbers of Kafka's operations on a topic."""
_GROUP_OPERATIONS: Final = (3, 6, 8, 10, 11)
_CLUSTER_OPERATIONS: Final = (5, 7, 8, 9, 10, 11, 12)
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
    throttle_ms: int = 0
    """For how long the answer throttles the client, because of a quota."""
    throttled_by: QuotaKey | None = None
    """The quota that a handler found exceeded; None if the connection is muted already."""
    seconds: float = 0.0
    """The time that the handler took of the event loop; measured while there are quotas."""

    @property
    def advertised(self) -> Address:
        """The address that clients of this listener should connect to: the configured one, else the one that this client used."""
        return self.listener.advertised or self.local

    # Quotas.

    def consume_bytes_max(self) -> int | None:
        """The most that a fetch may return within the client's quota, if it has one."""
        rate = self.broker.quotas.of(self.caller).consume if self.broker.quotas.is_on else None
        return None if rate is None else rate.burst()

    def may_consume(self, size_bytes: int) -> bool:
        """Whether the client may have these records, which then count. If not, the answer throttles it."""
        rate = self.broker.quotas.of(self.caller).consume if self.broker.quotas.is_on else None
        if rate is None:
            return True
        delay_ms = rate.record_within(size_bytes, self.broker.clock.monotonic_ms())
        self._throttle(QuotaKey.CONSUME, delay_ms)
        return not delay_ms

    def throttle_mutations(self) -> None:
        """Throttle the client for as long as it owes for changes of partitions."""
        if self.broker.quotas.is_on:
            self._throttle(QuotaKey.MUTATIONS, self.broker.quotas.mutation_delay_ms(self.caller))

    def _throttle(self, key: QuotaKey, delay_ms: int) -> None:
        delay_ms = min(delay_ms, THROTTLE_MS_MAX)
        if delay_ms > self.throttle_ms:
            self.throttle_ms, self.throttled_by = delay_ms, key

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
        """What the caller may do with the cluster; nothing if it may not describe it."""
        if not self.may(Action.DESCRIBE, Resource.CLUSTER):
            return 0
        return self._operations(_CLUSTER_OPERATIONS, Resource.CLUSTER)

    def may(self, action: Action, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Whether the caller may do this: for answers that leave something out."""
        return may(self.broker, self.caller, action, resource, name)

    def _operations(self, numbers: Sequence[int], resource: Resource, name: str = CLUSTER_NAME) -> int:
        """The bit of an operation is 1 shifted by its number."""
        return sum(1 << number for number in numbers if self.may(ACTIONS[number], resource, name))

    def code(self, refusal: PenstockError | Reason | None) -> int:
        """Kafka's code for a refusal, which is counted; 0 for no refusal."""
        if refusal is None:
            return 0
        return counted_code(self.broker.meters, refusal.reason if isinstance(refusal, PenstockError) else refusal)
