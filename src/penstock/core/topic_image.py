"""All topics as the metadata store last told them, in memory.

Invariant: the image changes only by the store's events (configs of brokers among them), so a change is visible here exactly when it is durable, whoever
made it. When a topic appears or grows, its partitions are known already.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.core.topic_config import TopicConfig
from penstock.core.topic_names import check_topic_name, collision_key
from penstock.core.topic_records import (
    NOBODY,
    PARTITIONS_PREFIX,
    TOPICS_PREFIX,
    PartitionRecord,
    TopicRecord,
    decode_partition,
    decode_topic,
    partition_of_key,
    topic_key,
    topic_of_key,
)
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Entry, Event, MetadataStore, Unsubscribe
from penstock.types import TopicId, TopicName

MIN_IN_SYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as of now; a change makes a new one."""

    name: TopicName
    topic_id: TopicId
    partition_count: int
    replication_factor: int
    config: TopicConfig
    overrides: Mapping[str, str] = field(hash=False)
    created_ms: int
    updated_ms: int
    internal: bool

    @property
    def min_in_sync(self) -> int:
        """How many replicas must be in sync for acks=all: what the topic says; else what the cluster says, as far as the topic has so many."""
        return self.min_in_sync_of(self.replication_factor)

    def min_in_sync_of(self, replica_count: int) -> int:
        """The same for a partition that has so many replicas: one may have fewer than the others."""
        wanted = self.config.min_insync_replicas
        return wanted if MIN_IN_SYNC in self.overrides else min(wanted, self.replication_factor, replica_count)


_RECORDS_SHARED_MAX: Final = 10_000
"""Different records that are kept to be shared; elections make new ones."""

Hook = Callable[[Topic], None]
"""Told of a topic after a change of it is in the image."""

PartitionHook = Callable[[Topic, int], None]
"""Told of a partition after its record has changed; when a topic appears or grows, the topic's hook speaks for its partitions."""


class TopicImage:
    """The topics of the cluster. Made empty; :meth:`load` fills it and calls no hooks."""

    def __init__(self, store: MetadataStore, config_defaults: Mapping[str, str]) -> None:
        self.on_created: Final[list[Hook]] = []
        self.on_changed: Final[list[Hook]] = []
        self.on_deleted: Final[list[Hook]] = []
        self.on_partition: Final[list[PartitionHook]] = []
        self.partition_count = 0
        """Of all topics together."""
        self._store = store
        self.config_defaults = config_defaults
        """What topics have that do not say otherwise; changed by :meth:`set_config_defaults`."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._names: list[str] = []
        self._by_collision_key: dict[str, str] = {}
        self._partitions: dict[TopicId, list[PartitionRecord | None]] = {}
        self._revisions: dict[TopicId, list[int]] = {}
        # Most topics and partitions are alike: one object each, however many there are.
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        self._records: dict[bytes, PartitionRecord] = {}
        self._held_events: list[Event] | None = []
        self._unsubscribes: list[Unsubscribe] = []

    async def load(self) -> None:
        """Read everything from the store and follow it from there."""
        # Partitions first, here and below: when a topic appears, its partitions are known.
        for prefix in (PARTITIONS_PREFIX, TOPICS_PREFIX):
            self._unsubscribes.append(self._store.subscribe(prefix, self._take))
        partitions = await self._store.range(PARTITIONS_PREFIX)
        topics = await self._store.range(TOPICS_PREFIX)
        held, self._held_events = self._held_events or [], None
        for entry in partitions.entries:
            self._put_partition(entry)
        for entry in topics.entries:
            self._put_topic(entry)
        for event in held:
            known = partitions if event.key.startswith(PARTITIONS_PREFIX) else topics
            if event.revision > known.revision:
                self._take([event])

    def close(self) -> None:
        """Follow the store no more."""
        for unsubscribe in self._unsubscribes:
            unsubscribe()
        self._unsubscribes.clear()

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: TopicId) -> Topic | None:
        """The topic of that id."""
        return self._by_id.get(topic_id)

    async def is_agreed(self, name: str) -> bool:
        """Whether there is such a topic by now, though this image may not have it for a moment more."""
        return name in self._by_name or await self._store.get(topic_key(name)) is not None

    def require(self, name: str) -> Topic:
        """The topic of that name, or ``UNKNOWN_TOPIC_OR_PARTITION``."""
        topic = self._by_name.get(name)
        if topic is None:
            shown = ascii(name if len(name) <= 64 else f"{name[:61]}...")
            raise PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {shown}.")
        return topic

    def require_named(self, name: str) -> Topic:
        """The same, for a name that may be no topic's at all: ``INVALID_TOPIC`` then."""
        if name not in self._by_name:
            check_topic_name(name)
        return self.require(name)

    def require_id(self, topic_id: TopicId) -> Topic:
        """The topic of that id, or ``UNKNOWN_TOPIC_ID``."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id}. It may have been deleted."
            )
        return topic

    def __iter__(self) -> Iterator[Topic]:
        """All topics, by name."""
        return iter([self._by_name[name] for name in self._names])

    def iterate_from(self, name: str) -> Iterator[Topic]:
        """The topics from ``name`` on, by name: those that are there now, and still are when their turn comes."""
        for each in self._names[bisect_left(self._names, name) :]:
            topic = self._by_name.get(each)
            if topic is not None:
                yield topic

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def partition(self, topic: Topic, index: int) -> PartitionRecord:
        """Who has and who leads a partition, or ``UNKNOWN_TOPIC_OR_PARTITION``."""
        if not 0 <= index < topic.partition_count:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic.name} has no partition {index}; it has {topic.partition_count}, counted from 0.",
            )
        records = self._partitions.get(topic.topic_id, [])
        return (records[index] if index < len(records) else None) or NOBODY

    def partition_epoch(self, topic: Topic, index: int) -> int:
        """The revision of a partition's record, by which it is changed; 0 when there is none."""
        revisions = self._revisions.get(topic.topic_id, [])
        return revisions[index] if index < len(revisions) else 0

    def partitions(self, topic: Topic) -> list[PartitionRecord]:
        """The same for all partitions of a topic, in their order."""
        records = self._partitions.get(topic.topic_id, [])[: topic.partition_count]
        records += [None] * (topic.partition_count - len(records))
        return [record or NOBODY for record in records]

    def colliding(self, name: str) -> str | None:
        """The topic that has this name, or one that cannot be told from it."""
        return self._by_collision_key.get(collision_key(name))

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            if event.key.startswith(PARTITIONS_PREFIX):
                if event.entry is not None:
                    self._put_partition(event.entry)
            elif event.entry is not None:
                self._put_topic(event.entry)
            else:
                self._drop_topic(topic_of_key(event.key))

    def _put_partition(self, entry: Entry) -> None:
        topic_id, index = partition_of_key(entry.key)
        revisions = self._revisions.setdefault(topic_id, [])
        records = self._partitions.setdefault(topic_id, [])
        if index >= len(records):
            records.extend([None] * (index + 1 - len(records)))
            revisions.extend([0] * (index + 1 - len(revisions)))
        if entry.mod_revision <= revisions[index]:
            return
        revisions[index] = entry.mod_revision
        records[index] = self._record_from(entry)
        topic = self._by_id.get(topic_id)
        if topic is not None and index < topic.partition_count:
            for hook in self.on_partition:
                hook(topic, index)

    def _record_from(self, entry: Entry) -> PartitionRecord:
        record = self._records.get(entry.value)
        if record is None:
            if len(self._records) >= _RECORDS_SHARED_MAX:
                self._records.clear()
            record = self._records[entry.value] = decode_partition(entry.key, entry.value)
        return record

    def _put_topic(self, entry: Entry) -> None:
        name = topic_of_key(entry.key)
        topic = self.topic_from(name, decode_topic(entry))
        old = self._by_name.get(name)
        if old is not None and old.topic_id != topic.topic_id:
            self._drop_topic(name)
            old = None
        self._by_name[name] = topic
        self._by_id[topic.topic_id] = topic
        self.partition_count += topic.partition_count - (0 if old is None else old.partition_count)
        if old is None:
            insort(self._names, name)
            self._by_collision_key[collision_key(name)] = name
        for hook in self.on_created if old is None else self.on_changed:
            hook(topic)

    def _drop_topic(self, name: str) -> None:
        topic = self._by_name.pop(name, None)
        if topic is None:
            return
        del self._by_id[topic.topic_id]
        del self._names[bisect_left(self._names, name)]
        self._by_collision_key.pop(collision_key(name), None)
        self._partitions.pop(topic.topic_id, None)
        self._revisions.pop(topic.topic_id, None)
        self.partition_count -= topic.partition_count
        for hook in self.on_deleted:
            hook(topic)

    def topic_from(self, name: str, record: TopicRecord) -> Topic:
        """The topic that a record describes."""
        return Topic(
            name=TopicName(name),
            topic_id=record.id,
            partition_count=record.partitions,
            replication_factor=record.replication_factor,
            config=self.config_from(record.config),
            overrides=record.config,
            created_ms=record.created_ms,
            updated_ms=record.updated_ms,
            internal=record.internal,
        )

    def set_config_defaults(self, defaults: Mapping[str, str]) -> None:
        """Let topics have these configs that do not say otherwise. The hooks hear of topics for which something changes by it."""
        if defaults == self.config_defaults:
            return
        self.config_defaults = defaults
        self._configs.clear()
        for topic in list(self._by_name.values()):
            config = self.config_from(topic.overrides)
            if config == topic.config:
                continue
            changed = replace(topic, config=config)
            self._by_name[topic.name] = self._by_id[topic.topic_id] = changed
            for hook in self.on_changed:
                hook(changed)

    def config_from(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings that hold with these overrides; one object for all topics that have the same."""
        key = tuple(sorted(overrides.items()))
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = TopicConfig.resolve(overrides, self.config_defaults)
        return config
