"""The records of the internal topic ``__queue_state``. It is compacted: the last record of a key is the state.

A key is: kind u8, group (length u16, UTF-8), topic id 16 bytes, and by kind

====  =====================  ==============================================  =======================================
kind  what                   rest of the key                                 value
====  =====================  ==============================================  =======================================
0     a queue                none                                            version u8, made at i64
1     a block of 128         partition i32, block number i64                 see :meth:`penstock.core.queues.block.Block.encode`
2     an idempotency key     tenant, key (length u16, UTF-8 each)            version u8, forgotten at i64
3     a move under way       partition i32, offset i64                       version u8, kind u8, target partition i32, target
                                                                             offset i64, attempts u16, since i64, target topic,
                                                                             reason (length u16, UTF-8 each)
====  =====================  ==============================================  =======================================

Numbers in keys are big-endian, in values little-endian. A null value is a tombstone.
"""

import struct
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.core.coordinators.topic import StateRecord, UnreadableRecord
from penstock.types import Buffer, GroupId, TopicId, TopicName

_VERSION: Final = 1
_BLOCK_REST: Final = Struct(">iq")
_TIME_VALUE: Final = Struct("<Bq")
_MOVE_VALUE: Final = Struct("<BBiqHq")
_TOPIC_ID_BYTES: Final = 16


class StateKind(IntEnum):
    """The kind of a record of the state topic."""

    QUEUE = 0
    BLOCK = 1
    IDEMPOTENCY = 2
    MOVE = 3


class QueueId(NamedTuple):
    """A group that consumes a topic, by the topic's id: another topic of the same name is another queue."""

    group: GroupId
    topic_id: TopicId


class IdempotencyKey(NamedTuple):
    """The key by which a producer marks duplicates."""

    tenant: str
    key: str


class MoveKind(IntEnum):
    """Why a record is moved to another topic."""

    DEAD_LETTER = 1
    REDRIVE = 2


class MoveIntent(NamedTuple):
    """The intent to finish a record by appending it to another topic. ``target_offset`` was the target's end at that time."""

    kind: MoveKind
    target_topic: TopicName
    target_partition: int
    target_offset: int
    attempts: int
    since_ms: int
    reason: str


class StateKey(NamedTuple):
    """A decoded key; ``number`` is a block's number or an offset."""

    kind: StateKind
    queue: QueueId
    partition: int = 0
    number: int = 0
    idempotency: IdempotencyKey | None = None


def key_prefix(kind: StateKind, queue: QueueId) -> bytes:
    """The common prefix of the keys of one kind and queue."""
    return b"".join((bytes((kind,)), _string(queue.group), queue.topic_id.bytes))


def queue_record(queue: QueueId, made_ms: int | None) -> StateRecord:
    """The record that a queue exists; its tombstone without a time."""
    value = None if made_ms is None else _TIME_VALUE.pack(_VERSION, made_ms)
    return key_prefix(StateKind.QUEUE, queue), value


def block_key(prefix: bytes, partition: int, number: int) -> bytes:
    """The key of a block or, with the prefix of moves and an offset, of a move."""
    return prefix + _BLOCK_REST.pack(partition, number)


def idempotency_record(prefix: bytes, key: IdempotencyKey, until_ms: int | None) -> StateRecord:
    """The record of a finished idempotency key; its tombstone without a time."""
    value = None if until_ms is None else _TIME_VALUE.pack(_VERSION, until_ms)
    return b"".join((prefix, _string(key.tenant), _string(key.key))), value


def move_value(move: MoveIntent) -> bytes:
    """The value of a move's record."""
    head = _MOVE_VALUE.pack(
        _VERSION, move.kind, move.target_partition, move.target_offset, move.attempts, move.since_ms
    )
    return b"".join((head, _string(move.target_topic), _string(move.reason)))


def read_key(data: Buffer) -> StateKey:
    """What a record is about, or UnreadableRecord."""
    view = memoryview(data)
    if not view or view[0] not in StateKind._value2member_map_:
        raise UnreadableRecord("The kind of the record is unknown")
    kind = StateKind(view[0])
    group, at = _take_string(view, 1)
    if at + _TOPIC_ID_BYTES > len(view):
        raise UnreadableRecord("The key ends in the middle of the topic's id")
    queue = QueueId(GroupId(group), UUID(bytes=bytes(view[at : at + _TOPIC_ID_BYTES])))
    at += _TOPIC_ID_BYTES
    if kind is StateKind.QUEUE:
        return StateKey(kind, queue)
    if kind is StateKind.IDEMPOTENCY:
        tenant, at = _take_string(view, at)
        key, at = _take_string(view, at)
        return StateKey(kind, queue, idempotency=IdempotencyKey(tenant, key))
    try:
        partition, number = _BLOCK_REST.unpack_from(view, at)
    except struct.error as error:
        raise UnreadableRecord("The key ends too early") from error
    return StateKey(kind, queue, partition, number)


def read_time(data: Buffer) -> int:
    """The time in the value of a queue or of an idempotency key."""
    try:
        version, time_ms = _TIME_VALUE.unpack_from(data)
    except struct.error as error:
        raise UnreadableRecord("The value ends too early") from error
    _check_version(version)
    return int(time_ms)


def read_move(data: Buffer) -> MoveIntent:
    """The value of a move."""
    view = memoryview(data)
    try:
        version, kind, partition, offset, attempts, since_ms = _MOVE_VALUE.unpack_from(view)
    except struct.error as error:
        raise UnreadableRecord("The value ends too early") from error
    _check_version(version)
    if kind not in MoveKind._value2member_map_:
        raise UnreadableRecord(f"The kind {kind} of a move is unknown")
    topic, at = _take_string(view, _MOVE_VALUE.size)
    reason, _ = _take_string(view, at)
    return MoveIntent(MoveKind(kind), TopicName(topic), partition, offset, attempts, since_ms, reason)


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise UnreadableRecord(f"The value has the unknown version {version}")


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(2, "big") + encoded


def _take_string(view: memoryview, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(view[at : at + 2], "big")
    if at + 2 > len(view) or end > len(view):
        raise UnreadableRecord("The record ends in the middle of a name")
    try:
        return str(view[at + 2 : end], "utf-8", "surrogatepass"), end
    except UnicodeDecodeError as error:
        raise UnreadableRecord("A name is not valid UTF-8") from error
