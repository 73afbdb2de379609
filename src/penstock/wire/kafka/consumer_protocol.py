"""Subscriptions and assignments, which consumers of a classic group send each other through the broker.

The broker decodes them only to describe a group (which topics it is subscribed to, which member has which partition),
so a decoder that fails must never fail the group: the caller catches `ProtocolViolation` and continues without.

Both start with a two-byte version. Newer versions only add fields at the end, so an unknown newer version is read as
the newest known one, as Kafka's own clients do.
"""

import struct
from typing import Final

import msgspec

from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka import fields

VERSION_MAX: Final = 3
_TOPIC_PARTITIONS_BYTES_MIN: Final = 6
_STRING_BYTES_MIN: Final = 2


class TopicPartitions(msgspec.Struct, frozen=True):
    """Some partitions of one topic."""

    topic: str
    partitions: list[int]


class Subscription(msgspec.Struct, frozen=True):
    """The topics that a member wants: sent in JoinGroup."""

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[TopicPartitions] = []  # 1+
    generation_id: int = -1  # 2+
    rack_id: str | None = None  # 3+


class Assignment(msgspec.Struct, frozen=True):
    """The partitions that a member gets: sent by the leader in SyncGroup."""

    assigned_partitions: list[TopicPartitions]
    user_data: bytes | None = None


def decode_subscription(buf: Buffer) -> Subscription:
    """Read a subscription of any version."""
    version, pos = _read_version(buf)
    count, pos = fields.read_count(buf, pos, _STRING_BYTES_MIN)
    topics = []
    for _ in range(count):
        topic, pos = fields.read_string(buf, pos)
        topics.append(topic)
    user_data, pos = fields.read_nullable_bytes(buf, pos)
    owned: list[TopicPartitions] = []
    generation_id = -1
    rack_id = None
    if version >= 1:
        owned, pos = _read_topic_partitions(buf, pos)
    if version >= 2:
        generation_id, pos = fields.read_i32(buf, pos)
    if version >= 3:
        rack_id, pos = fields.read_nullable_string(buf, pos)
    return Subscription(topics, user_data, owned, generation_id, rack_id)


def encode_subscription(subscription: Subscription, version: int) -> bytes:
    """Write a subscription; fields that the version does not have are left out."""
    parts = [struct.pack(">hi", version, len(subscription.topics))]
    parts += [fields.string(topic) for topic in subscription.topics]
    parts.append(fields.data(subscription.user_data))
    if version >= 1:
        parts.append(_topic_partitions(subscription.owned_partitions))
    if version >= 2:
        parts.append(struct.pack(">i", subscription.generation_id))
    if version >= 3:
        parts.append(fields.string(subscription.rack_id))
    return b"".join(parts)


def decode_assignment(buf: Buffer) -> Assignment:
    """Read an assignment of any version: all have the same fields."""
    _version, pos = _read_version(buf)
    assigned, pos = _read_topic_partitions(buf, pos)
    user_data, pos = fields.read_nullable_bytes(buf, pos)
    return Assignment(assigned, user_data)


def encode_assignment(assignment: Assignment, version: int) -> bytes:
    """Write an assignment."""
    head = struct.pack(">h", version)
    return head + _topic_partitions(assignment.assigned_partitions) + fields.data(assignment.user_data)


def _read_version(buf: Buffer) -> tuple[int, int]:
    version, pos = fields.read_i16(buf, 0)
    if version < 0:
        raise ProtocolViolation(f"The consumer protocol has no version {version}")
    return min(version, VERSION_MAX), pos


def _read_topic_partitions(buf: Buffer, pos: int) -> tuple[list[TopicPartitions], int]:
    count, pos = fields.read_count(buf, pos, _TOPIC_PARTITIONS_BYTES_MIN)
    found = []
    for _ in range(count):
        topic, pos = fields.read_string(buf, pos)
        partitions, pos = fields.read_i32s(buf, pos)
        found.append(TopicPartitions(topic, partitions))
    return found, pos


def _topic_partitions(items: list[TopicPartitions]) -> bytes:
    parts = [struct.pack(">i", len(items))]
    for item in items:
        parts += (fields.string(item.topic), fields.i32s(item.partitions))
    return b"".join(parts)
