"""The agreed state, as the rules see it: a small ordered map with revisions, compare-and-set, and subscriptions.

The revisions are etcd's, so that an embedded store and etcd can stand behind the same rules:

* The store has one revision. It grows by one with every transaction that changes something: one that puts a key, or
  deletes a key that is there. A transaction that fails its compares, or changes nothing, leaves it alone.
* An entry's ``create_revision`` is the revision of the put that made it, its ``mod_revision`` that of the last put.
  Deleted and put again, it is a new entry with a new ``create_revision``.
* A compare against an absent key sees 0 for both. So ``Compare(key, create_revision=0)`` means "nobody made it yet".

A transaction is all or nothing, and durable when ``txn`` returns. It may name a key once only.

Errors are ``PenstockError``: STORAGE_ERROR when the store cannot do its work, METADATA_UNAVAILABLE when a store elsewhere cannot be
reached. After one from ``txn`` it is unknown whether the transaction happened: read again. A malformed call (two changes of one key,
an empty key, a value beyond the limit, more than ``operations_max``) is a mistake of ours and a ``ValueError``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import PenstockError
from penstock.limits import METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX

UNBOUNDED: Final = 2**31
"""Of a store that takes transactions of any size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key that is there."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0
    """The lease that it goes with; 0 for one that stays."""


@dataclass(frozen=True, slots=True)
class Range:
    """The entries under a prefix, ordered by the bytes of their keys, all as of one revision."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the revisions that are given must be equal to the key's. 0 is that of an absent key."""

    key: str
    create_revision: int | None = None
    mod_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Make the entry, or replace its value and its lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the entry; nothing happens when it is absent."""

    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether all compares held, and the store's revision afterwards."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """One key changed in the transaction of ``revision``; ``entry`` is None when it was deleted."""

    key: str
    revision: int
    entry: Entry | None


Subscriber = Callable[[list[Event]], None]
"""Gets the events of one transaction, in the order of its operations. It must not raise and must not wait."""

Unsubscribe = Callable[[], None]


class UnknownOutcomeError(PenstockError):
    """METADATA_UNAVAILABLE of a transaction that may have happened, or may happen still: its answer was lost."""


class MetadataStore(Protocol):
    """The store. All methods are called on the event loop's thread, and subscribers are called there."""

    @property
    def operations_max(self) -> int:
        """How many operations, and how many compares, a transaction may have."""
        ...

    async def range(self, prefix: str) -> Range:
        """All entries whose key starts with ``prefix``; the empty prefix is everything."""
        ...

    async def get(self, key: str) -> Entry | None:
        """The entry of a key, or None."""
        ...

    async def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        """Do the operations if all compares hold. Returns after the transaction's own events were delivered."""
        ...

    def subscribe(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        """Call ``subscriber`` with the events under ``prefix`` of every later transaction, in the order of revisions.

        Subscribe first and read the range second: the events at or below the range's revision are already in it.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked, then give everything back; closing twice is harmless."""
        ...


class SharedStore(MetadataStore, Protocol):
    """A store that several nodes share, with leases: entries that go when their node has not been heard of for a while."""

    async def grant(self, ttl_ms: int) -> int:
        """A new lease; its id is above 0."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease; how many milliseconds it has from now on, 0 when it is gone, and its entries with it."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease now; fine when it is gone."""
        ...


def check_txn(compares: Sequence[Compare], operations: Sequence[Operation], operations_max: int = UNBOUNDED) -> None:
    """Refuse a malformed transaction, alike in every store."""
    if max(len(compares), len(operations)) > operations_max:
        raise ValueError(
            f"a transaction has at most {operations_max} compares and operations, not {len(compares)} and {len(operations)}"
        )
    for compare in compares:
        if compare.create_revision is None and compare.mod_revision is None:
            raise ValueError(f"the compare of {compare.key!r} has no condition: set a create or a mod revision")
    seen: set[str] = set()
    for operation in operations:
        key = operation.key
        if not 0 < len(key.encode()) <= METADATA_KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {METADATA_KEY_BYTES_MAX} bytes, not {len(key.encode())}")
        if key in seen:
            raise ValueError(f"{key!r} is named twice in one transaction")
        seen.add(key)
        if isinstance(operation, Put) and len(operation.value) > METADATA_VALUE_BYTES_MAX:
            raise ValueError(
                f"the value of {key!r} has {len(operation.value)} bytes; the limit is {METADATA_VALUE_BYTES_MAX}"
            )
