"""A store in memory, for tests and simulations. Nothing is stored on disk.

It has no clock: leases expire when :meth:`MemoryStore.expire` is called with the time.
"""

from collections.abc import Sequence

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import (
    UNBOUNDED,
    Compare,
    Delete,
    Entry,
    Event,
    Operation,
    Put,
    Range,
    Subscriber,
    TxnResult,
    Unsubscribe,
    check_txn,
)
from penstock.metadata.subscribers import Subscribers


class MemoryStore:
    """A :class:`~penstock.metadata.port.SharedStore` in a dict. A transaction is applied within its call: nothing interleaves."""

    def __init__(self, operations_max: int = UNBOUNDED) -> None:
        self.operations_max = operations_max
        self._entries: dict[str, Entry] = {}
        self._revision = 1
        self._subscribers = Subscribers()
        self._closed = False
        self._now_ms = 0
        self._leases: dict[int, tuple[int, int]] = {}
        """By id: time to live, and when it expires."""
        self._next_lease = 1

    async def range(self, prefix: str) -> Range:
        self._check_open()
        found = [entry for key, entry in self._entries.items() if key.startswith(prefix)]
        found.sort(key=lambda entry: entry.key.encode())
        return Range(self._revision, tuple(found))

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        return self._entries.get(key)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        check_txn(compares, operations, self.operations_max)
        self._check_open()
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self._revision)
        for operation in operations:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise PenstockError(Reason.INVALID_REQUEST, f"Lease {operation.lease} has ended; take a new one")
        revision = self._revision + 1
        events = [event for operation in operations if (event := self._apply(operation, revision)) is not None]
        if events:
            self._revision = revision
            self._subscribers.deliver(events)
        return TxnResult(True, self._revision)

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        return self._subscribers.add(prefix, subscriber)

    async def close(self) -> None:
        self._closed = True

    # Leases.

    async def grant(self, ttl_ms: int) -> int:
        self._check_open()
        lease = self._next_lease
        self._next_lease += 1
        self._leases[lease] = ttl_ms, self._now_ms + ttl_ms
        return lease

    async def keep_alive(self, lease: int) -> int:
        self._check_open()
        found = self._leases.get(lease)
        if found is None:
            return 0
        self._leases[lease] = found[0], self._now_ms + found[0]
        return found[0]

    async def revoke(self, lease: int) -> None:
        self._check_open()
        self._end(lease)

    def expire(self, now_ms: int) -> None:
        """Set the time to ``now_ms`` and end the leases that were not renewed."""
        self._now_ms = max(self._now_ms, now_ms)
        for lease in [lease for lease, (_, until_ms) in self._leases.items() if until_ms <= self._now_ms]:
            self._end(lease)

    def extend_all(self) -> None:
        """Restart every lease, as a store does when its leader changes."""
        self._leases = {lease: (ttl_ms, self._now_ms + ttl_ms) for lease, (ttl_ms, _) in self._leases.items()}

    def _end(self, lease: int) -> None:
        if self._leases.pop(lease, None) is None:
            return
        gone = sorted(key for key, entry in self._entries.items() if entry.lease == lease)
        if gone:
            self._revision += 1
            for key in gone:
                del self._entries[key]
            self._subscribers.deliver([Event(key, self._revision, None) for key in gone])

    def _check_open(self) -> None:
        if self._closed:
            raise PenstockError(Reason.STORAGE_ERROR, "The metadata store is closed; the broker is shutting down.")

    def _holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        return compare.holds(entry.create_revision, entry.mod_revision) if entry else compare.holds(0, 0)

    def _apply(self, operation: Operation, revision: int) -> Event | None:
        key = operation.key
        old = self._entries.get(key)
        match operation:
            case Put(value=value, lease=lease):
                entry = Entry(key, bytes(value), old.create_revision if old else revision, revision, lease)
                self._entries[key] = entry
                return Event(key, revision, entry)
            case Delete():
                if old is None:
                    return None
                del self._entries[key]
                return Event(key, revision, None)
