"""Assigns producer ids, each only once in a cluster.

The entry ``producer_ids`` of the metadata store is ``{"next": n}``: every id below n is taken. A node takes a block of
``PRODUCER_ID_BLOCK`` ids at a time by compare-and-set before it assigns any of them. A restart loses the rest of a block.

A store that was restored from a backup could assign an id again. The new producer's records would then be taken for duplicates of its
first owner's. So a node assigns only ids above all those in the logs that it has opened, and advances the store if it is behind.
"""

from collections import deque
from typing import Final

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.limits import PRODUCER_ID_BLOCK
from penstock.metadata.port import Compare, MetadataStore, Put

KEY: Final = "producer_ids"
NO_PRODUCER: Final = -1
_NOTED_MAX: Final = 1 << 53
"""Clients may invent ids. Those above this one are ignored, so that there are always ids left."""
_ATTEMPTS_MAX: Final = 100
"""Each failed attempt means that another node got a block, so this many in a row is a fault."""


class _BlockRecord(msgspec.Struct, frozen=True):
    next: int


class ProducerIds:
    """The ids that this node may assign."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._ids: deque[int] = deque()
        self._highest = NO_PRODUCER
        self._known_next = 0
        """As last read from the store."""

    def note(self, producer_id: int) -> None:
        """A log has records of this producer."""
        if self._highest < producer_id <= _NOTED_MAX:
            self._highest = producer_id

    @property
    def is_prepared(self) -> bool:
        """Whether there are ids for the next callers, and the store is not behind the logs."""
        return bool(self._ids) and self._known_next > self._highest

    async def prepare(self) -> None:
        """Take a block in advance: the store may be unavailable when an id is needed."""
        if not self.is_prepared:
            self._ids.extend(await self._take_block())

    async def next_id(self) -> int:
        """An id that was never assigned before."""
        for _ in range(_ATTEMPTS_MAX):
            if not self._ids:
                # Callers that wait at the same time may each take a block; all of them are used.
                self._ids.extend(await self._take_block())
            while self._ids:
                found = self._ids.popleft()
                if found > self._highest:
                    return found
        raise PenstockError(Reason.REQUEST_TIMED_OUT, "Other nodes took all producer ids at the same time. Try again.")

    async def _take_block(self) -> range:
        """A block, or nothing if another node was faster."""
        entry = await self._store.get(KEY)
        try:
            first = 0 if entry is None else msgspec.json.decode(entry.value, type=_BlockRecord).next
        except msgspec.DecodeError:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The entry {KEY!r} of the metadata store cannot be read; restore the store from a backup",
            ) from None
        first = max(first, self._highest + 1)
        compare = Compare(KEY, mod_revision=0 if entry is None else entry.mod_revision)
        value = msgspec.json.encode(_BlockRecord(first + PRODUCER_ID_BLOCK))
        taken = (await self._store.txn([compare], [Put(KEY, value)])).succeeded
        if taken:
            self._known_next = first + PRODUCER_ID_BLOCK
        return range(first, first + PRODUCER_ID_BLOCK) if taken else range(0)
