"""The agreed state, as the rules see it: a small ordered map with revisions, compare-and-set, and subscriptions.

Revisions work as in etcd, so that an embedded store and etcd can have the same interface:

* The store has one revision. It increases by one with every transaction that changes something: one that puts a key, or
  deletes an existing key. A transaction that fails its compares, or changes nothing, does not change it.
* An entry's ``create_revision`` is the revision of the put that created it, its ``mod_revision`` that of the last put.
  Deleted and put again, it is a new entry with a new ``create_revision``.
* A compare with an absent key sees 0 for both. So ``Compare(key, create_revision=0)`` means "the key does not exist".

A transaction is all or nothing, and durable when ``txn`` returns. It may contain a key only once.

Errors are ``PenstockError``: STORAGE_ERROR if the store fails, METADATA_UNAVAILABLE if a remote store cannot be reached. After
one from ``txn`` it is unknown whether the transaction was applied: read again. A malformed call (two changes of one key, an empty
key, a value above the limit, more than ``operations_max``) is a programming error and raises ``ValueError``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import PenstockError
from penstock.limits import METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX

UNBOUNDED: Final = 2**31
"""``operations_max`` of a store without a limit."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An existing key."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0
    """The lease whose end deletes the entry; 0 for none."""


@dataclass(frozen=True, slots=True)
class Range:
    """The entries under a prefix, ordered by the bytes of their keys, all as of one revision."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the specified revisions must be equal to the key's. An absent key has 0."""

    key: str
    create_revision: int | None = None
    mod_revision: int | None = None

    def holds(self, create_revision: int, mod_revision: int) -> bool:
        """Whether the key may have these revisions."""
        return self.create_revision in (None, create_revision) and self.mod_revision in (None, mod_revision)


@dataclass(frozen=True, slots=True)
class Put:
    """Create the entry, or replace its value and its lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the entry, if it exists."""

    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether all compares held, and the store's revision afterwards."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """One key changed in the transaction of ``revision``; ``entry`` is None if it was deleted."""

    key: str
    revision: int
    entry: Entry | None


Subscriber = Callable[[list[Event]], None]
"""Receives the events of one transaction, in the order of its operations. It must not raise and must not block."""

Unsubscribe = Callable[[], None]


class UnknownOutcomeError(PenstockError):
    """METADATA_UNAVAILABLE of a transaction whose response was lost: it may have been applied, or may still be."""


class MetadataStore(Protocol):
    """The store. All methods are called on the event loop's thread, and subscribers are called there."""

    @property
    def operations_max(self) -> int:
        """How many operations, and how many compares, a transaction may have."""
        ...

    async def range(self, prefix: str) -> Range:
        """All entries whose key starts with ``prefix``."""
        ...

    async def get(self, key: str) -> Entry | None:
        """The entry of a key, or None."""
        ...

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        """Apply the operations if all compares hold. Returns after the transaction's own events were delivered."""
        ...

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        """Call ``subscriber`` with the events under ``prefix`` of every later transaction, in the order of revisions.

        Subscribe first and then read the range: events at or below the range's revision are already in it.
        """
        ...

    async def close(self) -> None:
        """Finish pending calls, then release everything. Closing twice is harmless."""
        ...


class SharedStore(MetadataStore, Protocol):
    """A store that several nodes share, with leases: entries that are deleted if their node does not renew them."""

    async def grant(self, ttl_ms: int) -> int:
        """A new lease; its id is above 0."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease; returns the milliseconds that it now has left, 0 if it has expired."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease now, if it exists."""
        ...


def check_txn(compares: Sequence[Compare], operations: Sequence[Operation], operations_max: int = UNBOUNDED) -> None:
    """Refuse a malformed transaction; used by every store."""
    if max(len(compares), len(operations)) > operations_max:
        raise ValueError(
            f"A transaction has at most {operations_max} compares and operations, not {len(compares)} and {len(operations)}"
        )
    for compare in compares:
        if compare.create_revision is None and compare.mod_revision is None:
            raise ValueError(f"The compare of {compare.key!r} has no condition: set a create or a mod revision")
    seen: set[str] = set()
    for operation in operations:
        key = operation.key
        if not 0 < len(key.encode()) <= METADATA_KEY_BYTES_MAX:
            raise ValueError(f"A key has 1 to {METADATA_KEY_BYTES_MAX} bytes, not {len(key.encode())}")
        if key in seen:
            raise ValueError(f"{key!r} is named twice in one transaction")
        seen.add(key)
        if isinstance(operation, Put) and len(operation.value) > METADATA_VALUE_BYTES_MAX:
            raise ValueError(
                f"The value of {key!r} has {len(operation.value)} bytes; the limit is {METADATA_VALUE_BYTES_MAX}"
            )
