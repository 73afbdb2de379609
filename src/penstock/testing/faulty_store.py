"""A node's unreliable connection to a shared store: responses are lost, requests are lost, late or slow, events are delayed.

Faults are scheduled for the next transactions that change a key, and happen in that order. The test decides when delayed calls
and events continue, so that it can produce every race. Without a fault everything is passed on immediately.
"""

import asyncio
from collections.abc import Sequence
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
    """What happens to one transaction."""

    ANSWER_LOST = auto()
    """It is applied, and the response is lost."""
    REQUEST_LOST = auto()
    """It is not applied, and there is no response."""
    LATE = auto()
    """The caller gives up; it is applied, or fails its compares, at the next :meth:`FaultyStore.release`."""
    SLOW = auto()
    """It is applied at the next :meth:`FaultyStore.release`, for which the caller waits."""
    ANSWER_SLOW = auto()
    """It is applied immediately, and the response arrives at the next :meth:`FaultyStore.release`."""


class FaultyStore:
    """A :class:`~penstock.metadata.port.SharedStore` that forwards to another one. Create one for each node."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._orders: list[tuple[StoreFault, str]] = []
        """Scheduled faults, with the prefix of the keys."""
        self._late: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []
        self._slow = asyncio.Event()
        self._held: list[tuple[Subscriber, list[Event]]] | None = None
        self._met = asyncio.Event()
        self.is_down = False
        """While it is, every call fails without an effect."""
        self.late_results: list[TxnResult] = []
        """The results of late transactions."""
        self.txns: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []
        """Every requested transaction, with or without a fault."""

    # For the test.

    def order(self, *faults: StoreFault, touching: str = "") -> None:
        """Schedule these for the next transactions that change a key with this prefix."""
        self._orders += [(fault, touching) for fault in faults]

    async def met(self) -> None:
        """Return when all scheduled faults have begun."""
        while self._orders:
            self._met.clear()
            await self._met.wait()

    async def release(self) -> None:
        """Apply late transactions, and let slow ones continue."""
        late, self._late = self._late, []
        for compares, operations in late:
            self.late_results.append(await self._store.txn(compares, operations))
        self._slow.set()
        self._slow = asyncio.Event()

    def hold_events(self) -> None:
        """From now on changes are applied without events here; the outcome of a transaction with changes is unknown."""
        self._held = self._held or []

    def let_events(self) -> None:
        """Deliver the events that were held, in order."""
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
        """Does nothing, because others use the store too."""

    def _check(self) -> None:
        if self.is_down:
            raise _unknown()

    def _take(self, operations: Sequence[Operation]) -> StoreFault | None:
        for number, (fault, prefix) in enumerate(self._orders):
            if any(operation.key.startswith(prefix) for operation in operations):
                del self._orders[number]
                self._met.set()
                return fault
        return None


def _unknown() -> PenstockError:
    return UnknownOutcomeError(Reason.METADATA_UNAVAILABLE, "The store did not respond; a test caused this")
