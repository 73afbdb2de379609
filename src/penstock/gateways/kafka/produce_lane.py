"""The fast lane for produce requests of the usual shape: one topic, one partition, one batch. Same rules, same answers as any other.

Nearly every produce request of a connection has the same first bytes: client id, acks, time-out, one topic, one partition.
The lane remembers them with what they mean, compares the next request's bytes, and is left with the partition's index and
one batch to append. A request that does not match is decoded and served by ``handlers/k00_produce.py``, and teaches the lane.
"""

from struct import Struct
from typing import TYPE_CHECKING, Final

from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.connections import SWEEP_MS
from penstock.gateways.kafka.answers import PendingAnswer
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers.k00_produce import BY_ID_FROM, append, partition_of, refuse, when_acknowledged
from penstock.meters import Flow, Histogram
from penstock.transport.receive import LENGTH_BYTES, FrameReader
from penstock.types import NO_OFFSET, NO_TIMESTAMP, Gateway
from penstock.wire.kafka.headers import frame
from penstock.wire.kafka.produce_generated import (
    ENCODE_RESPONSE,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

if TYPE_CHECKING:
    from penstock.gateways.kafka.connection import KafkaConnection

LANE_VERSION_MIN: Final = 5
FLEXIBLE_FROM: Final = 9
_HEAD_BYTES: Final = 8
"""API key, version, correlation id."""
_INDEX: Final = Struct(">i")
_INDEX_AND_LENGTH: Final = Struct(">ii")
_REST_BYTES_MIN: Final = 9
"""The index and the longest possible length, so that neither is read past the end of the request."""
_PLACE: Final = Struct(">qqq")
"""Base offset, log-append time, log start offset."""
_PLACEHOLDER: Final = (0x5A5A_5A5A_5A5A_5A01, 0x5A5A_5A5A_5A5A_5A02, 0x5A5A_5A5A_5A5A_5A03)
_TAGS: Final = b"\0\0\0"
"""The end of a flexible request with one partition: no tagged fields of the partition, the topic and the request."""
_TAGS_BYTES: Final = len(_TAGS)


class ProduceShape:
    """What a connection's produce requests have in common."""

    __slots__ = (
        "access_version",
        "acks",
        "caller",
        "is_flexible",
        "prefix",
        "size",
        "targets",
        "timeout_ms",
        "topic_id",
        "topic_name",
        "topics_version",
        "version",
    )

    def __init__(self, prefix: bytes, request: ProduceRequest, context: RequestContext) -> None:
        topic = request.topic_data[0]
        self.prefix = prefix
        self.size = len(prefix)
        self.version = context.version
        self.acks = request.acks
        self.timeout_ms = max(request.timeout_ms, 0) + SWEEP_MS
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.topics_version = context.broker.topics_version
        self.access_version = context.broker.access.version
        self.caller = context.caller
        self.is_flexible = context.version >= FLEXIBLE_FROM
        self.targets: dict[int, ProduceTarget] = {}

    def response(self, partition: ProduceResponsePartition) -> ProduceResponse:
        """The response with the answer for one partition."""
        return ProduceResponse([ProduceResponseTopic(self.topic_id, self.topic_name, [partition])])

    def encode(self, response: ProduceResponse) -> bytes:
        """The body of the answer."""
        return b"".join(ENCODE_RESPONSE[self.version](response))


class ProduceTarget:
    """A partition to which a connection produces: what the requests have in common, and the prepared answer."""

    __slots__ = ("_after", "_before", "_pack", "_size", "flow", "latency", "partition", "shape", "when_acknowledged")

    def __init__(self, partition: Partition, shape: ProduceShape, flow: Flow, latency: Histogram) -> None:
        self.partition = partition
        self.flow = flow
        self.latency = latency
        self.shape = shape
        self.when_acknowledged = when_acknowledged(partition, shape.acks)
        body = shape.encode(shape.response(ProduceResponsePartition(partition.index, 0, *_PLACEHOLDER)))
        at = body.index(_PLACE.pack(*_PLACEHOLDER))
        # A flexible answer's header ends with its (no) tagged fields.
        self._before = (b"\0" if shape.is_flexible else b"") + body[:at]
        self._after = body[at + _PLACE.size :]
        layout = Struct(f">ii{len(self._before)}sqqq{len(self._after)}s")
        self._pack = layout.pack
        self._size = layout.size - LENGTH_BYTES

    def frame(self, correlation_id: int, base_offset: int) -> bytes:
        """The whole answer."""
        return self._pack(
            self._size,
            correlation_id,
            self._before,
            base_offset,
            NO_TIMESTAMP,
            self.partition.log.start_offset,
            self._after,
        )


class LaneAnswer(PendingAnswer):
    """The answer to a produce of one batch; called when it is written or committed, or never will be."""

    __slots__ = ("base_offset", "correlation_id", "target")

    def __init__(
        self, connection: "KafkaConnection", correlation_id: int, base_offset: int, target: ProduceTarget, due_ms: int
    ) -> None:
        # Without the base class's, because one is made for every request.
        self.connection = connection
        self.arrived = connection.arrived
        self.latency = target.latency
        self.parts = None
        self.due_ms = due_ms
        self.correlation_id = correlation_id
        self.base_offset = base_offset
        self.target = target

    def __call__(self, reason: Reason | None) -> None:
        """The batch is written or committed, or never will be."""
        if self.parts is not None:
            return
        if reason is None:
            self.parts = [self.target.frame(self.correlation_id, self.base_offset)]
            self.connection.ready()
        else:
            self.refuse(PenstockError(reason))

    def refuse(self, error: PenstockError) -> None:
        """Answer with an error."""
        shape, partition = self.target.shape, self.target.partition
        answer = ProduceResponsePartition(partition.index)
        response = shape.response(answer)
        refuse(response, answer, self.connection.broker, self.connection.listener, partition.topic.name, error)
        self.complete(frame(self.correlation_id, 1 if shape.is_flexible else 0, [shape.encode(response)]))

    def time_out(self) -> None:
        """The client's timeout is over; the records may still be committed later, as with every broker."""
        self(Reason.REQUEST_TIMED_OUT)
        self.drop()

    def drop(self) -> None:
        """The client's timeout is over, or the client is gone."""
        self.target.partition.forget_committed(self)


class ProduceLane:
    """A connection's produce requests."""

    __slots__ = ("_broker", "_connection", "_shape")

    def __init__(self, connection: "KafkaConnection") -> None:
        self._connection = connection
        self._broker = connection.broker
        self._shape: ProduceShape | None = None

    def forget(self) -> None:
        """The connection has another caller: what was learned for the last one does not count."""
        self._shape = None

    @property
    def is_answered(self) -> bool:
        """Whether its requests have answers."""
        return self._shape is not None and self._shape.acks != 0

    def take(self, frames: FrameReader, start: int, end: int, version: int, correlation_id: int) -> bool:
        """Handle the request if it has the known shape; False leaves it untouched for the handler."""
        shape = self._shape
        broker = self._broker
        if (
            shape is None
            or version != shape.version
            or shape.topics_version != broker.topics_version
            or shape.access_version != broker.access.version
            or shape.caller is not self._connection.caller
        ):
            return False
        buffer = frames.buffer
        at = start + _HEAD_BYTES
        stop = at + shape.size
        if buffer[at:stop] != shape.prefix or stop + _REST_BYTES_MIN > end:
            return False
        if shape.is_flexible:
            (index,) = _INDEX.unpack_from(buffer, stop)
            length, records = _compact_length(buffer, stop + 4)
            if records + length + _TAGS_BYTES != end or buffer[end - _TAGS_BYTES : end] != _TAGS:
                return False
        else:
            index, length = _INDEX_AND_LENGTH.unpack_from(buffer, stop)
            records = stop + 8
            if records + length != end:
                return False
        target = shape.targets.get(index)
        if target is None:
            return False
        batch = frames.view[records : records + length]
        partition, acks = target.partition, shape.acks
        try:
            if acks == -1 and partition.in_sync.is_below_min:
                partition.check_in_sync(batch)
            base_offset = append(partition, batch, acks, broker.clock.now_ms(), target.flow)
        except PenstockError as error:
            self._refuse(error, correlation_id, target)
            return True
        if acks != 0:
            connection = self._connection
            due_ms = connection.gateway.swept_ms + shape.timeout_ms
            answer = LaneAnswer(connection, correlation_id, base_offset, target, due_ms)
            connection.queue(answer)
            target.when_acknowledged(partition.log.next_offset, answer)
        return True

    def _refuse(self, error: PenstockError, correlation_id: int, target: ProduceTarget) -> None:
        connection = self._connection
        if target.shape.acks == 0:
            connection.gateway.count_error(error.reason.name)
            connection.refuse_unanswered(error)
        else:
            refusal = LaneAnswer(connection, correlation_id, NO_OFFSET, target, 0)
            connection.queue(refusal)
            refusal.refuse(error)

    def learn(self, request: ProduceRequest, context: RequestContext, view: memoryview, position: int) -> None:
        """Remember the shape of a request that the lane did not take, if the next requests may have it, too."""
        version = context.version
        if (
            version < LANE_VERSION_MIN
            or context.broker.audit.records_data
            or request.transactional_id is not None
            or request.acks not in (-1, 0, 1)
            or len(request.topic_data) != 1
            or len(request.topic_data[0].partition_data) != 1
        ):
            return
        topic = request.topic_data[0]
        try:
            partition = partition_of(context, topic, topic.partition_data[0].index)
        except PenstockError:
            return
        if not _is_plain(partition):
            return
        prefix = bytes(view[_HEAD_BYTES : _index_position(request, version, position)])
        shape = self._shape
        if (
            shape is None
            or shape.prefix != prefix
            or shape.version != version
            or shape.topics_version != context.broker.topics_version
            or shape.access_version != context.broker.access.version
            or shape.caller is not context.caller
        ):
            shape = self._shape = ProduceShape(prefix, request, context)
        flow = context.broker.meters.flow(partition.topic.name, Gateway.KAFKA)
        shape.targets[partition.index] = ProduceTarget(partition, shape, flow, context.gateway.produce_latency)


def _is_plain(partition: Partition) -> bool:
    """Whether the lane can append to the partition."""
    return not (partition.wants_recompression or partition.stamps or partition.is_compacted)


def _index_position(request: ProduceRequest, version: int, position: int) -> int:
    """The position of the partition's index in a request of one topic and one partition whose body begins at ``position``."""
    name_bytes = len(request.topic_data[0].name.encode())
    if version < FLEXIBLE_FROM:
        return position + 2 + 2 + 4 + 4 + 2 + name_bytes + 4
    topic_bytes = 16 if version >= BY_ID_FROM else (1 if name_bytes + 1 < 0x80 else 2) + name_bytes
    return position + 1 + 2 + 4 + 1 + topic_bytes + 1


def _compact_length(buffer: bytearray, at: int) -> tuple[int, int]:
    """A compact length and the position after it; -1 for null or one that is too long."""
    value = buffer[at]
    at += 1
    if value < 0x80:
        return value - 1, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - 1, at
    return -1, at
