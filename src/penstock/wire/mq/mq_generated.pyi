from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "retention_ms", "retention_bytes", "configs")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    retention_ms: int
    retention_bytes: int
    configs: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., configs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("topic", "payload", "headers", "key", "partition", "timestamp_ms", "base64_headers", "tombstone")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BASE64_HEADERS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    payload: bytes
    headers: _containers.ScalarMap[str, str]
    key: bytes
    partition: int
    timestamp_ms: int
    base64_headers: _containers.RepeatedScalarFieldContainer[str]
    tombstone: bool
    def __init__(self, topic: _Optional[str] = ..., payload: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, str]] = ..., key: _Optional[bytes] = ..., partition: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., base64_headers: _Optional[_Iterable[str]] = ..., tombstone: _Optional[bool] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("message_id", "partition", "offset", "timestamp_ms")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    partition: int
    offset: int
    timestamp_ms: int
    def __init__(self, message_id: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("topic", "consumer_group", "consumer_id", "replay_offset", "replay_timestamp", "max_messages", "lease_ms", "max_in_flight", "max_batch", "partitions", "release_on_disconnect")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLAY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLAY_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ON_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    consumer_group: str
    consumer_id: str
    replay_offset: int
    replay_timestamp: int
    max_messages: int
    lease_ms: int
    max_in_flight: int
    max_batch: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    release_on_disconnect: bool
    def __init__(self, topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., replay_offset: _Optional[int] = ..., replay_timestamp: _Optional[int] = ..., max_messages: _Optional[int] = ..., lease_ms: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., max_batch: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., release_on_disconnect: _Optional[bool] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "topic", "payload", "timestamp", "headers", "partition", "offset", "key", "timestamp_ms", "base64_headers", "tombstone", "attempts", "lease_until_ms", "last_error")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BASE64_HEADERS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    payload: bytes
    timestamp: int
    headers: _containers.ScalarMap[str, str]
    partition: int
    offset: int
    key: bytes
    timestamp_ms: int
    base64_headers: _containers.RepeatedScalarFieldContainer[str]
    tombstone: bool
    attempts: int
    lease_until_ms: int
    last_error: str
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ..., payload: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., key: _Optional[bytes] = ..., timestamp_ms: _Optional[int] = ..., base64_headers: _Optional[_Iterable[str]] = ..., tombstone: _Optional[bool] = ..., attempts: _Optional[int] = ..., lease_until_ms: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class CommitOffsetRequest(_message.Message):
    __slots__ = ("topic", "consumer_group", "offset", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    consumer_group: str
    offset: int
    partition: int
    def __init__(self, topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., offset: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class CommitOffsetResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class PublishFrame(_message.Message):
    __slots__ = ("topic", "records", "id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    records: _containers.RepeatedCompositeFieldContainer[PublishRequest]
    id: int
    def __init__(self, topic: _Optional[str] = ..., records: _Optional[_Iterable[_Union[PublishRequest, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class PublishFrameResponse(_message.Message):
    __slots__ = ("partitions", "offsets", "failures", "id")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.RepeatedCompositeFieldContainer[PublishFailure]
    id: int
    def __init__(self, partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., failures: _Optional[_Iterable[_Union[PublishFailure, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class PublishFailure(_message.Message):
    __slots__ = ("index", "code", "message")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    code: int
    message: str
    def __init__(self, index: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class MessageFrame(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("topic", "consumer_group", "consumer_id", "partition", "offsets", "cumulative")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    consumer_group: str
    consumer_id: str
    partition: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    cumulative: bool
    def __init__(self, topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., partition: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., cumulative: _Optional[bool] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("topic", "consumer_group", "consumer_id", "partition", "offsets", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    consumer_group: str
    consumer_id: str
    partition: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., partition: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("topic", "consumer_group", "consumer_id", "partition", "offset", "lease_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    consumer_group: str
    consumer_id: str
    partition: int
    offset: int
    lease_ms: int
    def __init__(self, topic: _Optional[str] = ..., consumer_group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class TopicStatsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class TopicStatsResponse(_message.Message):
    __slots__ = ("topic", "partitions", "records", "size_bytes", "records_in_per_second", "bytes_in_per_second", "records_out_per_second", "bytes_out_per_second")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStats]
    records: int
    size_bytes: int
    records_in_per_second: float
    bytes_in_per_second: float
    records_out_per_second: float
    bytes_out_per_second: float
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionStats, _Mapping]]] = ..., records: _Optional[int] = ..., size_bytes: _Optional[int] = ..., records_in_per_second: _Optional[float] = ..., bytes_in_per_second: _Optional[float] = ..., records_out_per_second: _Optional[float] = ..., bytes_out_per_second: _Optional[float] = ...) -> None: ...

class PartitionStats(_message.Message):
    __slots__ = ("partition", "start_offset", "end_offset", "size_bytes")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    def __init__(self, partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class GroupStatusRequest(_message.Message):
    __slots__ = ("consumer_group",)
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    def __init__(self, consumer_group: _Optional[str] = ...) -> None: ...

class GroupStatusResponse(_message.Message):
    __slots__ = ("consumer_group", "state", "members", "members_left_out", "partitions", "queues")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    state: str
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    members_left_out: int
    partitions: _containers.RepeatedCompositeFieldContainer[GroupPartition]
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    def __init__(self, consumer_group: _Optional[str] = ..., state: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., members_left_out: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[GroupPartition, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("consumer_id", "client", "assigned")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    client: str
    assigned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, consumer_id: _Optional[str] = ..., client: _Optional[str] = ..., assigned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupPartition(_message.Message):
    __slots__ = ("topic", "partition", "committed_offset", "end_offset", "lag", "lag_ms", "consumer_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    committed_offset: int
    end_offset: int
    lag: int
    lag_ms: int
    consumer_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., committed_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., lag: _Optional[int] = ..., lag_ms: _Optional[int] = ..., consumer_id: _Optional[str] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "partitions", "owners", "in_flight_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedCompositeFieldContainer[QueuePartition]
    owners: _containers.RepeatedCompositeFieldContainer[QueueOwner]
    in_flight_max: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[QueuePartition, _Mapping]]] = ..., owners: _Optional[_Iterable[_Union[QueueOwner, _Mapping]]] = ..., in_flight_max: _Optional[int] = ...) -> None: ...

class QueuePartition(_message.Message):
    __slots__ = ("partition", "floor", "end_offset", "leased", "waiting", "ready", "moving", "finished_above_floor", "lag")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_ABOVE_FLOOR_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    partition: int
    floor: int
    end_offset: int
    leased: int
    waiting: int
    ready: int
    moving: int
    finished_above_floor: int
    lag: int
    def __init__(self, partition: _Optional[int] = ..., floor: _Optional[int] = ..., end_offset: _Optional[int] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ..., ready: _Optional[int] = ..., moving: _Optional[int] = ..., finished_above_floor: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class QueueOwner(_message.Message):
    __slots__ = ("consumer_id", "leased", "streams")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    leased: int
    streams: int
    def __init__(self, consumer_id: _Optional[str] = ..., leased: _Optional[int] = ..., streams: _Optional[int] = ...) -> None: ...

class DeliveryStatusRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "consumer_group", "message_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    consumer_group: str
    message_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., consumer_group: _Optional[str] = ..., message_id: _Optional[str] = ...) -> None: ...

class DeliveryStatusResponse(_message.Message):
    __slots__ = ("state", "sentence", "owner", "until_ms", "attempts", "last_error")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    state: str
    sentence: str
    owner: str
    until_ms: int
    attempts: int
    last_error: str
    def __init__(self, state: _Optional[str] = ..., sentence: _Optional[str] = ..., owner: _Optional[str] = ..., until_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...
