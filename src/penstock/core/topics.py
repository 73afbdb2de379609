"""The rules by which topics are made, changed and deleted. :class:`~penstock.core.topic_image.TopicImage` is what is read.

Every change is one transaction of the metadata store that names the revision it goes by, so of two that meet, one wins and
the other sees it. A method returns after its own change is in the image.

When the store's answer to the making or the removal of a topic is lost, nobody knows what became of it. It is asked for once more, and told by the topic's id from what others have done
meanwhile. If that is not answered either, the caller is told so; a call for the same topic that comes later is answered as the first would have been.

Names that differ only in '.' and '_' cannot exist side by side, and the limits on topics and partitions hold over calls
that run at the same time: what a call is about to make is reserved before it first waits.

Where the store takes only so many operations at once, the records of partitions are written before the topic that has them, and removed
after it: a topic that is seen is whole. What a crash leaves of others is swept up by the controller.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from penstock.core.topic_config import ConfigChange, apply_changes, check_configs
from penstock.core.topic_image import Topic, TopicImage
from penstock.core.topic_names import check_topic_name, collision_key, is_reserved
from penstock.core.topic_placement import AlonePlacer, Placer
from penstock.core.topic_records import (
    DeletedRecord,
    PartitionRecord,
    TopicRecord,
    decode_topic,
    deleted_key,
    encode,
    partition_key,
    topic_key,
)
from penstock.errors import PenstockError, Reason
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.metadata.port import Compare, Delete, Entry, MetadataStore, Operation, Put, UnknownOutcomeError
from penstock.ports import Clock, Entropy
from penstock.settings import Settings
from penstock.types import NodeId

__all__ = ["UNSET", "NewTopic", "Topic", "Topics"]

UNSET: Final = -1
"""A number that the caller leaves to the broker's configuration."""

_ATTEMPTS_MAX: Final = 100
"""How often a change is tried again because somebody else changed the topic in between: each time, somebody got on."""
_UNSURE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class NewTopic:
    """What is asked for. With ``assignments`` (partition -> nodes) both numbers stay unset."""

    name: str
    partition_count: int = UNSET
    replication_factor: int = UNSET
    configs: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict, hash=False)


class Topics(TopicImage):
    """The topics of the cluster, and the way to change them. Hooks are called once a change is in the image."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        settings: Settings,
    ) -> None:
        """``settings`` say what a new topic gets that its creator leaves unset, and how many topics there may be."""
        self.settings: Final = settings
        super().__init__(store, settings.topic_configs)
        self._clock = clock
        self._entropy = entropy
        self.placer: Placer = AlonePlacer(NodeId(settings.server.node_id))
        """Says where new partitions go."""
        self.notes_deletions = False
        """Whether other nodes must be able to tell a deleted topic from one that they never heard of."""
        self._creating: dict[str, str] = {}
        self._unsure: dict[str, UUID] = {}
        """Topics, by name, that were asked for here and may have been made."""
        self._reserved_partitions = 0

    async def create(
        self, new: NewTopic, *, exist_ok: bool = False, validate_only: bool = False, internal: bool = False
    ) -> Topic:
        """Make a topic. With ``exist_ok`` a topic that has all that is asked for already is given back as it is.

        ``internal`` is for the broker's own topics; a user may not take their names.
        """
        check_topic_name(new.name)
        if is_reserved(new.name) and not internal:
            raise PenstockError(
                Reason.INVALID_TOPIC,
                f"{new.name} is an internal topic, which is created when it is needed. Choose another name.",
            )
        existing = self.get(new.name)
        if existing is not None:
            is_own = self._unsure.get(new.name) == existing.topic_id
            found = self._existing(existing, new, exist_ok=exist_ok or is_own)
            if not validate_only:
                self._unsure.pop(new.name, None)
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
        if not await self._make(topic, record, partitions):
            winner = await self._store.get(topic_key(new.name))
            if winner is None:
                raise _changed_meanwhile(new.name)
            return self._existing(self.topic_from(new.name, decode_topic(winner)), new, exist_ok=exist_ok)
        return topic

    async def delete(self, name: str, *, internal: bool = False) -> Topic:
        """Delete a topic and everything about it; gives back what it was."""
        topic = self.require(name)
        if topic.internal and not internal:
            raise PenstockError(Reason.INVALID_REQUEST, f"{name} is an internal topic and cannot be deleted.")
        is_sure = True
        for _ in range(_ATTEMPTS_MAX):
            entry = await (self._before_change(name) if is_sure else self._store.get(topic_key(name)))
            record = None if entry is None else decode_topic(entry)
            if entry is None or record is None or record.id != topic.topic_id:
                if not is_sure:
                    # It was done, and the answer was lost.
                    await self._remove([Delete(partition_key(topic.topic_id, i)) for i in range(topic.partition_count)])
                    return topic
                break
            gone: list[Operation] = [Delete(entry.key)]
            if self.notes_deletions:
                note = DeletedRecord(name, self._clock.now_ms())
                gone.append(Put(deleted_key(topic.topic_id), encode(note)))
            rest: list[Operation] = [Delete(partition_key(topic.topic_id, i)) for i in range(record.partitions)]
            room = self._store.operations_max - len(gone)
            first, rest = rest[:room], rest[room:]
            compare = Compare(entry.key, mod_revision=entry.mod_revision)
            try:
                is_done = (await self._store.txn([compare], [*gone, *first])).succeeded
            except UnknownOutcomeError:
                if not is_sure:
                    raise
                is_sure = False
                continue
            if is_done:
                await self._remove(rest)
                return topic
        else:
            raise _changed_meanwhile(name)
        raise PenstockError(
            Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} was deleted by another client at the same time."
        )

    async def _remove(self, rest: list[Operation]) -> None:
        """Of a topic that is gone. What cannot be removed now, whoever looks after the metadata removes later."""
        try:
            await self._write(rest)
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        """Let a topic have ``count`` partitions, which must be more than now. ``assignments`` are the nodes of each new one."""
        topic = self.require(name)
        if topic.internal and not internal:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"{name} is an internal topic: its number of partitions is fixed."
            )

        def grow(record: TopicRecord) -> tuple[TopicRecord, list[Operation]]:
            added = self._check_growth(name, record, count, assignments)
            grown = _replaced(record, partitions=count, updated_ms=self._clock.now_ms())
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
        """Its partitions have been moved, and have so many replicas now."""

        def note(record: TopicRecord) -> tuple[TopicRecord, list[Operation]]:
            if record.replication_factor == replication_factor:
                return record, []
            return _replaced(record, replication_factor=replication_factor, updated_ms=self._clock.now_ms()), []

        return await self._change(topic, note)

    async def alter(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> Topic:
        """Change some configs of a topic: all of them, or none when one cannot be."""
        topic = self.require(name)

        def alter(record: TopicRecord) -> tuple[TopicRecord, list[Operation]]:
            overrides = apply_changes(record.config, self.config_defaults, changes)
            return self._with_overrides(record, overrides), []

        apply_changes(topic.overrides, self.config_defaults, changes)
        return topic if validate_only else await self._change(topic, alter)

    async def replace_configs(
        self, name: str, overrides: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Let a topic have these overrides and no others."""
        topic = self.require(name)
        checked = check_configs(without_nulls(overrides), self.config_defaults)
        if validate_only:
            return topic
        return await self._change(topic, lambda record: (self._with_overrides(record, checked), []))

    # The rules.

    def _existing(self, topic: Topic, new: NewTopic, *, exist_ok: bool) -> Topic:
        if not exist_ok:
            raise PenstockError(Reason.TOPIC_ALREADY_EXISTS, f"Topic {topic.name} already exists.")
        wrong = [
            f"{asked} {what} were asked for and it has {has}"
            for what, asked, has in (
                ("partitions", new.partition_count, topic.partition_count),
                ("replicas", new.replication_factor, topic.replication_factor),
            )
            if asked not in (UNSET, has)
        ]
        # What holds is compared, not where it comes from: a default that is asked for by its value is no difference.
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
                    "The partitions of an assignment must be 0, 1, 2 and so on, without gaps.",
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
                f"{count} more partitions would be too many: there are {used}, and {self.settings.limits.partitions_max} is the most. "
                "Delete topics or ask for fewer.",
            )

    def _check_growth(
        self, name: str, topic: Topic | TopicRecord, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> list[PartitionRecord]:
        """The records of the partitions that would be added."""
        now = topic.partition_count if isinstance(topic, Topic) else topic.partitions
        if count <= now:
            raise PenstockError(
                Reason.INVALID_PARTITIONS,
                f"Topic {name} cannot have {count} partitions: it already has {now}, and the number can only increase.",
            )
        if count > PARTITIONS_PER_TOPIC_MAX:
            raise PenstockError(
                Reason.INVALID_PARTITIONS,
                f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}.",
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

    # How a change gets into the store.

    async def _make(self, topic: Topic, record: TopicRecord, partitions: Sequence[PartitionRecord]) -> bool:
        key = collision_key(topic.name)
        reserves_name = key not in self._creating
        if reserves_name:
            self._creating[key] = topic.name
        self._reserved_partitions += topic.partition_count
        try:
            operations = [
                Put(partition_key(record.id, index), encode(partition)) for index, partition in enumerate(partitions)
            ]
            excess, last = self._split(operations)
            await self._write(excess)
            made = [*last, Put(topic_key(topic.name), encode(record))]
            is_first = await self._put_new(topic, made)
            if not is_first:
                await self._write([Delete(put.key) for put in excess])
            return is_first
        finally:
            self._reserved_partitions -= topic.partition_count
            if reserves_name:
                del self._creating[key]

    async def _put_new(self, topic: Topic, made: Sequence[Operation]) -> bool:
        """Whether the topic of this name is this one."""
        key = topic_key(topic.name)
        try:
            return await self._try_to_put(key, topic, made)
        except UnknownOutcomeError as error:
            unknown = error
        try:
            return await self._try_to_put(key, topic, made)
        except PenstockError:
            if len(self._unsure) >= _UNSURE_MAX:
                del self._unsure[next(iter(self._unsure))]
            self._unsure[topic.name] = topic.topic_id
            # Whatever is known of the second, the first may have been made.
            raise unknown from None

    async def _try_to_put(self, key: str, topic: Topic, made: Sequence[Operation]) -> bool:
        # If the answer is lost, this may happen at any later time: it must not bring the topic back once it was deleted.
        alive = [Compare(key, create_revision=0), Compare(deleted_key(topic.topic_id), create_revision=0)]
        if (await self._store.txn(alive, made)).succeeded:
            return True
        return await self._is_own(key, topic)

    async def _is_own(self, key: str, topic: Topic) -> bool:
        """Whether the name was taken by this very topic, of which the answer was lost. Then it is in the image when this returns."""
        entry = await self._store.get(key)
        if entry is None or decode_topic(entry).id != topic.topic_id:
            return False
        if self.get_by_id(topic.topic_id) is None:
            # Whoever changes something hears of all that was changed before.
            await self._store.txn([Compare(key, mod_revision=entry.mod_revision)], [Put(key, entry.value)])
        return True

    def _split(self, operations: Sequence[Operation]) -> tuple[Sequence[Operation], Sequence[Operation]]:
        """Those that are written while nobody sees them yet, and the last ones, which fit into one transaction with the topic."""
        excess = max(0, len(operations) - (self._store.operations_max - 1))
        return operations[:excess], operations[excess:]

    async def _write(self, operations: Sequence[Operation], compares: Sequence[Compare] = ()) -> bool:
        """Whether all of them were written: each transaction goes by the same compares."""
        for first in range(0, len(operations), self._store.operations_max):
            batch = operations[first : first + self._store.operations_max]
            if not (await self._store.txn(compares, batch)).succeeded:
                return False
        return True

    async def _before_change(self, name: str) -> Entry | None:
        """What is agreed on a topic that is about to be changed; whoever asks for the change is told that it was not made when this cannot be known."""
        try:
            return await self._store.get(topic_key(name))
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise
            raise PenstockError(
                error.reason, f"{error.text}. Nothing was changed: try again when it answers"
            ) from error

    async def _change(
        self, topic: Topic, change: Callable[[TopicRecord], tuple[TopicRecord, list[Operation]]]
    ) -> Topic:
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._before_change(topic.name)
            record = None if entry is None else decode_topic(entry)
            if entry is None or record is None or record.id != topic.topic_id:
                raise PenstockError(
                    Reason.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic.name} was deleted by another client at the same time.",
                )
            changed, operations = change(record)
            if changed == record:
                return topic
            compares = [Compare(entry.key, mod_revision=entry.mod_revision)]
            excess, last = self._split(operations)
            # By the topic's revision too: once somebody else has added the same partitions, their records are not ours to make.
            if not await self._write(excess, compares):
                continue
            if (await self._store.txn(compares, [*last, Put(entry.key, encode(changed))])).succeeded:
                return self.topic_from(topic.name, changed)
        raise _changed_meanwhile(topic.name)

    def _with_overrides(self, record: TopicRecord, overrides: dict[str, str]) -> TopicRecord:
        if overrides == record.config:
            return record
        return _replaced(record, config=overrides, updated_ms=self._clock.now_ms())


def without_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The values; ``INVALID_CONFIG`` names the first config that has none."""
    given = {name: value for name, value in configs.items() if value is not None}
    if len(given) < len(configs):
        missing = next(name for name, value in configs.items() if value is None)
        raise PenstockError(Reason.INVALID_CONFIG, f"{missing} needs a value. Omit the config to use its default.")
    return given


def _replaced(record: TopicRecord, **changes: object) -> TopicRecord:
    return msgspec.structs.replace(record, **changes)


def _changed_meanwhile(name: str) -> PenstockError:
    return PenstockError(
        Reason.REQUEST_TIMED_OUT, f"Topic {name} was changed by other clients at the same time. Try again."
    )
