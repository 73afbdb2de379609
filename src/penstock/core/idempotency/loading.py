"""From records back to produce keys."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.runtime import Shard
from penstock.core.idempotency.stored import Key, Note, decode_key, decode_note
from penstock.errors import Reason
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.core.idempotency.idempotency import Idempotency

_KEY_BYTES: Final = 256
"""What it costs to remember a key."""


class KeysShard(Shard):
    """The keys of some topics. The last record of a key is what is known of it."""

    def __init__(self, keys: "Idempotency", index: int) -> None:
        self.index: Final = index
        self._keys = keys
        self._notes: dict[Key, Note] = {}
        self.unreadable = 0
        """Records of a later version."""

    def replay(self, key: Buffer, value: Buffer | None, _: int) -> None:
        found, note = decode_key(key), None if value is None else decode_note(value)
        if found is None or (note is None and value is not None):
            self.unreadable += 1
        elif note is None:
            self._notes.pop(found, None)
        else:
            self._notes[found] = note

    def loaded(self) -> Iterator[int]:
        # By when the keys were first used: that is the order in which their windows end.
        left = deque(sorted(self._notes.items(), key=lambda item: item[1].noted_ms))
        self._notes.clear()
        while left:
            self._keys.restore(*left.popleft())
            yield _KEY_BYTES
        self._keys.restored(self)

    def unloaded(self, _: Reason) -> None:
        self._keys.resign(self.index)
