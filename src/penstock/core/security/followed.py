"""Records of one kind under a prefix of the metadata store, all of them in memory, and followed from there."""

from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from penstock.core.topics.records import decode_entry
from penstock.metadata.port import Event, MetadataStore

R = TypeVar("R", bound=msgspec.Struct)


class Stored(NamedTuple, Generic[R]):
    """A record with the revision of its last change."""

    record: R
    revision: int


class Followed(Generic[R]):
    """The records by name. Empty until :meth:`load`."""

    def __init__(self, store: MetadataStore, prefix: str, kind: type[R], changed: Callable[[], None]) -> None:
        """``changed`` is called after each change, once for all changes of one transaction."""
        self.prefix: Final = prefix
        self._store = store
        self._decoder: Final = msgspec.json.Decoder(kind)
        self._changed = changed
        self._records: dict[str, Stored[R]] = {}
        self._held_events: list[Event] | None = []

    async def load(self) -> None:
        """Read all records and follow them from there."""
        self._store.subscribe(self.prefix, self._take)
        found = await self._store.range(self.prefix)
        held, self._held_events = self._held_events or [], None
        for entry in found.entries:
            record = decode_entry(self._decoder, entry.key, entry.value)
            self._records[entry.key.removeprefix(self.prefix)] = Stored(record, entry.mod_revision)
        self._take([event for event in held if event.revision > found.revision])

    def key(self, name: str) -> str:
        """The key of a record in the store."""
        return f"{self.prefix}{name}"

    def get(self, name: str) -> R | None:
        """The record of this name."""
        found = self._records.get(name)
        return None if found is None else found.record

    def stored(self, name: str) -> Stored[R] | None:
        """The same with its revision."""
        return self._records.get(name)

    def items(self) -> Iterator[tuple[str, R]]:
        """All records, sorted by name."""
        for name in sorted(self._records):
            yield name, self._records[name].record

    def __len__(self) -> int:
        return len(self._records)

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            name = event.key.removeprefix(self.prefix)
            if event.entry is None:
                self._records.pop(name, None)
            else:
                record = decode_entry(self._decoder, event.key, event.entry.value)
                self._records[name] = Stored(record, event.entry.mod_revision)
        if events:
            self._changed()
