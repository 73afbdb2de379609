"""Producer ids, each handed out once in the life of a cluster.

In the metadata store ``producer_ids`` holds ``{"next": n}``: every id below n is taken. A node takes a block of
``PRODUCER_ID_BLOCK`` at a time by compare-and-set before it hands out any of it; what a restart leaves of a block is lost.

A store that was restored from a backup may have gone back, and would hand out ids again: whoever got one would be taken for its first owner, and its records for
repeats. So no id is handed out that is not above every one in the logs that this node has opened, and the store is set forward.
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
"""A client may invent its id: one above this is not followed, so that there are always ids left."""
_ATTEMPTS_MAX: Final = 100
"""Each failed attempt means that somebody else got a block, so this many in a row is a fault."""


class _BlockRecord(msgspec.Struct, frozen=True):
    next: int


class ProducerIds:
    """The ids that this node may hand out."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._ids: deque[int] = deque()
        self._highest = NO_PRODUCER
        self._known_next = 0
        """What the store last said."""

    def note(self, producer_id: int) -> None:
        """A log has records of this one."""
        if self._highest < producer_id <= _NOTED_MAX:
            self._highest = producer_id

    @property
    def is_prepared(self) -> bool:
        """Whether there are ids for the next callers, and the store is not behind the logs."""
        return bool(self._ids) and self._known_next > self._highest

    async def prepare(self) -> None:
        """Have ids before somebody asks: the store may not be there when they do."""
        if not self.is_prepared:
            self._ids.extend(await self._take_block())

    async def next_id(self) -> int:
        """An id that nobody ever had."""
        for _ in range(_ATTEMPTS_MAX):
            if not self._ids:
                # Callers that wait at the same time may each bring a block; all of them are used. One that came too late
                # for a block looks first whether another caller has brought one.
                self._ids.extend(await self._take_block())
            while self._ids:
                found = self._ids.popleft()
                if found > self._highest:
                    return found
        raise PenstockError(Reason.REQUEST_TIMED_OUT, "Other nodes took all producer ids at the same time. Try again.")

    async def _take_block(self) -> range:
        """A block, or nothing when somebody else was quicker."""
        entry = await self._store.get(KEY)
        try:
            first = 0 if entry is None else msgspec.json.decode(entry.value, type=_BlockRecord).next
        except msgspec.DecodeError:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The entry {KEY!r} of the metadata store cannot be read. Restore the store from a backup.",
            ) from None
        first = max(first, self._highest + 1)
        compare = Compare(KEY, mod_revision=0 if entry is None else entry.mod_revision)
        value = msgspec.json.encode(_BlockRecord(first + PRODUCER_ID_BLOCK))
        taken = (await self._store.txn([compare], [Put(KEY, value)])).succeeded
        if taken:
            self._known_next = first + PRODUCER_ID_BLOCK
        return range(first, first + PRODUCER_ID_BLOCK) if taken else range(0)
