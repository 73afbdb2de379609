"""Producer ids, each handed out once in the life of a cluster.

In the metadata store ``producer_ids`` holds ``{"next": n}``: every id below n is taken. A node takes a block of
``PRODUCER_ID_BLOCK`` at a time by compare-and-set before it hands out any of it; what a restart leaves of a block is lost.
"""

from collections import deque
from typing import Final

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.limits import PRODUCER_ID_BLOCK
from penstock.metadata.port import Compare, MetadataStore, Put

KEY: Final = "producer_ids"
_ATTEMPTS_MAX: Final = 100
"""Each failed attempt means that somebody else got a block, so this many in a row is a fault."""


class _Record(msgspec.Struct, frozen=True):
    next: int


class ProducerIds:
    """The ids that this node may hand out."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._ids: deque[int] = deque()

    async def next_id(self) -> int:
        """An id that nobody ever had."""
        for _ in range(_ATTEMPTS_MAX):
            if not self._ids:
                # Callers that wait at the same time may each bring a block; all of them are used. One that came too late
                # for a block looks first whether another caller has brought one.
                self._ids.extend(await self._take_block())
            if self._ids:
                return self._ids.popleft()
        raise PenstockError(Reason.REQUEST_TIMED_OUT, "Other nodes took all producer ids meanwhile. Try again.")

    async def _take_block(self) -> range:
        """A block, or nothing when somebody else was quicker."""
        entry = await self._store.get(KEY)
        try:
            first = 0 if entry is None else msgspec.json.decode(entry.value, type=_Record).next
        except msgspec.DecodeError:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The entry {KEY!r} of the metadata store cannot be read. Restore the store from a backup.",
            ) from None
        compare = Compare(KEY, mod_revision=0 if entry is None else entry.mod_revision)
        value = msgspec.json.encode(_Record(first + PRODUCER_ID_BLOCK))
        taken = (await self._store.txn([compare], [Put(KEY, value)])).succeeded
        return range(first, first + PRODUCER_ID_BLOCK) if taken else range(0)
