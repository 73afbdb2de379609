"""The records of `__consumer_offsets`: committed offsets and group metadata, as Kafka lays them out.

On disk: each key and each value starts with a two-byte version. The key's version tells what the record is: 0 or 1 a
committed offset, 2 a group's metadata. A record without a value is a tombstone: the offset or the group is gone. The
topic is compacted by key, so the last value of a key is the truth.

We write offsets as version 3 and groups as version 3; offset values of versions 1 to 3 are read too, because topics
copied from older brokers hold them.
"""

import struct
from typing import Final

import msgspec

from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka import fields

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
GROUP_VALUE_VERSION: Final = 3
_MEMBER_BYTES_MIN: Final = 24


class OffsetCommitKey(msgspec.Struct, frozen=True):
    """Whose offset, and of what."""

    group: str
    topic: str
    partition: int


class OffsetCommitValue(msgspec.Struct, frozen=True):
    """A committed offset. `expire_timestamp_ms` is only in version 1: -1 means the broker's retention applies."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1


class GroupMetadataKey(msgspec.Struct, frozen=True):
    """Which group."""

    group: str


class GroupMember(msgspec.Struct, frozen=True):
    """One member as it was when the group was last written. Subscription and assignment are the client's bytes."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(msgspec.Struct, frozen=True):
    """A group: its generation, its leader and its members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int = -1
    members: list[GroupMember] = []


def encode_offset_key(key: OffsetCommitKey) -> bytes:
    """The key of a committed offset."""
    head = struct.pack(">h", OFFSET_KEY_VERSION)
    return head + fields.string(key.group) + fields.string(key.topic) + struct.pack(">i", key.partition)


def encode_group_key(key: GroupMetadataKey) -> bytes:
    """The key of a group's metadata."""
    return struct.pack(">h", GROUP_KEY_VERSION) + fields.string(key.group)


def decode_key(buf: Buffer) -> OffsetCommitKey | GroupMetadataKey:
    """Read a record's key and so learn what the record is."""
    version, pos = fields.read_i16(buf, 0)
    if version in (0, OFFSET_KEY_VERSION):
        group, pos = fields.read_string(buf, pos)
        topic, pos = fields.read_string(buf, pos)
        partition, pos = fields.read_i32(buf, pos)
        return OffsetCommitKey(group, topic, partition)
    if version == GROUP_KEY_VERSION:
        group, pos = fields.read_string(buf, pos)
        return GroupMetadataKey(group)
    raise ProtocolViolation(f"key version {version} in the offsets topic is unknown; skip the record")


def encode_offset_value(value: OffsetCommitValue, version: int = OFFSET_VALUE_VERSION) -> bytes:
    """A committed offset; version 1 has no leader epoch but an expiry, version 3 the other way round."""
    metadata = fields.string(value.metadata)
    if version == 3:
        head = struct.pack(">hqi", version, value.offset, value.leader_epoch)
        return head + metadata + struct.pack(">q", value.commit_timestamp_ms)
    assert version == 1, f"offset values are written as version 1 or 3, not {version}"
    tail = struct.pack(">qq", value.commit_timestamp_ms, value.expire_timestamp_ms)
    return struct.pack(">hq", version, value.offset) + metadata + tail


def decode_offset_value(buf: Buffer) -> OffsetCommitValue:
    """Read a committed offset of version 1, 2 or 3."""
    version, pos = fields.read_i16(buf, 0)
    if not 1 <= version <= 3:
        raise ProtocolViolation(f"offset value version {version} is unknown; 1 to 3 can be read")
    offset, pos = fields.read_i64(buf, pos)
    leader_epoch = -1
    if version == 3:
        leader_epoch, pos = fields.read_i32(buf, pos)
    metadata, pos = fields.read_string(buf, pos)
    commit_timestamp_ms, pos = fields.read_i64(buf, pos)
    expire_timestamp_ms = -1
    if version == 1:
        expire_timestamp_ms, pos = fields.read_i64(buf, pos)
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


def encode_group_value(value: GroupMetadataValue) -> bytes:
    """A group's metadata."""
    parts = [
        struct.pack(">h", GROUP_VALUE_VERSION),
        fields.string(value.protocol_type),
        struct.pack(">i", value.generation),
        fields.string(value.protocol),
        fields.string(value.leader),
        struct.pack(">qi", value.current_state_timestamp_ms, len(value.members)),
    ]
    for member in value.members:
        parts += (
            fields.string(member.member_id),
            fields.string(member.group_instance_id),
            fields.string(member.client_id),
            fields.string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            fields.data(member.subscription),
            fields.data(member.assignment),
        )
    return b"".join(parts)


def decode_group_value(buf: Buffer) -> GroupMetadataValue:
    """Read a group's metadata."""
    version, pos = fields.read_i16(buf, 0)
    if version != GROUP_VALUE_VERSION:
        raise ProtocolViolation(f"group metadata version {version} is unknown; {GROUP_VALUE_VERSION} can be read")
    protocol_type, pos = fields.read_string(buf, pos)
    generation, pos = fields.read_i32(buf, pos)
    protocol, pos = fields.read_nullable_string(buf, pos)
    leader, pos = fields.read_nullable_string(buf, pos)
    current_state_timestamp_ms, pos = fields.read_i64(buf, pos)
    count, pos = fields.read_count(buf, pos, _MEMBER_BYTES_MIN)
    members = []
    for _ in range(count):
        member, pos = _decode_member(buf, pos)
        members.append(member)
    return GroupMetadataValue(protocol_type, generation, protocol, leader, current_state_timestamp_ms, members)


def _decode_member(buf: Buffer, pos: int) -> tuple[GroupMember, int]:
    member_id, pos = fields.read_string(buf, pos)
    group_instance_id, pos = fields.read_nullable_string(buf, pos)
    client_id, pos = fields.read_string(buf, pos)
    client_host, pos = fields.read_string(buf, pos)
    rebalance_timeout_ms, pos = fields.read_i32(buf, pos)
    session_timeout_ms, pos = fields.read_i32(buf, pos)
    subscription, pos = fields.read_bytes(buf, pos)
    assignment, pos = fields.read_bytes(buf, pos)
    member = GroupMember(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
    return member, pos
