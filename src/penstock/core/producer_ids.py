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
        while not self._ids:
            first = await self._take_block()
            # Callers that waited at the same time each bring a block: all of them are used.
            self._ids.extend(range(first, first + PRODUCER_ID_BLOCK))
        return self._ids.popleft()

    async def _take_block(self) -> int:
        for _ in range(_ATTEMPTS_MAX):
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
            if (await self._store.txn([compare], [Put(KEY, value)])).succeeded:
                return first
        raise PenstockError(Reason.REQUEST_TIMED_OUT, "Other nodes took all producer ids meanwhile. Try again.")
