"""All topics in memory, as in the metadata store, and the rules for creating, changing and deleting them.

Invariant: memory changes only by events of the store, so a change is visible here exactly when it is durable, whichever node made it.
When a topic appears or grows, its partitions are known already. A method that changes a topic returns after its change is visible.

Two names that differ only in '.' and '_' cannot both exist. The limits on topics and partitions also hold for concurrent calls: a
call reserves what it will create before it first waits.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from penstock.core.topics.config import ConfigChange, TopicConfig, apply_changes, check_configs
from penstock.core.topics.names import check_topic_name, collision_key, is_reserved
from penstock.core.topics.placement import AlonePlacer, Placer
from penstock.core.topics.records import (
    PARTITIONS_PREFIX,
    TOPICS_PREFIX,
    PartitionRecord,
    PartitionRecords,
    TopicRecord,
    decode_topic,
    encode,
    partition_key,
    topic_key,
    topic_of_key,
)
from penstock.core.topics.writes import TopicWrites
from penstock.errors import PenstockError, Reason
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.metadata.port import Entry, Event, MetadataStore, Operation, Put, Unsubscribe
from penstock.ports import Clock, Entropy
from penstock.settings import Settings
from penstock.types import NodeId, TopicId, TopicName

MIN_IN_SYNC: Final = "min.insync.replicas"
UNSET: Final = -1
"""Use the number in the broker's configuration."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic at one time; a change creates another object."""

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
        """The number of replicas that must be in sync for acks=all: the topic's own, else the cluster's but at most the topic's replicas."""
        return self.min_in_sync_of(self.replication_factor)

    def min_in_sync_of(self, replica_count: int) -> int:
        """The same for a partition with this number of replicas, which may be fewer than the topic's."""
        wanted = self.config.min_insync_replicas
        return wanted if MIN_IN_SYNC in self.overrides else min(wanted, self.replication_factor, replica_count)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. With ``assignments`` (partition -> nodes) both numbers stay unset."""

    name: str
    partition_count: int = UNSET
    replication_factor: int = UNSET
    configs: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict, hash=False)


Hook = Callable[[Topic], None]
"""Called with a topic once a change of it is visible."""
PartitionHook = Callable[[Topic, int], None]
"""Called with a partition once a change of its record is visible. For a new or growing topic only the topic's hook is called."""


class Topics:
    """The topics of the cluster. Empty until :meth:`load`, which calls no hooks."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        settings: Settings,
    ) -> None:
        """``settings`` has the defaults of new topics, and the limits."""
        self.settings: Final = settings
        self.config_defaults: Mapping[str, str] = settings.topic_configs
        """The default configs of topics; changed by :meth:`set_config_defaults`."""
        self.on_created: Final[list[Hook]] = []
        self.on_changed: Final[list[Hook]] = []
        self.on_deleted: Final[list[Hook]] = []
        self.on_partition: Final[list[PartitionHook]] = []
        self.partition_count = 0
        """Of all topics together."""
        self.placer: Placer = AlonePlacer(NodeId(settings.server.node_id))
        """Chooses the nodes of new partitions."""
        self.writes: Final = TopicWrites(store, lambda topic_id: topic_id in self._by_id)
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._names: list[str] = []
        self._by_collision_key: dict[str, str] = {}
        self._partitions = PartitionRecords()
        # Most topics have the same configs, which are one object.
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        self._held_events: list[Event] | None = []
        self._unsubscribes: list[Unsubscribe] = []
        self._creating: dict[str, str] = {}
        self._reserved_partitions = 0

    async def load(self) -> None:
        """Read everything from the store and follow it from there."""
        # Partitions first, here and below, so that they are known when a topic appears.
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
        """Stop following the store."""
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
        """Whether the topic exists in the store, though it may not be visible here yet."""
        return name in self._by_name or await self._store.get(topic_key(name)) is not None

    def require(self, name: str) -> Topic:
        """The topic of that name, or ``UNKNOWN_TOPIC_OR_PARTITION``."""
        topic = self._by_name.get(name)
        if topic is None:
            shown = ascii(name if len(name) <= 64 else f"{name[:61]}...")
            raise PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {shown}")
        return topic

    def require_named(self, name: str) -> Topic:
        """The same; ``INVALID_TOPIC`` if no topic can have this name."""
        if name not in self._by_name:
            check_topic_name(name)
        return self.require(name)

    def require_id(self, topic_id: TopicId) -> Topic:
        """The topic of that id, or ``UNKNOWN_TOPIC_ID``."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id}. It may be deleted."
            )
        return topic

    def __iter__(self) -> Iterator[Topic]:
        """All topics, by name."""
        return iter([self._by_name[name] for name in self._names])

    def iterate_from(self, name: str) -> Iterator[Topic]:
        """The topics from ``name`` on, by name, without those that are created or deleted meanwhile."""
        for each in self._names[bisect_left(self._names, name) :]:
            topic = self._by_name.get(each)
            if topic is not None:
                yield topic

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def partition(self, topic: Topic, index: int) -> PartitionRecord:
        """The record of a partition, or ``UNKNOWN_TOPIC_OR_PARTITION``."""
        if not 0 <= index < topic.partition_count:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic.name} has no partition {index}; it has {topic.partition_count}, counted from 0.",
            )
        return self._partitions.get(topic.topic_id, index)

    def partition_epoch(self, topic: Topic, index: int) -> int:
        """The revision of a partition's record; 0 if there is none."""
        return self._partitions.revision(topic.topic_id, index)

    def partitions(self, topic: Topic) -> list[PartitionRecord]:
        """The records of all partitions of a topic, in order."""
        return [self._partitions.get(topic.topic_id, index) for index in range(topic.partition_count)]

    def colliding(self, name: str) -> str | None:
        """The topic that has this name or one that collides with it."""
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
        place = self._partitions.put(entry)
        topic = None if place is None else self._by_id.get(place[0])
        if place is not None and topic is not None and place[1] < topic.partition_count:
            for hook in self.on_partition:
                hook(topic, place[1])

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
        self._partitions.drop(topic.topic_id)
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
        """Change the default configs. The hooks are called for the topics whose configs change."""
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
        """The effective configs with these overrides; one object for all topics with the same ones."""
        key = tuple(sorted(overrides.items()))
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = TopicConfig.resolve(overrides, self.config_defaults)
        return config

    # Changes.

    async def create(
        self, new: NewTopic, *, exist_ok: bool = False, validate_only: bool = False, internal: bool = False
    ) -> Topic:
        """Create a topic. With ``exist_ok``, a topic that exists with the same properties is returned.

        ``internal`` is for the broker's own topics, whose names users may not use.
        """
        check_topic_name(new.name)
        if is_reserved(new.name) and not internal:
            raise PenstockError(
                Reason.INVALID_TOPIC,
                f"{new.name} is an internal topic, which is created when it is needed. Choose another name.",
            )
        existing = self.get(new.name)
        if existing is not None:
            is_own = self.writes.unsure.get(new.name) == existing.topic_id
            found = self._existing(existing, new, exist_ok=exist_ok or is_own)
            if not validate_only:
                self.writes.unsure.pop(new.name, None)
            return found
        self._check_collision(new.name)
        partitions = self._placed(new)
        count = len(partitions)
        overrides = self._check_overrides(new)
        if len(self) + len(self._creating) >= self.settings.limits.topics_max:
            raise PenstockError(
                Reason.POLICY_VIOLATION, f"There are {len(self)} topics, which is the limit. Delete some first."
            )
        self._check_room(count)
        now_ms = self._clock.now_ms()
        factor = max(len(partition.replicas) for partition in partitions)
        record = TopicRecord(self._entropy.uuid(), count, factor, now_ms, now_ms, internal, overrides)
        topic = self.topic_from(new.name, record)
        if validate_only:
            return topic
        key = collision_key(new.name)
        reserves_name = key not in self._creating
        if reserves_name:
            self._creating[key] = new.name
        self._reserved_partitions += count
        try:
            made = await self.writes.make(new.name, record, partitions)
        finally:
            self._reserved_partitions -= count
            if reserves_name:
                del self._creating[key]
        if made.id != record.id:
            return self._existing(self.topic_from(new.name, made), new, exist_ok=exist_ok)
        return topic

    async def delete(self, name: str, *, internal: bool = False) -> Topic:
        """Delete a topic; returns it as it was."""
        topic = self.require(name)
        if topic.internal and not internal:
            raise PenstockError(Reason.INVALID_REQUEST, f"{name} is an internal topic and cannot be deleted")
        await self.writes.delete(name, topic.topic_id, self._clock.now_ms())
        return topic

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        """Increase the number of partitions to ``count``. ``assignments`` are the nodes of each new partition."""
        topic = self.require(name)
        if topic.internal and not internal:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"{name} is an internal topic: its number of partitions is fixed."
            )

        def grow(record: TopicRecord) -> tuple[TopicRecord, list[Operation]]:
            added = self._check_growth(name, record, count, assignments)
            grown = msgspec.structs.replace(record, partitions=count, updated_ms=self._clock.now_ms())
            keys = (partition_key(record.id, index) for index in range(record.partitions, count))
            return grown, [Put(key, encode(partition)) for key, partition in zip(keys, added, strict=True)]

        reserved = max(0, count - topic.partition_count)
        self._check_growth(name, topic, count, assignments)
        self._check_room(reserved)
        if validate_only:
            return topic
        self._reserved_partitions += reserved
        try:
            return await self._change(topic, grow)
        finally:
            self._reserved_partitions -= reserved

    async def note_factor(self, topic: Topic, replication_factor: int) -> Topic:
        """The partitions were moved, and have this number of replicas now."""

        def note(record: TopicRecord) -> tuple[TopicRecord, list[Operation]]:
            if record.replication_factor == replication_factor:
                return record, []
            return msgspec.structs.replace(
                record, replication_factor=replication_factor, updated_ms=self._clock.now_ms()
            ), []

        return await self._change(topic, note)

    async def alter(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> Topic:
        """Change some configs of a topic, all of them or none."""
        topic = self.require(name)

        def alter(record: TopicRecord) -> tuple[TopicRecord, list[Operation]]:
            overrides = apply_changes(record.config, self.config_defaults, changes)
            return self._with_overrides(record, overrides), []

        apply_changes(topic.overrides, self.config_defaults, changes)
        return topic if validate_only else await self._change(topic, alter)

    async def replace_configs(
        self, name: str, overrides: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Replace all overrides of a topic."""
        topic = self.require(name)
        checked = check_configs(without_nulls(overrides), self.config_defaults)
        if validate_only:
            return topic
        return await self._change(topic, lambda record: (self._with_overrides(record, checked), []))

    async def _change(
        self, topic: Topic, change: Callable[[TopicRecord], tuple[TopicRecord, list[Operation]]]
    ) -> Topic:
        return self.topic_from(topic.name, await self.writes.change(topic.name, topic.topic_id, change))

    def _with_overrides(self, record: TopicRecord, overrides: dict[str, str]) -> TopicRecord:
        if overrides == record.config:
            return record
        return msgspec.structs.replace(record, config=overrides, updated_ms=self._clock.now_ms())

    # The rules.

    def _existing(self, topic: Topic, new: NewTopic, *, exist_ok: bool) -> Topic:
        if not exist_ok:
            raise PenstockError(Reason.TOPIC_ALREADY_EXISTS, f"Topic {topic.name} already exists")
        wrong = [
            f"{asked} {what} were requested and it has {has}"
            for what, asked, has in (
                ("partitions", new.partition_count, topic.partition_count),
                ("replicas", new.replication_factor, topic.replication_factor),
            )
            if asked not in (UNSET, has)
        ]
        # Effective values are compared: a default that is requested explicitly is no difference.
        checked = self._check_overrides(new)
        if self.config_from({**topic.overrides, **checked}) != topic.config:
            wrong.append("its configs differ")
        if wrong:
            raise PenstockError(
                Reason.TOPIC_ALREADY_EXISTS,
                f"Topic {topic.name} already exists with other settings: {', '.join(wrong)}. Nothing was changed.",
            )
        return topic

    def _check_collision(self, name: str) -> None:
        other = self.colliding(name) or self._creating.get(collision_key(name))
        if other is not None and other != name:
            raise PenstockError(
                Reason.INVALID_TOPIC,
                f"Topic {name} collides with topic {other}: '.' and '_' are treated as the same character. Choose another name.",
            )

    def _placed(self, new: NewTopic) -> list[PartitionRecord]:
        if new.assignments:
            if new.partition_count != UNSET or new.replication_factor != UNSET:
                raise PenstockError(
                    Reason.INVALID_REQUEST,
                    "Specify either the replicas of each partition or the two numbers. With replicas, both numbers must be -1.",
                )
            count = len(new.assignments)
            if sorted(new.assignments) != list(range(count)):
                raise PenstockError(
                    Reason.INVALID_REPLICA_ASSIGNMENT,
                    "The partitions of an assignment must be 0, 1, 2 and so on, without gaps",
                )
            self._check_count(count)
            return self.placer.assigned([new.assignments[index] for index in range(count)])
        count = self.settings.topics.partitions if new.partition_count == UNSET else new.partition_count
        self._check_count(count)
        replicas = self.settings.replication_factor if new.replication_factor == UNSET else new.replication_factor
        return self.placer.spread(count, replicas)

    def _check_count(self, count: int) -> None:
        if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
            raise PenstockError(
                Reason.INVALID_PARTITIONS,
                f"A topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}. Use -1 for the default number.",
            )

    def _check_overrides(self, new: NewTopic) -> dict[str, str]:
        return check_configs(without_nulls(new.configs), self.config_defaults)

    def _check_room(self, count: int) -> None:
        used = self.partition_count + self._reserved_partitions
        if used + count > self.settings.limits.partitions_max:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{count} more partitions would be too many: there are {used}, and the limit is {self.settings.limits.partitions_max}. "
                "Delete topics or request fewer.",
            )

    def _check_growth(
        self, name: str, topic: Topic | TopicRecord, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> list[PartitionRecord]:
        """The records of the added partitions."""
        now = topic.partition_count if isinstance(topic, Topic) else topic.partitions
        if count <= now:
            raise PenstockError(
                Reason.INVALID_PARTITIONS,
                f"Topic {name} cannot have {count} partitions: it already has {now}, and the number can only increase.",
            )
        if count > PARTITIONS_PER_TOPIC_MAX:
            raise PenstockError(
                Reason.INVALID_PARTITIONS,
                f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}",
            )
        if assignments is None:
            return self.placer.spread(count - now, topic.replication_factor)
        if len(assignments) != count - now:
            raise PenstockError(
                Reason.INVALID_REPLICA_ASSIGNMENT,
                f"{count - now} partitions would be added, but {len(assignments)} assignments were specified. Specify one for each.",
            )
        if any(len(nodes) != topic.replication_factor for nodes in assignments):
            raise PenstockError(
                Reason.INVALID_REPLICA_ASSIGNMENT,
                f"The partitions of topic {name} have {topic.replication_factor} replicas each. Name the same number of nodes for each new partition.",
            )
        return self.placer.assigned(assignments)


def without_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The values; ``INVALID_CONFIG`` names the first config without a value."""
    given = {name: value for name, value in configs.items() if value is not None}
    if len(given) < len(configs):
        missing = next(name for name, value in configs.items() if value is None)
        raise PenstockError(Reason.INVALID_CONFIG, f"{missing} needs a value. Omit the config to use its default.")
    return given
