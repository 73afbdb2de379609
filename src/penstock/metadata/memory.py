"""A store that forgets everything when the process ends: for tests and simulations. Nothing lies on disk."""

from collections.abc import Sequence

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import (
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
    """A :class:`~penstock.metadata.port.MetadataStore` in a dict. A transaction happens within its call: nothing interleaves."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._revision = 1
        self._subscribers = Subscribers()
        self._closed = False

    async def range(self, prefix: str) -> Range:
        self._check_open()
        found = [entry for key, entry in self._entries.items() if key.startswith(prefix)]
        found.sort(key=lambda entry: entry.key.encode())
        return Range(self._revision, tuple(found))

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        return self._entries.get(key)

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        check_txn(compares, operations)
        self._check_open()
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self._revision)
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

    def _check_open(self) -> None:
        if self._closed:
            raise PenstockError(Reason.STORAGE_ERROR, "The metadata store is closed; the broker is shutting down.")

    def _holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        create_revision, mod_revision = (entry.create_revision, entry.mod_revision) if entry else (0, 0)
        return compare.create_revision in (None, create_revision) and compare.mod_revision in (None, mod_revision)

    def _apply(self, operation: Operation, revision: int) -> Event | None:
        key = operation.key
        old = self._entries.get(key)
        match operation:
            case Put(value=value):
                entry = Entry(key, bytes(value), old.create_revision if old else revision, revision)
                self._entries[key] = entry
                return Event(key, revision, entry)
            case Delete():
                if old is None:
                    return None
                del self._entries[key]
                return Event(key, revision, None)
