"""How topics and partitions lie in the metadata store: JSON under ``topics/<name>`` and ``p/<topic id>/<partition>``.

``topics/<name>``: ``{"id", "partitions", "replication_factor", "created_ms", "updated_ms", "internal", "config": {...}}``

``p/<id>/<n>``: ``{"leader", "leader_node_epoch", "leader_epoch", "isr": [[node, node epoch], ...], "elr", "replicas", "adding",
"removing"}``

``deleted/<id>``: ``{"name", "deleted_ms"}`` for a while after a topic of a cluster was deleted: a node that was away may remove its files only if this
says so. A topic that is merely unknown may be one that a restored store has forgotten.

Unknown fields are kept out of the way of older readers by being optional: a field is added with a default, never changed.
"""

from typing import Final
from uuid import UUID

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Entry
from penstock.types import NO_EPOCH, TopicId

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
    """The value under ``p/<id>/<n>``: who has the partition and who leads it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[tuple[int, int], ...]
    """Node and node epoch of each replica in sync."""
    leader_node_epoch: int = 0
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH
    """The leader epoch of the last election in which nobody was to be had who has everything: what others had committed before it may go."""

    @property
    def in_sync(self) -> tuple[int, ...]:
        """The nodes in sync."""
        return tuple(node for node, _ in self.isr)


class DeletedRecord(msgspec.Struct, frozen=True):
    """The value under ``deleted/<id>``."""

    name: str
    deleted_ms: int


NOBODY: Final = PartitionRecord(leader=NO_LEADER, leader_epoch=NO_EPOCH, replicas=(), isr=())
"""A partition whose record has not arrived."""


def alone(node_id: int) -> PartitionRecord:
    """A partition of a broker that is alone: it has it and leads it."""
    return PartitionRecord(
        leader=node_id, leader_epoch=LEADER_EPOCH_FIRST, replicas=(node_id,), isr=((node_id, 0),), leader_node_epoch=0
    )


def topic_key(name: str) -> str:
    """Where a topic's record is."""
    return TOPICS_PREFIX + name


def partition_key(topic_id: TopicId, index: int) -> str:
    """Where a partition's record is."""
    return f"{PARTITIONS_PREFIX}{topic_id.hex}/{index}"


def deleted_key(topic_id: TopicId) -> str:
    """Where it is said that a topic was deleted."""
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
        raise _damaged(key) from None


_encoder: Final = msgspec.json.Encoder()
_topic_decoder: Final = msgspec.json.Decoder(TopicRecord)
_partition_decoder: Final = msgspec.json.Decoder(PartitionRecord)


def encode(record: TopicRecord | PartitionRecord | DeletedRecord) -> bytes:
    """The record as the store keeps it."""
    return _encoder.encode(record)


def decode_topic(entry: Entry) -> TopicRecord:
    """``STORAGE_ERROR`` when the entry is not what was written."""
    try:
        return _topic_decoder.decode(entry.value)
    except msgspec.DecodeError:
        raise _damaged(entry.key) from None


def decode_partition(key: str, value: bytes) -> PartitionRecord:
    """``STORAGE_ERROR`` when the value is not what was written."""
    try:
        return _partition_decoder.decode(value)
    except msgspec.DecodeError:
        raise _damaged(key) from None


def decode_deleted(entry: Entry) -> tuple[TopicId, DeletedRecord]:
    """Which topic was deleted, and when."""
    try:
        topic_id = UUID(hex=entry.key.removeprefix(DELETED_PREFIX))
        return topic_id, msgspec.json.decode(entry.value, type=DeletedRecord)
    except (ValueError, msgspec.DecodeError):
        raise _damaged(entry.key) from None


def _damaged(key: str) -> PenstockError:
    return PenstockError(
        Reason.STORAGE_ERROR,
        f"The entry {key!r} of the metadata store cannot be read. Restore the store from a backup.",
    )


_SHARED_MAX: Final = 10_000
"""Different records that are kept to be shared; elections make new ones."""


class PartitionRecords:
    """The records of all partitions, with their revisions. Most are alike: those are one object, however many there are."""

    def __init__(self) -> None:
        self._records: dict[TopicId, list[PartitionRecord | None]] = {}
        self._revisions: dict[TopicId, list[int]] = {}
        self._shared: dict[bytes, PartitionRecord] = {}

    def put(self, entry: Entry) -> tuple[TopicId, int] | None:
        """Take a record over; returns which partition's it is, or None for one that is older than what is here."""
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
        """The revision of a partition's record; 0 when there is none."""
        revisions = self._revisions.get(topic_id, [])
        return revisions[index] if index < len(revisions) else 0

    def drop(self, topic_id: TopicId) -> None:
        """The topic is gone."""
        self._records.pop(topic_id, None)
        self._revisions.pop(topic_id, None)
