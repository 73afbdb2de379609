"""Groups that were registered for a topic by name, through an API whose registrations have ids.

In the metadata store, ``registered/<topic id>/<group>`` holds ``{"id", "created_ms"}``. A registration belongs to the topic's id, so
a topic that is deleted and created again has none. Members and offsets need no registration.

A group may be registered for a topic that does not exist. Its key is then ``registered/@<topic name>/<group>`` until the topic is
created (``core/awaited_groups.py``).

Any node may register a group, with one compare-and-set. Each node counts the registrations in the store's events, and removes
those of a deleted topic.
"""

from collections import Counter
from typing import Final
from uuid import UUID

import msgspec

from penstock.core.topics.names import check_topic_name
from penstock.core.topics.records import TOPICS_PREFIX, decode_entry, decode_topic
from penstock.core.topics.topics import Topic, Topics
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX, METADATA_KEY_BYTES_MAX
from penstock.metadata.port import Compare, Delete, Entry, Event, MetadataStore, Put
from penstock.ports import Clock, Entropy

PREFIX: Final = "registered/"
_AWAITED: Final = "@"
"""Before the name of a topic, which cannot contain this character."""
_AWAITING_MAX: Final = 10_000
"""Registrations for topics that do not exist: such a registration cannot be removed with its topic, and most are typing errors."""
_DELETES_MAX: Final = 1000
"""Per transaction, if the store allows as many."""


class RegisteredGroup(msgspec.Struct, frozen=True):
    """The value of a registration."""

    id: UUID
    created_ms: int


_decoder: Final = msgspec.json.Decoder(RegisteredGroup)


class GroupRegistry:
    """The registrations of all topics. Memory has the number of each topic, and the groups that wait for a topic."""

    def __init__(self, store: MetadataStore, clock: Clock, entropy: Entropy, groups_max: int = GROUPS_MAX) -> None:
        self._awaiting_max = min(_AWAITING_MAX, groups_max)
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._groups_max = groups_max
        self._counts: Counter[str] = Counter()
        """The number of registrations of each topic, by its hexadecimal id."""
        self._awaiting: dict[str, set[str]] = {}
        """Groups that were registered for a topic before it existed, by the topic's name."""
        self._total = 0
        self._making = 0
        """Registrations that are being written to the store."""
        self._held_events: list[Event] | None = []

    async def load(self, topics: Topics) -> None:
        """Count the registrations, follow their changes, and remove those of topics whose deletion a crash interrupted."""
        self._store.subscribe(PREFIX, self._take)
        found = await self._store.range(PREFIX)
        held, self._held_events = self._held_events or [], None
        for entry in found.entries:
            self._add(entry.key)
        self._take([event for event in held if event.revision > found.revision])
        known = {topic.topic_id.hex for topic in topics}
        if self._counts.keys() - known:
            # Another node may have created a topic that is not known here yet.
            known |= {decode_topic(entry).id.hex for entry in (await self._store.range(TOPICS_PREFIX)).entries}
            owners = [(entry, _parts(entry.key)[0]) for entry in found.entries]
            await self._delete(
                [entry for entry, topic in owners if not topic.startswith(_AWAITED) and topic not in known]
            )

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            if event.entry is None:
                self._remove(event.key)
            elif event.entry.create_revision == event.entry.mod_revision:
                self._add(event.key)

    async def register(self, topic: Topic, group: str) -> RegisteredGroup:
        """Register a group, or return its registration if it has one, for the topic or from before the topic existed."""
        key, awaiting = _key(topic.topic_id.hex, group), f"{PREFIX}{_AWAITED}{topic.name}/{group}"
        entry = await self._store.get(awaiting)
        if entry is not None:
            compares = [Compare(key, create_revision=0), Compare(awaiting, mod_revision=entry.mod_revision)]
            moved = await self._store.txn(compares, [Put(key, entry.value), Delete(awaiting)])
            if not moved.succeeded:
                # Another call moved it, or registered the group: use that registration.
                await self._store.txn([], [Delete(awaiting)])
        return await self._register(key)

    async def register_for(self, topic: str, group: str) -> RegisteredGroup:
        """Register a group for a topic that does not exist yet."""
        check_topic_name(topic)
        key = _key(f"{_AWAITED}{topic}", group)
        waiting = sum(map(len, self._awaiting.values()))
        if group not in self._awaiting.get(topic, ()) and waiting + self._making >= self._awaiting_max:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{waiting} groups are registered for topics that do not exist, which is the limit. Create the topic "
                f"{topic} first, or check its name.",
            )
        return await self._register(key)

    def awaiting(self, topic: str) -> list[str]:
        """The groups that were registered for a topic of this name before it existed."""
        return sorted(self._awaiting.get(topic, ()))

    def awaited_topics(self) -> list[str]:
        """The topics for which groups wait."""
        return list(self._awaiting)

    async def _register(self, key: str) -> RegisteredGroup:
        entry = await self._store.get(key)
        if entry is None:
            if self._total + self._making >= self._groups_max:
                raise PenstockError(
                    Reason.POLICY_VIOLATION,
                    f"There are {self._total} registered groups, which is the limit. Delete topics that are not needed.",
                )
            new = RegisteredGroup(self._entropy.uuid(), self._clock.now_ms())
            # Counted before it is written: concurrent calls must not exceed the limit together.
            self._making += 1
            try:
                made = await self._store.txn([Compare(key, create_revision=0)], [Put(key, msgspec.json.encode(new))])
            finally:
                self._making -= 1
            if made.succeeded:
                return new
            entry = await self._store.get(key)
            if entry is None:
                raise PenstockError(Reason.REQUEST_TIMED_OUT, "The topic was deleted at the same time. Try again.")
        return decode_entry(_decoder, key, entry.value)

    def has_any(self, topic: Topic) -> bool:
        """Whether any group is registered for the topic."""
        return topic.topic_id.hex in self._counts

    async def forget_topic(self, topic: Topic) -> None:
        """The topic was deleted: remove its registrations."""
        found = await self._store.range(f"{PREFIX}{topic.topic_id.hex}/")
        await self._delete(list(found.entries))

    async def _delete(self, entries: list[Entry]) -> None:
        at_once = min(_DELETES_MAX, self._store.operations_max)
        for first in range(0, len(entries), at_once):
            await self._store.txn([], [Delete(entry.key) for entry in entries[first : first + at_once]])

    def _add(self, key: str) -> None:
        topic, group = _parts(key)
        self._total += 1
        if topic.startswith(_AWAITED):
            self._awaiting.setdefault(topic.removeprefix(_AWAITED), set()).add(group)
        else:
            self._counts[topic] += 1

    def _remove(self, key: str) -> None:
        topic, group = _parts(key)
        self._total -= 1
        if topic.startswith(_AWAITED):
            groups = self._awaiting[topic.removeprefix(_AWAITED)]
            groups.discard(group)
            if not groups:
                del self._awaiting[topic.removeprefix(_AWAITED)]
        else:
            self._counts[topic] -= 1
            if not self._counts[topic]:
                del self._counts[topic]


def _key(topic: str, group: str) -> str:
    key = f"{PREFIX}{topic}/{group}"
    if not 0 < len(group) <= GROUP_ID_CHARS_MAX or len(key.encode()) > METADATA_KEY_BYTES_MAX:
        raise PenstockError(
            Reason.INVALID_GROUP_ID,
            f"The name of a group has 1 to {GROUP_ID_CHARS_MAX} characters. Choose another name.",
        )
    return key


def _parts(key: str) -> tuple[str, str]:
    """The topic (the hexadecimal id, or the name after :data:`_AWAITED`) and the group of a registration."""
    topic, _, group = key.removeprefix(PREFIX).partition("/")
    return topic, group
