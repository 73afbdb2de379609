"""Lanes of Kafka requests, and records that are stored before the clock starts."""

from __future__ import annotations

import struct

from penstock.bench import kafka
from penstock.bench.faults import BenchError
from penstock.bench.kafka import BenchTopic, FetchFrame, FetchLayout, ProduceLayout
from penstock.bench.pump import Lane, Pump, RingSource, ring_length
from penstock.client import Cluster
from penstock.types import Buffer
from penstock.wire.kafka.apis import ApiKey

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PRELOAD_S_MAX = 120.0
_PRELOAD_WINDOW = 4


class FetchSource:
    """One Fetch frame whose offset is patched to walk through a range of equal batches, again and again."""

    __slots__ = ("_batches", "_frame", "_index", "_offset_at", "_records_per_batch")

    def __init__(self, request: FetchFrame, *, records_per_batch: int, batches: int, first_batch: int) -> None:
        self._frame = bytearray(request.frame)
        self._offset_at = request.offset_at
        self._records_per_batch = records_per_batch
        self._batches = batches
        self._index = first_batch

    def take(self, requests: int) -> tuple[memoryview, int]:
        assert requests > 0
        _I64.pack_into(self._frame, self._offset_at, self._index * self._records_per_batch)
        self._index = (self._index + 1) % self._batches
        return memoryview(self._frame), 1


class ProduceCounter:
    """Counts Produce responses of one length by their length, and checks the error code of each."""

    __slots__ = ("_answered", "_error_at", "_frame_bytes", "_ring", "_tail")

    def __init__(self, layout: ProduceLayout, ring: int = 1) -> None:
        self._frame_bytes = layout.frame_bytes
        self._error_at = layout.error_at
        self._ring = ring
        self._answered = 0
        self._tail = b""

    def feed(self, data: memoryview) -> int:
        frame_bytes = self._frame_bytes
        error_at = self._error_at
        if len(data) == frame_bytes and not self._tail and not data[error_at] and not data[error_at + 1]:
            # One success: what nearly every call brings on a connection without pipelining.
            self._answered += 1
            return 1
        if self._tail:
            data = memoryview(self._tail + bytes(data))
        count, rest = divmod(len(data), frame_bytes)
        self._tail = bytes(data[count * frame_bytes :]) if rest else b""
        if not count:
            if rest >= error_at + 2:
                self._check_one(data, 0)
            return 0
        # A refusal may be longer, and then everything after it is out of step: checking the head of the first and the last response
        # and every error code finds it.
        self._check_one(data, 0)
        if count > 1:
            self._check_one(data, (count - 1) * frame_bytes)
            end = count * frame_bytes
            if any(data[error_at:end:frame_bytes]) or any(data[error_at + 1 : end : frame_bytes]):
                for index in range(count):
                    self._check_one(data, index * frame_bytes)
        self._answered += count
        return count

    def _check_one(self, data: memoryview, at: int) -> None:
        (size,) = _I32.unpack_from(data, at)
        (code,) = _I16.unpack_from(data, at + self._error_at)
        if code:
            raise BenchError(f"The broker refused a produce request with error code {code}; see its log")
        (correlation_id,) = _I32.unpack_from(data, at + 4)
        expected = (self._answered + at // self._frame_bytes) % self._ring
        if size != self._frame_bytes - 4 or correlation_id != expected:
            raise BenchError(
                f"A produce response is out of step: {size} bytes with correlation id {correlation_id}, "
                f"expected {self._frame_bytes - 4} bytes with {expected}"
            )


class FetchCounter:
    """Counts Fetch responses; reads the head of each and skips over the records."""

    __slots__ = ("_head", "_layout", "_skip", "bytes_received")

    def __init__(self, layout: FetchLayout) -> None:
        self._layout = layout
        self._head = bytearray()
        self._skip = 0
        self.bytes_received = 0

    def feed(self, data: memoryview) -> int:
        done = 0
        at = 0
        end = len(data)
        head_bytes = self._layout.head_bytes
        while at < end:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
                done += not self._skip
                continue
            step = min(head_bytes - len(self._head), end - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == head_bytes:
                self._skip = self._check() - head_bytes
                self._head.clear()
        return done

    def _check(self) -> int:
        """The length of the whole response that begins with the gathered head."""
        self._layout.check(self._head)
        _, records_bytes = self._layout.records_span(self._head)
        if records_bytes <= 0:
            raise BenchError(
                "A fetch response has no records where there should be some: was the topic's data removed?"
            )
        self.bytes_received += records_bytes
        return int(_I32.unpack_from(self._head)[0]) + 4


def produce_lane(cluster: Cluster, topic: BenchTopic, partition: int, acks: str, batch: Buffer, window: int) -> Lane:
    """A connection to the partition's leader that sends one batch again and again."""
    leader = topic.leaders[partition]
    version = kafka.version_for(cluster, leader, ApiKey.PRODUCE, kafka.PRODUCE_VERSION_MAX)
    ring = ring_length(len(batch), window)
    source = RingSource([kafka.produce_request(version, i, topic.name, partition, acks, batch) for i in range(ring)])
    return Lane(leader, source, ProduceCounter(kafka.produce_layout(version, topic.name), ring), window)


def preload(cluster: Cluster, topic: BenchTopic, batch: Buffer, count: int) -> None:
    """Store `count` equal batches in every partition; with acks=all, so that all of them can be read when this returns."""
    for partition in range(len(topic.leaders)):
        with Pump([produce_lane(cluster, topic, partition, "all", batch, _PRELOAD_WINDOW)]) as pump:
            stored = pump.run(_PRELOAD_S_MAX, count).answers
        if stored != count:
            raise BenchError(
                f"Only {stored} of {count} batches could be stored before the row, in {_PRELOAD_S_MAX:.0f} s"
            )
