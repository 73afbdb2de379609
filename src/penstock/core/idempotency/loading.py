"""From records back to produce keys: the replay of one partition of ``__idempotency``, in steps, so that a large one holds nobody up."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from penstock.core.idempotency.stored import Key, Note, decode_key, decode_note
from penstock.types import Buffer, TopicName

_RECORDS_MAX: Final = 5_000
"""Replayed in one step: a few milliseconds."""


class KeysLoad:
    """One replay. The last record of a key is what is known of it."""

    def __init__(self, records: Iterator[tuple[Buffer, Buffer | None]]) -> None:
        self._records = records
        self._notes: dict[Key, Note] = {}
        self._left: deque[tuple[Key, Note]] | None = None
        self.strange = 0
        """Records of a later version."""
        self.open_keys: dict[tuple[TopicName, int], dict[Key, int]] = {}
        """Of a broker that is alone: keys whose records are to be looked for, by partition, and from where on."""

    def step(self) -> bool:
        """Replay some records; True when there are no more."""
        if self._left is not None:
            return True
        left = _RECORDS_MAX
        for key_data, value in islice(self._records, _RECORDS_MAX):
            left -= 1
            key, note = decode_key(key_data), None if value is None else decode_note(value)
            if key is None or (note is None and value is not None):
                self.strange += 1
            elif note is None:
                self._notes.pop(key, None)
            else:
                self._notes[key] = note
        if left:
            self._left = deque(sorted(self._notes.items(), key=lambda item: item[1].noted_ms))
            self._notes = {}
        return left > 0

    @property
    def has_more(self) -> bool:
        """Whether there is more to take."""
        return bool(self._left)

    def take(self) -> Iterator[tuple[Key, Note]]:
        """Some of what was replayed, by when the keys were first used."""
        left = self._left
        assert left is not None, "all records are replayed first"
        for _ in range(min(len(left), _RECORDS_MAX)):
            yield left.popleft()
