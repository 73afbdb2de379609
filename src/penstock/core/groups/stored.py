"""The records of the offsets topic, in Kafka's layouts, so that Kafka's tools can read them.

Each key and value starts with an int16 version. Strings have an int16 length (-1 for null), bytes an int32 length.

============  ===========  ================================================================================
record        versions     key, then value
============  ===========  ================================================================================
offset        key 0, 1     group, topic, partition int32
              value 0      offset int64, metadata, commit time int64
              value 1      offset, metadata, commit time, expiry time int64
              value 2      offset, metadata, commit time
              value 3      offset, leader epoch int32, metadata, commit time
              value 4      the same, metadata with a varint length; then tagged fields: 0 is the topic's id
group         key 2        group
              value 0-3    protocol type, generation int32, protocol (null), leader (null), [2+: state time int64],
                           members: id, [3+: instance id (null)], client id, client host, [1+: rebalance timeout int32],
                           session timeout int32, subscription bytes, assignment bytes
============  ===========  ================================================================================

Offsets are written in version 4, but in version 1 if the client set an expiry, and in version 3 if the topic's id is unknown.
Groups are written in version 3. A null value is a tombstone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

from penstock.core.coordinators.topic import StateRecord, UnreadableRecord
from penstock.core.groups.requests import CommittedOffset
from penstock.types import NO_EPOCH, NO_TIMESTAMP, Buffer, GroupId, MemberId, PartitionKey, TopicId, TopicName

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_VALUE_VERSION: Final = 3
_VALUE_VERSION_WITH_TOPIC: Final = 4
_TOPIC_ID_TAG: Final = 0
_UUID_BYTES: Final = 16
_VARINT_BYTES_MAX: Final = 5
_VALUE_VERSION_WITH_EXPIRY: Final = 1
_STRING_BYTES_MAX: Final = 2**15 - 1
_MEMBER_BYTES_MIN: Final = 20


class Reader:
    """Reads one field after the other; UnreadableRecord if the data ends too early."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def int16(self) -> int:
        """A big-endian number of two bytes."""
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        """A big-endian number of four bytes."""
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        """A big-endian number of eight bytes."""
        return int.from_bytes(self._take(8), "big", signed=True)

    def nullable_string(self) -> str | None:
        """A string with an int16 length; None for the length -1."""
        length = self.int16()
        if length == -1:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableRecord("A name is not UTF-8") from error

    def string(self) -> str:
        """The same, without None."""
        return self.nullable_string() or ""

    def bytes(self) -> bytes:
        """Bytes with an int32 length."""
        return bytes(self._take(max(0, self.int32())))

    def varint(self) -> int:
        """An unsigned number of variable length."""
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                return value
        raise UnreadableRecord("A number is too long")

    def sized(self) -> memoryview:
        """Bytes with a length of variable length."""
        return self._take(self.varint())

    def compact_string(self) -> str:
        """A string with a length of variable length, plus 1."""
        try:
            return str(self._take(max(0, self.varint() - 1)), "utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableRecord("A text is not UTF-8") from error

    def count(self, item_bytes_min: int) -> int:
        """The length of an array whose items have at least so many bytes."""
        count = self.int32()
        if not 0 <= count * item_bytes_min <= len(self._data) - self._at:
            raise UnreadableRecord(f"{count} items do not fit into the record")
        return count

    def _take(self, length: int) -> memoryview:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise UnreadableRecord("The record ends in the middle of a field")
        taken = self._data[self._at : end]
        self._at = end
        return taken


@dataclass(frozen=True, slots=True)
class OffsetRecordKey:
    """The key of one partition's offset in one group."""

    group_id: GroupId
    key: PartitionKey


@dataclass(frozen=True, slots=True)
class GroupRecordKey:
    """The key of one group."""

    group_id: GroupId


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stable generation."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group when its last generation became stable, or its last member left."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader_id: MemberId | None
    state_since_ms: int
    members: tuple[StoredMember, ...]


def offset_record(group_id: GroupId, key: PartitionKey, committed: CommittedOffset | None) -> StateRecord:
    """The record of one commit; its tombstone if ``committed`` is None."""
    out = bytearray(_INT16.pack(_OFFSET_KEY_VERSION))
    put_string(out, group_id)
    put_string(out, key.topic)
    out += _INT32.pack(key.partition)
    return bytes(out), None if committed is None else _offset_value(committed)


def _offset_value(committed: CommittedOffset) -> bytes:
    with_expiry = committed.expire_ms != NO_TIMESTAMP
    if committed.topic_id is not None and not with_expiry:
        return _offset_value_with_topic(committed, committed.topic_id)
    out = bytearray(_INT16.pack(_VALUE_VERSION_WITH_EXPIRY if with_expiry else _VALUE_VERSION))
    out += _INT64.pack(committed.offset)
    if not with_expiry:
        out += _INT32.pack(committed.leader_epoch)
    put_string(out, committed.metadata)
    out += _INT64.pack(committed.commit_ms)
    if with_expiry:
        out += _INT64.pack(committed.expire_ms)
    return bytes(out)


def _offset_value_with_topic(committed: CommittedOffset, topic_id: TopicId) -> bytes:
    out = bytearray(_INT16.pack(_VALUE_VERSION_WITH_TOPIC))
    out += _INT64.pack(committed.offset)
    out += _INT32.pack(committed.leader_epoch)
    metadata = committed.metadata.encode()
    _put_varint(out, len(metadata) + 1)
    out += metadata
    out += _INT64.pack(committed.commit_ms)
    out += bytes((1, _TOPIC_ID_TAG, _UUID_BYTES))
    out += topic_id.bytes
    return bytes(out)


def group_record(group_id: GroupId, group: StoredGroup | None) -> StateRecord:
    """The record of a group; its tombstone if ``group`` is None."""
    key = bytearray(_INT16.pack(_GROUP_KEY_VERSION))
    put_string(key, group_id)
    return bytes(key), None if group is None else _group_value(group)


def _group_value(group: StoredGroup) -> bytes:
    out = bytearray(_INT16.pack(_VALUE_VERSION))
    put_string(out, group.protocol_type)
    out += _INT32.pack(group.generation)
    put_string(out, group.protocol)
    put_string(out, group.leader_id)
    out += _INT64.pack(group.state_since_ms)
    out += _INT32.pack(len(group.members))
    for member in group.members:
        put_string(out, member.member_id)
        put_string(out, member.instance_id)
        put_string(out, member.client_id)
        put_string(out, member.client_host)
        out += _INT32.pack(member.rebalance_timeout_ms)
        out += _INT32.pack(member.session_timeout_ms)
        _put_bytes(out, member.subscription)
        _put_bytes(out, member.assignment)
    return bytes(out)


def tombstones(group_id: GroupId, keys: Iterable[PartitionKey]) -> list[StateRecord]:
    """The tombstones of these offsets."""
    return [offset_record(group_id, key, None) for key in keys]


def read_key(data: Buffer) -> OffsetRecordKey | GroupRecordKey:
    """What a record is about. UnreadableRecord if the version is unknown."""
    reader = Reader(data)
    version = reader.int16()
    if version in (0, _OFFSET_KEY_VERSION):
        group_id = GroupId(reader.string())
        topic = TopicName(reader.string())
        return OffsetRecordKey(group_id, PartitionKey(topic, reader.int32()))
    if version == _GROUP_KEY_VERSION:
        return GroupRecordKey(GroupId(reader.string()))
    raise UnreadableRecord(f"The key has the unknown version {version}")


def read_offset(data: Buffer) -> CommittedOffset:
    """The value of an offset record."""
    reader = Reader(data)
    version = _known_version(reader, _VALUE_VERSION_WITH_TOPIC)
    offset = reader.int64()
    if version == _VALUE_VERSION_WITH_TOPIC:
        return _read_offset_with_topic(reader, offset)
    leader_epoch = reader.int32() if version == 3 else NO_EPOCH
    metadata = reader.string()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == _VALUE_VERSION_WITH_EXPIRY else NO_TIMESTAMP
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, expire_ms)


def _read_offset_with_topic(reader: Reader, offset: int) -> CommittedOffset:
    leader_epoch = reader.int32()
    metadata = reader.compact_string()
    commit_ms = reader.int64()
    topic_id = None
    for _ in range(reader.varint()):
        tag, data = reader.varint(), reader.sized()
        if tag == _TOPIC_ID_TAG and len(data) == _UUID_BYTES:
            topic_id = UUID(bytes=bytes(data))
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, topic_id=topic_id)


def read_group(data: Buffer) -> StoredGroup:
    """The value of a group record."""
    reader = Reader(data)
    version = _known_version(reader, _VALUE_VERSION)
    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader_id = reader.nullable_string()
    state_since_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_read_member(reader, version) for _ in range(reader.count(_MEMBER_BYTES_MIN)))
    leader = None if leader_id is None else MemberId(leader_id)
    return StoredGroup(protocol_type, generation, protocol, leader, state_since_ms, members)


def _read_member(reader: Reader, version: int) -> StoredMember:
    member_id = MemberId(reader.string())
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # The first version had only one timeout.
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.bytes(),
        assignment=reader.bytes(),
    )


def _known_version(reader: Reader, latest: int) -> int:
    version = reader.int16()
    if not 0 <= version <= latest:
        raise UnreadableRecord(f"The value has the unknown version {version}")
    return version


def put_string(out: bytearray, text: str | None) -> None:
    """Append a string with an int16 length; None has the length -1."""
    if text is None:
        out += _INT16.pack(-1)
        return
    encoded = text.encode()
    assert len(encoded) <= _STRING_BYTES_MAX, "the callers limit the length of names"
    out += _INT16.pack(len(encoded))
    out += encoded


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_bytes(out: bytearray, data: bytes) -> None:
    out += _INT32.pack(len(data))
    out += data
