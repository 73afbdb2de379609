"""All quotas, in memory and in the metadata store.

In the store, ``quotas/users/<user>``, ``quotas/clients/<client id>``, ``quotas/users/<user>/clients/<client id>`` and ``quotas/ips/<address>``,
with ``<default>`` for a name, hold ``{"quotas": {key: value}}``. An entity without quotas has no entry. Each change is one
compare-and-set, and is visible when the call returns.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from penstock.core.quotas.names import PREFIX, Place, QuotaKey, check_changes, place_at, store_key
from penstock.core.topics.records import decode_entry
from penstock.errors import PenstockError, Reason
from penstock.limits import QUOTAS_MAX
from penstock.metadata.port import Compare, Delete, Entry, Event, MetadataStore, Operation, Put

_ATTEMPTS_MAX: Final = 100
"""How often a change is tried again because of a concurrent one."""


class _QuotaRecord(msgspec.Struct, frozen=True):
    quotas: dict[str, float]


_decoder: Final = msgspec.json.Decoder(_QuotaRecord)


class QuotaStore:
    """The quotas of all entities. Empty until :meth:`load`."""

    def __init__(self, store: MetadataStore, changed: Callable[[], None]) -> None:
        """``changed`` is called after every change."""
        self._store = store
        self._changed = changed
        self._quotas: dict[Place, Mapping[str, float]] = {}
        self._held_events: list[Event] | None = []

    async def load(self) -> None:
        """Read everything from the store and follow it from there."""
        self._store.subscribe(PREFIX, self._take)
        found = await self._store.range(PREFIX)
        held, self._held_events = self._held_events or [], None
        for entry in found.entries:
            self._quotas[place_at(entry.key)] = _decode(entry)
        self._take([event for event in held if event.revision > found.revision])

    def __iter__(self) -> Iterator[tuple[Place, Mapping[str, float]]]:
        """All entities in a fixed order, each with its quotas by key."""
        return iter(sorted(self._quotas.items(), key=lambda found: store_key(found[0])))

    def has_any(self, *keys: QuotaKey) -> bool:
        """Whether any entity has a quota for one of these keys."""
        return any(key.value in quotas for quotas in self._quotas.values() for key in keys)

    def value(self, place: Place, key: QuotaKey) -> float | None:
        """The quota that is set on this very entity."""
        return self._quotas.get(place, {}).get(key.value)

    async def alter(self, place: Place, changes: Mapping[str, float | None], *, validate_only: bool = False) -> None:
        """Set and remove quotas of an entity, all of them or none."""
        check_changes(place, changes)
        if validate_only:
            self._check_room(place, _changed(self._quotas.get(place, {}), changes))
            return
        key = store_key(place)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            before = {} if entry is None else _decode(entry)
            after = _changed(before, changes)
            if after == before:
                return
            self._check_room(place, after)
            compare = Compare(key, mod_revision=0 if entry is None else entry.mod_revision)
            operation: Operation = Put(key, msgspec.json.encode(_QuotaRecord(after))) if after else Delete(key)
            if (await self._store.txn([compare], [operation])).succeeded:
                return
        raise PenstockError(
            Reason.REQUEST_TIMED_OUT, "Other clients kept changing the quotas of this entity. Try again"
        )

    def _check_room(self, place: Place, after: Mapping[str, float]) -> None:
        if after and place not in self._quotas and len(self._quotas) >= QUOTAS_MAX:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{QUOTAS_MAX} entities have quotas, which is the limit. Remove quotas that are not needed",
            )

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            place = place_at(event.key)
            if event.entry is None:
                self._quotas.pop(place, None)
            else:
                self._quotas[place] = _decode(event.entry)
        self._changed()


def _changed(before: Mapping[str, float], changes: Mapping[str, float | None]) -> dict[str, float]:
    merged = {**before, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def _decode(entry: Entry) -> Mapping[str, float]:
    return decode_entry(_decoder, entry.key, entry.value).quotas
