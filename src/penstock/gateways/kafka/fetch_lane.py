"""The fast lane for fetches of one partition without a session: the requests of a reader that catches up differ only in the offset.

The lane remembers the last such request and its meaning. If the next one differs only in its offset, and there is enough to
send, the answer is a head with four numbers in it, a slice of the log, and a fixed tail. Any other request (one that waits or
fails, with a session or several partitions) is left to ``handlers/k01_fetch.py``, which has the same rules and answers.
"""

from struct import Struct
from typing import TYPE_CHECKING, Final

from penstock.core.partitions.partition import Partition
from penstock.core.security.lanes import authorise_lane
from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers.k01_fetch import BY_ID_FROM, READ_COMMITTED, REPLICA_STATE_FROM
from penstock.operations.operation import Action
from penstock.transport.receive import LENGTH_BYTES, FrameReader
from penstock.types import Buffer, Gateway
from penstock.wire.kafka.fetch_generated import (
    ENCODE_RESPONSE,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from penstock.wire.kafka.primitives import uvarint

if TYPE_CHECKING:
    from penstock.gateways.kafka.connection import KafkaConnection

LANE_VERSION_MIN: Final = 5
SESSIONS_FROM: Final = 7
LEADER_EPOCH_FROM: Final = 9
FLEXIBLE_FROM: Final = 12
NO_SESSION_EPOCH: Final = -1
_HEAD_BYTES: Final = 8
"""API key, version, correlation id."""
_OFFSET: Final = Struct(">q")
_OFFSETS: Final = Struct(">qqq")
"""High watermark, stable offset, log start offset."""
_INT32: Final = Struct(">i")
_PLACEHOLDER: Final = (0x5A5A_5A5A_5A5A_5A01, 0x5A5A_5A5A_5A5A_5A02, 0x5A5A_5A5A_5A5A_5A03)


class FetchShape:
    """A request but for its offset, and its answer but for the numbers and the records."""

    __slots__ = (
        "_flexible",
        "_head",
        "_middle",
        "_pack",
        "_size",
        "access_version",
        "after",
        "before",
        "bytes_max",
        "bytes_min",
        "caller",
        "can_wait",
        "flow",
        "offset_at",
        "partition",
        "size",
        "tail",
        "topics_version",
        "version",
    )

    def __init__(
        self, view: memoryview, offset_at: int, request: FetchRequest, partition: Partition, context: RequestContext
    ) -> None:
        wanted = request.topics[0].partitions[0]
        self.version = context.version
        self.topics_version = context.broker.topics_version
        self.access_version = context.broker.access.version
        self.caller = context.caller
        self.partition = partition
        self.flow = context.broker.meters.flow(partition.topic.name, Gateway.KAFKA)
        self.before = bytes(view[_HEAD_BYTES:offset_at])
        self.after = bytes(view[offset_at + _OFFSET.size :])
        self.offset_at = offset_at
        self.size = len(view)
        bytes_max = min(max(request.max_bytes, 0), context.gateway.limits.fetch_bytes_max)
        self.bytes_max = min(wanted.partition_max_bytes, bytes_max)
        self.bytes_min = min(request.min_bytes, bytes_max)
        self.can_wait = request.max_wait_ms > 0
        self._flexible = context.version >= FLEXIBLE_FROM
        body = _empty_answer(request, context.version)
        at = body.index(_OFFSETS.pack(*_PLACEHOLDER))
        # The body ends with the length of no records and, when flexible, three ends of tagged fields after it.
        length_at = len(body) - LENGTH_BYTES
        self.tail = body[length_at + 1 :] if self._flexible else b""
        self._head = (b"\0" if self._flexible else b"") + body[:at]
        self._middle = body[at + _OFFSETS.size : length_at]
        layout = Struct(f">ii{len(self._head)}sqqq{len(self._middle)}s")
        self._pack = layout.pack
        self._size = layout.size - LENGTH_BYTES + len(self.tail)

    def frame(self, correlation_id: int, records: Buffer) -> list[Buffer]:
        """The whole answer; the records are not copied."""
        count = len(records)
        length = uvarint(count + 1) if self._flexible else _INT32.pack(count)
        partition = self.partition
        head = self._pack(
            self._size + len(length) + count,
            correlation_id,
            self._head,
            partition.high_watermark,
            partition.stable_offset,
            partition.log.start_offset,
            self._middle,
        )
        return [head + length, records, self.tail] if self.tail else [head + length, records]


def _empty_answer(request: FetchRequest, version: int) -> bytes:
    topic = request.topics[0]
    high_watermark, stable_offset, start_offset = _PLACEHOLDER
    partition = FetchResponsePartition(
        partition_index=topic.partitions[0].partition,
        high_watermark=high_watermark,
        last_stable_offset=stable_offset,
        log_start_offset=start_offset,
        aborted_transactions=[] if request.isolation_level == READ_COMMITTED else None,
        records=b"",
    )
    named = FetchResponseTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=[partition])
    return b"".join(ENCODE_RESPONSE[version](FetchResponse(responses=[named])))


class FetchLane:
    """A connection's fetches."""

    __slots__ = ("_connection", "_shape")

    def __init__(self, connection: "KafkaConnection") -> None:
        self._connection = connection
        self._shape: FetchShape | None = None

    def forget(self) -> None:
        """The connection has another caller: what was learned for the last one does not count."""
        self._shape = None

    @property
    def is_answered(self) -> bool:
        """Every fetch has an answer."""
        return True

    def take(self, frames: FrameReader, start: int, end: int, version: int, correlation_id: int) -> bool:
        """Answer the request if it is the known one with another offset; False leaves it for the handler."""
        shape = self._shape
        connection = self._connection
        broker = connection.broker
        if (
            shape is None
            or end - start != shape.size
            or version != shape.version
            or shape.topics_version != broker.topics_version
            or shape.access_version != broker.access.version
            or shape.caller is not connection.caller
        ):
            return False
        buffer = frames.buffer
        at = start + shape.offset_at
        if buffer[start + _HEAD_BYTES : at] != shape.before or buffer[at + _OFFSET.size : end] != shape.after:
            return False
        (offset,) = _OFFSET.unpack_from(buffer, at)
        partition = shape.partition
        if not partition.log.start_offset <= offset < partition.stable_offset:
            return False
        rate = connection.throttle.allowance().consume if broker.quotas.is_on else None
        bytes_max = shape.bytes_max if rate is None else min(shape.bytes_max, rate.burst())
        try:
            records, next_offset = partition.read(offset, bytes_max)
        except (PenstockError, OSError):
            return False
        if not records:
            return False
        # A request without time to wait gets what there is.
        if len(records) < min(shape.bytes_min, bytes_max) and shape.can_wait:
            return False
        if partition.high_watermark <= next_offset < partition.acknowledged_offset:
            # More records are acknowledged, and the handler waits for them.
            return False
        if rate is not None and rate.record_within(len(records), broker.clock.monotonic_ms()):
            # The handler answers without records, and throttles the client.
            return False
        flow = shape.flow
        flow.records_out += next_offset - offset
        flow.bytes_out += len(records)
        connection.answer(shape.frame(correlation_id, records), connection.gateway.fetch_latency)
        return True

    def learn(self, request: FetchRequest, context: RequestContext, view: memoryview, position: int) -> None:
        """Remember a request that the lane did not take, if the next requests may be like it."""
        version = context.version
        if (
            version < LANE_VERSION_MIN
            or context.broker.audit.records_data
            or request.session_id != 0
            or request.session_epoch != NO_SESSION_EPOCH
            or len(request.topics) != 1
            or len(request.topics[0].partitions) != 1
            or request.forgotten_topics_data
            # The handler may send such a client to a follower, which it decides for each request.
            or (request.rack_id and not context.broker.is_alone)
        ):
            return
        topic = request.topics[0]
        wanted = topic.partitions[0]
        replica_id = request.replica_id if version < REPLICA_STATE_FROM else -1
        if replica_id >= 0 or request.replica_state is not None or wanted.last_fetched_epoch >= 0:
            return
        try:
            if version >= BY_ID_FROM:
                partition = context.broker.partition_by_id(topic.topic_id, wanted.partition)
            else:
                partition = context.broker.partition(topic.topic, wanted.partition)
            authorise_lane(context.broker, context.caller, Action.READ, partition.topic.name)
            partition.check_epoch(wanted.current_leader_epoch)
        except PenstockError:
            return
        offset_at = _offset_position(request, version, position)
        if _OFFSET.unpack_from(view, offset_at)[0] == wanted.fetch_offset:
            self._shape = FetchShape(view, offset_at, request, partition, context)


def _offset_position(request: FetchRequest, version: int, position: int) -> int:
    """The position of the offset in a request of one partition whose body begins at ``position``."""
    name_bytes = len(request.topics[0].topic.encode())
    # Replica id; longest wait, least and most bytes, isolation; session.
    at = position + (4 if version < REPLICA_STATE_FROM else 0) + 13 + (8 if version >= SESSIONS_FROM else 0)
    if version < FLEXIBLE_FROM:
        at += 4 + 2 + name_bytes + 4
    else:
        at += 1 + (16 if version >= BY_ID_FROM else len(uvarint(name_bytes + 1)) + name_bytes) + 1
    return at + 4 + (4 if version >= LEADER_EPOCH_FROM else 0)
