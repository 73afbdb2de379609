"""Groups that were registered for a topic by name, through an API that gives a registration an id of its own.

In the metadata store ``registered/<topic id>/<group>`` holds ``{"id", "created_ms"}``. A registration belongs to the topic by
its id, so a topic that is deleted and made again has none. It says nothing about members or offsets: those are the
coordinator's, and need no registration.

Any node may register: one compare-and-set decides. How many there are is followed as the store tells it, whoever made them; when a topic goes,
every node that hears of it removes what is left.
"""

from typing import Final
from uuid import UUID

import msgspec

from penstock.core.topic_image import Topic, TopicImage
from penstock.core.topic_records import TOPICS_PREFIX, decode_topic
from penstock.errors import PenstockError, Reason
from penstock.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX, METADATA_KEY_BYTES_MAX
from penstock.metadata.port import Compare, Delete, Entry, Event, MetadataStore, Put
from penstock.ports import Clock, Entropy

PREFIX: Final = "registered/"
_DELETES_MAX: Final = 1000
"""Of one transaction, where the store allows as many."""


class RegisteredGroup(msgspec.Struct, frozen=True):
    """The value of a registration."""

    id: UUID
    created_ms: int


_decoder: Final = msgspec.json.Decoder(RegisteredGroup)


class GroupRegistry:
    """The registrations of all topics. What is in memory is how many each topic has."""

    def __init__(self, store: MetadataStore, clock: Clock, entropy: Entropy, groups_max: int = GROUPS_MAX) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._groups_max = groups_max
        self._counts: dict[UUID, int] = {}
        self._total = 0
        self._making = 0
        """Those that are on their way to the store."""
        self._held_events: list[Event] | None = []

    async def load(self, topics: TopicImage) -> None:
        """Count what there is, follow it, and remove what belonged to topics whose deletion a crash interrupted."""
        self._store.subscribe(PREFIX, self._take)
        found = await self._store.range(PREFIX)
        held, self._held_events = self._held_events or [], None
        for entry in found.entries:
            self._add(_topic_id(entry.key), 1)
        self._take([event for event in held if event.revision > found.revision])
        orphans = [entry for entry in found.entries if topics.get_by_id(_topic_id(entry.key)) is None]
        if orphans:
            # Another node may have made a topic that is not known here yet.
            made = {decode_topic(entry).id for entry in (await self._store.range(TOPICS_PREFIX)).entries}
            await self._delete([entry for entry in orphans if _topic_id(entry.key) not in made])

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            if event.entry is None:
                self._add(_topic_id(event.key), -1)
            elif event.entry.create_revision == event.entry.mod_revision:
                self._add(_topic_id(event.key), 1)

    async def register(self, topic: Topic, group: str) -> RegisteredGroup:
        """Register a group; one that is registered already is given back as it was."""
        key = _key(topic, group)
        entry = await self._store.get(key)
        if entry is None:
            if self._total + self._making >= self._groups_max:
                raise PenstockError(
                    Reason.POLICY_VIOLATION,
                    f"There are {self._total} registered groups, which is the most. Delete topics that are not needed.",
                )
            new = RegisteredGroup(self._entropy.uuid(), self._clock.now_ms())
            # Before it is made: calls that run at the same time must not pass the limit together.
            self._making += 1
            try:
                made = await self._store.txn([Compare(key, create_revision=0)], [Put(key, msgspec.json.encode(new))])
            finally:
                self._making -= 1
            if made.succeeded:
                return new
            entry = await self._store.get(key)
            if entry is None:
                raise PenstockError(Reason.REQUEST_TIMED_OUT, "The topic was deleted meanwhile. Try again.")
        try:
            return _decoder.decode(entry.value)
        except msgspec.DecodeError:
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The entry {key!r} of the metadata store cannot be read. Restore the store from a backup.",
            ) from None

    def has_any(self, topic: Topic) -> bool:
        """Whether a group is registered for the topic."""
        return topic.topic_id in self._counts

    async def forget_topic(self, topic: Topic) -> None:
        """The topic is deleted, and its registrations with it."""
        found = await self._store.range(f"{PREFIX}{topic.topic_id.hex}/")
        await self._delete(list(found.entries))

    async def _delete(self, entries: list[Entry]) -> None:
        at_once = min(_DELETES_MAX, self._store.operations_max)
        for first in range(0, len(entries), at_once):
            await self._store.txn([], [Delete(entry.key) for entry in entries[first : first + at_once]])

    def _add(self, topic_id: UUID, count: int) -> None:
        self._total += count
        left = self._counts.get(topic_id, 0) + count
        if left > 0:
            self._counts[topic_id] = left
        else:
            self._counts.pop(topic_id, None)


def _key(topic: Topic, group: str) -> str:
    key = f"{PREFIX}{topic.topic_id.hex}/{group}"
    if not 0 < len(group) <= GROUP_ID_CHARS_MAX or len(key.encode()) > METADATA_KEY_BYTES_MAX:
        raise PenstockError(
            Reason.INVALID_GROUP_ID, f"A group has a name of 1 to {GROUP_ID_CHARS_MAX} characters. Choose another one."
        )
    return key


def _topic_id(key: str) -> UUID:
    return UUID(hex=key.removeprefix(PREFIX).partition("/")[0])
