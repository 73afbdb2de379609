"""The names that travel between layers. NewTypes cost nothing when the program runs."""

from enum import Enum
from typing import NewType
from uuid import UUID

TopicName = NewType("TopicName", str)
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
NodeId = NewType("NodeId", int)
TopicId = UUID

Buffer = bytes | bytearray | memoryview
"""Any run of bytes; a memoryview into a receive buffer is only good until the call that got it returns."""

NO_OFFSET = -1
NO_EPOCH = -1
NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1


class TimestampType(Enum):
    """Whose clock a record's timestamp is from."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class Flush(Enum):
    """What an acknowledgement of all in-sync replicas waits for on this node."""

    SYNC = "sync"
    OS = "os"


class Acks(Enum):
    """What a producer waits for: that all in-sync replicas have its records, that the leader has, or nothing."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


class Gateway(Enum):
    """Through which door a request came; the values are labels of metrics."""

    KAFKA = "kafka"
    HTTP = "http"
    TCP = "tcp"
    GRPC = "grpc"
    INTERNAL = "internal"
