"""Topics and partitions in the metadata store: JSON under ``topics/<name>`` and ``p/<topic id>/<partition>``.

``topics/<name>``: ``{"id", "partitions", "replication_factor", "created_ms", "updated_ms", "internal", "config": {...}}``

``p/<id>/<n>``: ``{"leader", "leader_node_epoch", "leader_epoch", "isr": [[node, node epoch], ...], "elr", "replicas", "adding",
"removing"}``

``deleted/<id>``: ``{"name", "deleted_ms"}`` for some time after a topic of a cluster was deleted. Only then may a node that was down
remove the topic's files: an unknown topic may also be one that a restored store does not have.

Older versions ignore unknown fields: a field is added with a default, and never changed.
"""

from typing import Final, TypeVar
from uuid import UUID

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Entry
from penstock.types import NO_EPOCH, TopicId

T = TypeVar("T")

TOPICS_PREFIX: Final = "topics/"
PARTITIONS_PREFIX: Final = "p/"
DELETED_PREFIX: Final = "deleted/"
LEADER_EPOCH_FIRST: Final = 0
NO_LEADER: Final = -1


class TopicRecord(msgspec.Struct, frozen=True):
    """The value under ``topics/<name>``."""

    id: UUID
    partitions: int
    replication_factor: int
    created_ms: int
    updated_ms: int
    internal: bool = False
    config: dict[str, str] = {}


class PartitionRecord(msgspec.Struct, frozen=True):
    """The value under ``p/<id>/<n>``: the partition's replicas and leader."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[tuple[int, int], ...]
    """The node and node epoch of each in-sync replica."""
    leader_node_epoch: int = 0
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH
    """The leader epoch of the last unclean election: records that were committed before it may be lost."""

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The nodes of the in-sync replicas."""
        return tuple(node for node, _ in self.isr)


class DeletedRecord(msgspec.Struct, frozen=True):
    """The value under ``deleted/<id>``."""

    name: str
    deleted_ms: int


NOBODY: Final = PartitionRecord(leader=NO_LEADER, leader_epoch=NO_EPOCH, replicas=(), isr=())
"""A partition whose record has not arrived."""


def alone(node_id: int) -> PartitionRecord:
    """A partition of a single broker, which is its only replica and leads it."""
    return PartitionRecord(
        leader=node_id, leader_epoch=LEADER_EPOCH_FIRST, replicas=(node_id,), isr=((node_id, 0),), leader_node_epoch=0
    )


def topic_key(name: str) -> str:
    """The key of a topic's record."""
    return TOPICS_PREFIX + name


def partition_key(topic_id: TopicId, index: int) -> str:
    """The key of a partition's record."""
    return f"{PARTITIONS_PREFIX}{topic_id.hex}/{index}"


def deleted_key(topic_id: TopicId) -> str:
    """The key of the note that a topic was deleted."""
    return f"{DELETED_PREFIX}{topic_id.hex}"


def topic_of_key(key: str) -> str:
    """The name in a topic's key."""
    return key.removeprefix(TOPICS_PREFIX)


def partition_of_key(key: str) -> tuple[TopicId, int]:
    """The topic and the number in a partition's key."""
    try:
        _, topic_id, index = key.split("/")
        return UUID(hex=topic_id), int(index)
    except ValueError:
        raise unreadable(key) from None


_encoder: Final = msgspec.json.Encoder()
_topic_decoder: Final = msgspec.json.Decoder(TopicRecord)
_partition_decoder: Final = msgspec.json.Decoder(PartitionRecord)
_deleted_decoder: Final = msgspec.json.Decoder(DeletedRecord)


def encode(record: TopicRecord | PartitionRecord | DeletedRecord) -> bytes:
    """The record as stored."""
    return _encoder.encode(record)


def decode_topic(entry: Entry) -> TopicRecord:
    """``STORAGE_ERROR`` if the entry cannot be decoded."""
    return decode_entry(_topic_decoder, entry.key, entry.value)


def decode_partition(key: str, value: bytes) -> PartitionRecord:
    """``STORAGE_ERROR`` if the value cannot be decoded."""
    return decode_entry(_partition_decoder, key, value)


def decode_deleted(entry: Entry) -> tuple[TopicId, DeletedRecord]:
    """Which topic was deleted, and when."""
    try:
        topic_id = UUID(hex=entry.key.removeprefix(DELETED_PREFIX))
    except ValueError:
        raise unreadable(entry.key) from None
    return topic_id, decode_entry(_deleted_decoder, entry.key, entry.value)


def decode_entry(decoder: msgspec.json.Decoder[T], key: str, value: bytes) -> T:
    """The decoded value of an entry of the metadata store, or ``STORAGE_ERROR``."""
    try:
        return decoder.decode(value)
    except msgspec.DecodeError:
        raise unreadable(key) from None


def unreadable(key: str) -> PenstockError:
    """The refusal because of an entry that cannot be read."""
    return PenstockError(
        Reason.STORAGE_ERROR,
        f"The entry {key!r} of the metadata store cannot be read. Restore the store from a backup.",
    )


_SHARED_MAX: Final = 10_000
"""Different records that are kept for sharing; elections create new ones."""


class PartitionRecords:
    """The records of all partitions, with their revisions. Equal records are one object."""

    def __init__(self) -> None:
        self._records: dict[TopicId, list[PartitionRecord | None]] = {}
        self._revisions: dict[TopicId, list[int]] = {}
        self._shared: dict[bytes, PartitionRecord] = {}

    def put(self, entry: Entry) -> tuple[TopicId, int] | None:
        """Store a record; returns its partition, or None if the record is older than the one in memory."""
        topic_id, index = partition_of_key(entry.key)
        revisions = self._revisions.setdefault(topic_id, [])
        records = self._records.setdefault(topic_id, [])
        if index >= len(records):
            revisions.extend([0] * (index + 1 - len(records)))
            records.extend([None] * (index + 1 - len(records)))
        if entry.mod_revision <= revisions[index]:
            return None
        record = self._shared.get(entry.value)
        if record is None:
            if len(self._shared) >= _SHARED_MAX:
                self._shared.clear()
            record = self._shared[entry.value] = decode_partition(entry.key, entry.value)
        revisions[index], records[index] = entry.mod_revision, record
        return topic_id, index

    def get(self, topic_id: TopicId, index: int) -> PartitionRecord:
        """The record of a partition, or :data:`NOBODY`."""
        records = self._records.get(topic_id, [])
        return (records[index] if index < len(records) else None) or NOBODY

    def revision(self, topic_id: TopicId, index: int) -> int:
        """The revision of a partition's record; 0 if there is none."""
        revisions = self._revisions.get(topic_id, [])
        return revisions[index] if index < len(revisions) else 0

    def drop(self, topic_id: TopicId) -> None:
        """The topic was deleted."""
        self._records.pop(topic_id, None)
        self._revisions.pop(topic_id, None)
