"""Produce (API key 0): the shape that clients send gets a fast lane, everything else the general one. Same rules, same answers.

Nearly every produce request of a connection has the same first bytes: client id, acks, time-out, one topic, one partition.
The lane remembers them with what they mean, compares the next request's bytes, and is left with the partition's index and
one batch to append. A request that does not match goes the general way, and teaches the lane.

Version 9 made the encoding flexible, 10 can name a new leader, 13 names topics by id. Below 3 record batches did not
exist: those versions are listed, because older librdkafka would otherwise stop compressing, and refused when used.
"""

from struct import Struct
from typing import TYPE_CHECKING, Final

from penstock.core.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.answer import Answer
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.handlers.k00_produce import ProducedTopics, place_of, refuse_all, start_produce
from penstock.types import NO_TIMESTAMP
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
_FRAME_V0: Final = Struct(">ii")
_FRAME_V1: Final = Struct(">iib")
_PLACE: Final = Struct(">qqq")
"""Base offset, log-append time, log start offset."""
_TAGS: Final = b"\0\0\0"
"""The ends of a flexible request with one partition: no tagged fields of partition, topic and request."""


class Shape:
    """What a connection's produce requests have in common."""

    __slots__ = (
        "acks",
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
        self.timeout_ms = request.timeout_ms
        self.topic_name = topic.name
        self.topic_id = topic.topic_id
        self.topics_version = topics_version
        self.partitions: dict[int, Place] = {}


class Place:
    """A partition, and the bytes around the three numbers that its answer consists of."""

    __slots__ = ("after", "before", "flexible", "partition", "size")

    def __init__(self, partition: Partition, shape: Shape) -> None:
        self.partition = partition
        self.flexible = shape.version >= FLEXIBLE_FROM
        body = _response(shape, partition.index, _PLACEHOLDER)
        at = body.index(_PLACE.pack(*_PLACEHOLDER))
        self.before = body[:at]
        self.after = body[at + _PLACE.size :]
        self.size = len(body) + (5 if self.flexible else 4)

    def frame(self, correlation_id: int, base_offset: int, append_time: int) -> bytes:
        """The whole answer."""
        head = (
            _FRAME_V1.pack(self.size, correlation_id, 0) if self.flexible else _FRAME_V0.pack(self.size, correlation_id)
        )
        return b"".join(
            (head, self.before, _PLACE.pack(base_offset, append_time, self.partition.log.start_offset), self.after)
        )


_PLACEHOLDER: Final = (0x5A5A_5A5A_5A5A_5A01, 0x5A5A_5A5A_5A5A_5A02, 0x5A5A_5A5A_5A5A_5A03)


def _response(shape: Shape, index: int, place: tuple[int, int, int], error: int = 0, text: str | None = None) -> bytes:
    partition = ProduceResponsePartition(
        index=index,
        error_code=error,
        base_offset=place[0],
        log_append_time_ms=place[1],
        log_start_offset=place[2],
        error_message=text,
    )
    topic = ProduceResponseTopic(topic_id=shape.topic_id, partition_responses=[partition], name=shape.topic_name)
    return b"".join(ENCODE_RESPONSE[shape.version](ProduceResponse(responses=[topic])))


class LaneAnswer(Answer):
    """The answer to a produce of one batch; called when it is written or committed, or never will be."""

    __slots__ = ("append_time", "base_offset", "correlation_id", "place", "shape")

    def __init__(
        self,
        connection: "KafkaConnection",
        correlation_id: int,
        base_offset: int,
        append_time: int,
        place: Place,
        shape: Shape,
        due_ms: int,
    ) -> None:
        self.connection = connection
        self.parts = None
        self.due_ms = due_ms
        self.correlation_id = correlation_id
        self.base_offset = base_offset
        self.append_time = append_time
        self.place = place
        self.shape = shape

    def __call__(self, reason: Reason | None) -> None:
        """What the answer waited for has happened, or failed."""
        if self.parts is not None:
            return
        if reason is None:
            self.parts = [self.place.frame(self.correlation_id, self.base_offset, self.append_time)]
            self.connection.ready()
        else:
            self.refuse(PenstockError(reason))

    def refuse(self, error: PenstockError) -> None:
        """Answer with an error."""
        body = _response(
            self.shape, self.place.partition.index, (-1, NO_TIMESTAMP, -1), CODES[error.reason], error.text
        )
        self.complete(frame(self.correlation_id, 1 if self.place.flexible else 0, [body]))

    def time_out(self) -> None:
        """The client's own time is up: the records may still become committed, as with every broker."""
        self(Reason.REQUEST_TIMED_OUT)


class ProduceLane:
    """A connection's produce requests."""

    __slots__ = ("_connection", "_shape")

    def __init__(self, connection: "KafkaConnection") -> None:
        self._connection = connection
        self._shape: Shape | None = None

    def take(self, buffer: bytearray, start: int, end: int, version: int, correlation_id: int) -> bool:
        """Handle the request if it has the known shape; False leaves it untouched for the general way."""
        shape = self._shape
        if shape is None or version != shape.version:
            return False
        at = start + _HEAD_BYTES
        stop = at + shape.size
        if buffer[at:stop] != shape.prefix or shape.topics_version != self._connection.broker.topics_version:
            return False
        if version >= FLEXIBLE_FROM:
            if stop + 8 > end:
                return False
            (index,) = _INDEX.unpack_from(buffer, stop)
            length, records = _compact_length(buffer, stop + 4)
            if records + length + 3 != end or buffer[end - 3 : end] != _TAGS:
                return False
        else:
            if stop + 8 > end:
                return False
            index, length = _INDEX_AND_LENGTH.unpack_from(buffer, stop)
            records = stop + 8
            if records + length != end:
                return False
        place = shape.partitions.get(index)
        if place is None or place.partition.wants_recompression:
            return False
        self._append(memoryview(buffer)[records : records + length], correlation_id, place, shape)
        return True

    def _append(self, batch: memoryview, correlation_id: int, place: Place, shape: Shape) -> None:
        connection = self._connection
        clock = connection.broker.clock
        partition = place.partition
        acks = shape.acks
        now_ms = clock.now_ms()
        try:
            if acks == -1 and partition.topic.config.min_insync_replicas > 1:
                raise PenstockError(
                    Reason.NOT_ENOUGH_REPLICAS, "the topic's min.insync.replicas is over the one replica there is"
                )
            base_offset = partition.append(batch, now_ms)
        except PenstockError as error:
            if acks == 0:
                connection.refuse_produce(error)
                return
            answer = LaneAnswer(connection, correlation_id, -1, -1, place, shape, 0)
            connection.queue(answer)
            answer.refuse(error)
            return
        if acks == 0:
            return
        append_time = now_ms if partition.stamps else NO_TIMESTAMP
        answer = LaneAnswer(
            connection, correlation_id, base_offset, append_time, place, shape, clock.monotonic_ms() + shape.timeout_ms
        )
        connection.queue(answer)
        if acks == 1:
            partition.when_written(partition.log.next_offset, answer)
        else:
            partition.when_committed(partition.log.next_offset, answer)

    def take_general(
        self, request: ProduceRequest, context: RequestContext, correlation_id: int, view: memoryview, position: int
    ) -> None:
        """Handle any produce request, and learn its shape if the next ones may have it too."""
        connection = self._connection
        version = context.version
        header_version = 1 if version >= FLEXIBLE_FROM else 0
        encode = ENCODE_RESPONSE[version]
        if request.acks == 0:

            def refused(response: ProduceResponse) -> None:
                error = next((p for t in response.responses for p in t.partition_responses if p.error_code), None)
                if error is not None:
                    connection.refuse_produce(PenstockError(Reason.INVALID_REQUEST, error.error_message or "refused"))

            done = refused
        else:
            answer = connection.reserve()
            answer.due_ms = context.monotonic_ms + max(request.timeout_ms, 0)
            answer.late = lambda: answered(refuse_all(request, PenstockError(Reason.REQUEST_TIMED_OUT)))

            def answered(response: ProduceResponse) -> None:
                answer.complete(frame(correlation_id, header_version, encode(response)))

            done = answered
        if version < VERSION_SERVED_MIN:
            done(
                refuse_all(
                    request,
                    PenstockError(Reason.UNSUPPORTED_VERSION, "use a client that speaks produce version 3 or newer"),
                )
            )
            return
        if request.transactional_id is not None:
            text = "transactions are not supported; produce without transactional.id"
            done(refuse_all(request, PenstockError(Reason.TRANSACTIONS_NOT_SUPPORTED, text)))
            return
        waiting = start_produce(request, context, done)
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
        known = place_of(context.broker, topic, topic.partition_data[0].index)
        if known is None or known.topic.internal:
            return
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
        shape.partitions[known.index] = Place(known, shape)


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
