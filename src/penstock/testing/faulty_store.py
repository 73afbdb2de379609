"""A node's own, bad connection to a store that it shares: answers are lost, requests are lost, late or slow, changes are heard of late.

Faults are ordered for the next transactions that touch a key, and happen in the order in which they were ordered. What is held back comes when the
test says so, so that every race can be made to happen. Without an order everything goes through at once.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import (
    Compare,
    Entry,
    Event,
    Operation,
    Range,
    SharedStore,
    Subscriber,
    TxnResult,
    UnknownOutcomeError,
    Unsubscribe,
    check_txn,
)


class StoreFault(Enum):
    """What becomes of one transaction."""

    ANSWER_LOST = auto()
    """It happens, and the caller does not hear so."""
    REQUEST_LOST = auto()
    """It does not happen, and the caller does not hear so either."""
    LATE = auto()
    """The caller gives up; it happens, or fails its compares, at the next :meth:`FaultyStore.release`."""
    SLOW = auto()
    """Nothing happens before the next :meth:`FaultyStore.release`; then all is well, and the caller has waited."""
    ANSWER_SLOW = auto()
    """It happens at once, and its answer comes at the next :meth:`FaultyStore.release`."""


@dataclass(frozen=True, slots=True)
class _Order:
    fault: StoreFault
    prefix: str


class FaultyStore:
    """A :class:`~penstock.metadata.port.SharedStore` that goes on to another one. Make one for each node."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._orders: list[_Order] = []
        self._late: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []
        self._slow = asyncio.Event()
        self._held: list[tuple[Subscriber, list[Event]]] | None = None
        self._met = asyncio.Event()
        self.is_down = False
        """While it is, no call gets through, and nothing of it happens."""
        self.late_results: list[TxnResult] = []
        """What became of those that were late."""
        self.txns: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []
        """Every transaction that was asked for, with its fault or without."""

    # What a test orders.

    def order(self, *faults: StoreFault, touching: str = "") -> None:
        """Let these happen to the next transactions that change a key with this prefix."""
        self._orders += [_Order(fault, touching) for fault in faults]

    async def met(self) -> None:
        """Return once all faults that were ordered have begun."""
        while self._orders:
            self._met.clear()
            await self._met.wait()

    async def release(self) -> None:
        """Let happen what is late, and go on what is slow."""
        late, self._late = self._late, []
        for compares, operations in late:
            self.late_results.append(await self._store.txn(compares, operations))
        self._slow.set()
        self._slow = asyncio.Event()

    def hold_events(self) -> None:
        """Changes happen from now on and are not heard of here; a transaction that makes one ends unknown."""
        self._held = self._held or []

    def let_events(self) -> None:
        """Hear of all that happened meanwhile, in order."""
        held, self._held = self._held or [], None
        for subscriber, events in held:
            subscriber(events)

    # The store.

    @property
    def operations_max(self) -> int:
        return self._store.operations_max

    async def range(self, prefix: str) -> Range:
        self._check()
        return await self._store.range(prefix)

    async def get(self, key: str) -> Entry | None:
        self._check()
        return await self._store.get(key)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        check_txn(compares, operations, self.operations_max)
        self._check()
        self.txns.append((tuple(compares), tuple(operations)))
        fault = self._take(operations)
        slow = self._slow
        match fault:
            case StoreFault.REQUEST_LOST:
                raise _unknown()
            case StoreFault.LATE:
                self._late.append((tuple(compares), tuple(operations)))
                raise _unknown()
            case StoreFault.SLOW:
                await slow.wait()
        result = await self._store.txn(compares, operations)
        match fault:
            case StoreFault.ANSWER_LOST:
                raise _unknown()
            case StoreFault.ANSWER_SLOW:
                await slow.wait()
        if result.succeeded and self._held:
            raise _unknown()
        return result

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        def take(events: list[Event]) -> None:
            if self._held is None:
                subscriber(events)
            else:
                self._held.append((subscriber, events))

        return self._store.subscribe(prefix, take)

    async def grant(self, ttl_ms: int) -> int:
        self._check()
        return await self._store.grant(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        self._check()
        return await self._store.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        self._check()
        await self._store.revoke(lease)

    async def close(self) -> None:
        """Nothing: the store is others' too."""

    def _check(self) -> None:
        if self.is_down:
            raise _unknown()

    def _take(self, operations: Sequence[Operation]) -> StoreFault | None:
        for number, order in enumerate(self._orders):
            if any(operation.key.startswith(order.prefix) for operation in operations):
                del self._orders[number]
                self._met.set()
                return order.fault
        return None


def _unknown() -> PenstockError:
    return UnknownOutcomeError(Reason.METADATA_UNAVAILABLE, "the store did not answer; this is a test's doing")
