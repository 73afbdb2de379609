"""Produce (API key 0): the shape that clients send gets a fast lane, everything else the general one. Same rules, same answers.

Nearly every produce request of a connection has the same first bytes: client id, acks, time-out, one topic, one partition.
The lane remembers them with what they mean, compares the next request's bytes, and is left with the partition's index and
one batch to append. A request that does not match goes the general way, and teaches the lane.

Version 9 made the encoding flexible, 10 can name a new leader, 13 names topics by id. Below 3 record batches did not
exist: those versions are listed, because older librdkafka would otherwise stop compressing, and refused when used.
"""

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from penstock.core.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.connections import SWEEP_MS
from penstock.gateways.kafka.answer import Answer
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.handlers.k00_produce import (
    Committing,
    ProducedTopics,
    forget,
    place_of,
    refuse_all,
    start_produce,
    tell_leader,
)
from penstock.gateways.kafka.nodes import ToldLeader, leader_instead
from penstock.gateways.receive import LENGTH_BYTES, FrameReader
from penstock.meters import Flow, Histogram
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
VERSION_SERVED_MIN: Final = 3
_HEAD_BYTES: Final = 8
"""API key, version, correlation id."""
_INDEX: Final = Struct(">i")
_INDEX_AND_LENGTH: Final = Struct(">ii")
_REST_BYTES_MIN: Final = 9
"""The index and the longest possible length, so that neither is read from behind the request."""
_PLACE: Final = Struct(">qqq")
"""Base offset, log-append time, log start offset."""
_TAGS: Final = b"\0\0\0"
"""The ends of a flexible request with one partition: no tagged fields of partition, topic and request."""


class Shape:
    """What a connection's produce requests have in common."""

    __slots__ = (
        "acks",
        "is_flexible",
        "partitions",
        "prefix",
        "size",
        "timeout_ms",
        "topic_id",
        "topic_name",
        "topics_version",
        "version",
    )

    def __init__(self, prefix: bytes, version: int, request: ProduceRequest, topics_version: int) -> None:
        topic = request.topic_data[0]
        self.prefix = prefix
        self.size = len(prefix)
        self.version = version
        self.acks = request.acks
        self.timeout_ms = max(request.timeout_ms, 0) + SWEEP_MS
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.topics_version = topics_version
        self.is_flexible = version >= FLEXIBLE_FROM
        self.partitions: dict[int, Place] = {}


class Place:
    """A partition as a connection produces to it: what the requests have in common, and the answer ready to be filled in."""

    __slots__ = ("_after", "_before", "_pack", "_size", "flow", "latency", "partition", "shape")

    def __init__(self, partition: Partition, shape: Shape, flow: Flow, latency: Histogram) -> None:
        self.partition = partition
        self.flow = flow
        self.latency = latency
        self.shape = shape
        body = _response(shape, partition.index, _PLACEHOLDER)
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


_PLACEHOLDER: Final = (0x5A5A_5A5A_5A5A_5A01, 0x5A5A_5A5A_5A5A_5A02, 0x5A5A_5A5A_5A5A_5A03)


def _response(
    shape: Shape,
    index: int,
    place: tuple[int, int, int],
    error: int = 0,
    text: str | None = None,
    leader: ToldLeader | None = None,
) -> bytes:
    partition = ProduceResponsePartition(
        index=index,
        error_code=error,
        base_offset=place[0],
        log_append_time_ms=place[1],
        log_start_offset=place[2],
        error_message=text,
    )
    topic = ProduceResponseTopic(topic_id=shape.topic_id, partition_responses=[partition], name=shape.topic_name)
    response = ProduceResponse(responses=[topic])
    if leader is not None:
        tell_leader(response, partition, leader)
    return b"".join(ENCODE_RESPONSE[shape.version](response))


class LaneAnswer(Answer):
    """The answer to a produce of one batch; called when it is written or committed, or never will be."""

    __slots__ = ("base_offset", "correlation_id", "place")

    def __init__(
        self, connection: "KafkaConnection", correlation_id: int, base_offset: int, place: Place, due_ms: int
    ) -> None:
        # Not the base class's own: this is made for every request.
        self.connection = connection
        self.arrived = connection.arrived
        self.latency = place.latency
        self.parts = None
        self.due_ms = due_ms
        self.correlation_id = correlation_id
        self.base_offset = base_offset
        self.place = place

    def __call__(self, reason: Reason | None) -> None:
        """What the answer waited for has happened, or failed."""
        if self.parts is not None:
            return
        if reason is None:
            self.parts = [self.place.frame(self.correlation_id, self.base_offset)]
            self.connection.ready()
        else:
            self.refuse(PenstockError(reason))

    def refuse(self, error: PenstockError) -> None:
        """Answer with an error."""
        self.connection.gateway.count_error(error.reason.name)
        place = self.place
        partition = place.partition
        leader = leader_instead(self.connection.broker, error.reason, partition.topic.name, partition.index)
        nowhere = (-1, NO_TIMESTAMP, -1)
        body = _response(place.shape, partition.index, nowhere, CODES[error.reason], error.text, leader)
        self.complete(frame(self.correlation_id, 1 if place.shape.is_flexible else 0, [body]))

    def time_out(self) -> None:
        """The client's own time is up: the records may still become committed, as with every broker."""
        self(Reason.REQUEST_TIMED_OUT)
        self.drop()

    def drop(self) -> None:
        """Nobody waits for it any more: its time is up, or the client is gone."""
        self.place.partition.forget_committed(self)


class ProduceLane:
    """A connection's produce requests."""

    __slots__ = ("_connection", "_shape")

    def __init__(self, connection: "KafkaConnection") -> None:
        self._connection = connection
        self._shape: Shape | None = None

    def take(self, frames: FrameReader, start: int, end: int, version: int, correlation_id: int) -> bool:
        """Handle the request if it has the known shape; False leaves it untouched for the general way."""
        shape = self._shape
        connection = self._connection
        broker = connection.broker
        if (
            shape is None
            or version != shape.version
            or shape.topics_version != broker.topics_version
            or not broker.access.allows_all
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
            if records + length + len(_TAGS) != end or buffer[end - len(_TAGS) : end] != _TAGS:
                return False
        else:
            index, length = _INDEX_AND_LENGTH.unpack_from(buffer, stop)
            records = stop + 8
            if records + length != end:
                return False
        place = shape.partitions.get(index)
        if place is None:
            return False
        self._append(frames.view[records : records + length], correlation_id, place)
        return True

    def _append(self, batch: memoryview, correlation_id: int, place: Place) -> None:
        connection = self._connection
        partition = place.partition
        acks = place.shape.acks
        log = partition.log
        next_offset = log.next_offset
        try:
            if acks == -1 and partition.in_sync is not None:
                partition.check_in_sync(batch)
            base_offset = partition.append(batch, connection.broker.clock.now_ms())
        except PenstockError as error:
            if acks == 0:
                connection.gateway.count_error(error.reason.name)
                connection.refuse_produce(error)
            else:
                refusal = LaneAnswer(connection, correlation_id, NO_OFFSET, place, 0)
                connection.queue(refusal)
                refusal.refuse(error)
            return
        count = log.next_offset - next_offset
        if count:
            # A known duplicate brings nothing new.
            flow = place.flow
            flow.records_in += count
            flow.bytes_in += len(batch)
        if acks == 0:
            partition.acknowledged_offset = log.next_offset
            return
        due_ms = connection.gateway.swept_ms + place.shape.timeout_ms
        answer = LaneAnswer(connection, correlation_id, base_offset, place, due_ms)
        connection.queue(answer)
        if acks == 1:
            partition.when_written(log.next_offset, answer)
        else:
            partition.when_committed(log.next_offset, answer)

    def take_general(
        self, request: ProduceRequest, context: RequestContext, correlation_id: int, view: memoryview, position: int
    ) -> None:
        """Handle any produce request, and learn its shape if the next ones may have it too."""
        connection = self._connection
        version = context.version
        header_version = 1 if version >= FLEXIBLE_FROM else 0
        encode = ENCODE_RESPONSE[version]
        committing: list[Committing] = []
        if request.acks == 0:

            def refused(response: ProduceResponse) -> None:
                error = next((p for t in response.responses for p in t.partition_responses if p.error_code), None)
                if error is not None:
                    connection.refuse_produce(PenstockError(Reason.INVALID_REQUEST, error.error_message or "refused"))

            done = refused
        else:
            answer = connection.reserve(connection.gateway.produce_latency)
            answer.due_ms = context.monotonic_ms + request.timeout_ms
            answer.late = lambda: answered(refuse_all(request, context, PenstockError(Reason.REQUEST_TIMED_OUT)))
            answer.forget = partial(forget, committing)

            def answered(response: ProduceResponse) -> None:
                answer.complete(frame(correlation_id, header_version, encode(response)))

            done = answered
        if version < VERSION_SERVED_MIN:
            done(
                refuse_all(
                    request,
                    context,
                    PenstockError(Reason.UNSUPPORTED_VERSION, "use a client that supports produce version 3 or newer"),
                )
            )
            return
        if request.transactional_id is not None:
            text = "transactions are not supported; produce without transactional.id"
            done(refuse_all(request, context, PenstockError(Reason.TRANSACTIONS_NOT_SUPPORTED, text)))
            return
        waiting = start_produce(request, context, done, committing)
        if waiting is not None:
            connection.hold_up(waiting)
        self._learn(request, context, view, position)

    def _learn(self, request: ProduceRequest, context: RequestContext, view: memoryview, position: int) -> None:
        version = context.version
        if version < LANE_VERSION_MIN or len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
            return
        if request.acks not in (-1, 0, 1):
            return
        topic = request.topic_data[0]
        try:
            known = place_of(context.broker, topic, topic.partition_data[0].index, version)
        except PenstockError:
            return
        if not _is_plain(known, request.acks):
            return
        flow = context.broker.meters.flow(known.topic.name, Gateway.KAFKA)
        end = _index_position(request, version, position)
        prefix = bytes(view[_HEAD_BYTES:end])
        shape = self._shape
        if (
            shape is None
            or shape.prefix != prefix
            or shape.version != version
            or shape.topics_version != context.broker.topics_version
        ):
            shape = self._shape = Shape(prefix, version, request, context.broker.topics_version)
        shape.partitions[known.index] = Place(known, shape, flow, context.gateway.produce_latency)


def _is_plain(partition: Partition, acks: int) -> bool:
    """Whether a produce to it needs nothing that only the general way does."""
    return not (
        (partition.topic.internal and not partition.is_staging)
        or partition.wants_recompression
        or partition.stamps
        or partition.is_compacted
        or (acks == -1 and partition.in_sync is None and partition.topic.min_in_sync > 1)
    )


def _index_position(request: ProduceRequest, version: int, position: int) -> int:
    """Where the partition's index stands in a request of one topic and one partition whose body begins at ``position``."""
    name_bytes = len(request.topic_data[0].name.encode())
    if version < FLEXIBLE_FROM:
        return position + 2 + 2 + 4 + 4 + 2 + name_bytes + 4
    topic_bytes = 16 if version >= ProducedTopics.BY_ID_FROM else (1 if name_bytes + 1 < 0x80 else 2) + name_bytes
    return position + 1 + 2 + 4 + 1 + topic_bytes + 1


def _compact_length(buffer: bytearray, at: int) -> tuple[int, int]:
    """A compact length and the position behind it; -1 for null or one that is too long."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - 1, at
    return -1, at
