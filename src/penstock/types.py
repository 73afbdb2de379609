"""The types that all layers share. NewTypes cost nothing at run time."""

from enum import Enum
from typing import NamedTuple, NewType
from uuid import UUID

TopicName = NewType("TopicName", str)
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
NodeId = NewType("NodeId", int)
TopicId = UUID


class PartitionKey(NamedTuple):
    """A partition by its topic's name."""

    topic: TopicName
    partition: int


Buffer = bytes | bytearray | memoryview
"""Any bytes. A memoryview into a receive buffer is only valid until the call that received it returns."""

NO_OFFSET = -1
NO_EPOCH = -1
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1


class TimestampType(Enum):
    """Whether a record's timestamp is from the producer or the broker."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class Flush(Enum):
    """What ``acks=all`` waits for on each in-sync replica: that the record is synced, or only written."""

    SYNC = "sync"
    OS = "os"


class Acks(Enum):
    """Which replicas must have the records before a produce is acknowledged: all in-sync ones, the leader, or none."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


class Gateway(Enum):
    """The API of a request; the values are labels of metrics."""

    KAFKA = "kafka"
    HTTP = "http"
    TCP = "tcp"
    GRPC = "grpc"
    INTERNAL = "internal"
