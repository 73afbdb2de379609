"""Workloads over gRPC: Publish, PublishStream, and SubscribeBatch of records that are there already."""

from __future__ import annotations

import time
from collections import deque

from penstock.address import Address
from penstock.bench import kafka
from penstock.bench.context import RowContext
from penstock.bench.faults import BenchError
from penstock.bench.gateways.http2 import Http2Client, MessageReader
from penstock.bench.gateways.produce import BATCH_RECORDS
from penstock.bench.histogram import LatencyHistogram
from penstock.bench.kafka import connect
from penstock.bench.lanes import preload
from penstock.bench.pump import Channel, LoadWorker, Pump
from penstock.bench.rows import Meter, Row
from penstock.wire.mq import mq_generated as mq

_PRELOAD_BATCH_BYTES = 64 << 10
_SUBSCRIBED_RECORDS_MAX = 500_000
MARK = b"\xfe\xff~~\xff\xfe"
"""Ends every value, and cannot be part of anything else in a frame: records are counted by it."""


class UnaryCalls(LoadWorker):
    """Keeps `calls` Publish calls in flight on one connection."""

    def __init__(self, address: Address, message: bytes, calls: int) -> None:
        self._client = Http2Client("Publish", address)
        self._message = message
        self._calls = calls
        self._since: dict[int, int] = {}
        self.channels = (Channel(connect(address), self._client.outbox),)

    def start(self, now_ns: int, requests_max: int) -> int:
        count = max(0, min(self._calls - self.unanswered, requests_max))
        for _ in range(count):
            self._since[self._client.call(self._message)] = now_ns
        self.unanswered += count
        return count

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:  # noqa: ARG002  it has one channel
        ended = self._client.receive(data)
        for stream in ended:
            latency_ns.record(now_ns - self._since.pop(stream))
        self.unanswered -= len(ended)
        return len(ended)


class FrameStream(LoadWorker):
    """Keeps `frames` frames of records in flight on one PublishStream."""

    def __init__(self, address: Address, topic: str, payloads: list[bytes], frames: int) -> None:
        self._client = Http2Client("PublishStream", address, self._take_data)
        records = [mq.PublishRequest(payload=payload) for payload in payloads]
        # The number is not checked: responses come in order.
        self._frame = mq.PublishFrame(topic=topic, records=records, id=1).SerializeToString()
        self._frames = frames
        self._stream: int | None = None
        self._reader = MessageReader()
        self._answers = 0
        self._since: deque[int] = deque()
        self.channels = (Channel(connect(address), self._client.outbox),)

    def start(self, now_ns: int, requests_max: int) -> int:
        count = max(0, min(self._frames - self.unanswered, requests_max))
        for _ in range(count):
            if self._stream is None:
                self._stream = self._client.call(self._frame, ends=False)
            else:
                self._client.send(self._stream, self._frame)
            self._since.append(now_ns)
        self.unanswered += count
        return count

    def _take_data(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            for failure in mq.PublishFrameResponse.FromString(message).failures:
                raise BenchError(f"The broker refused a record of a frame: {failure.message}")
            self._answers += 1

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:  # noqa: ARG002  it has one channel
        if self._client.receive(data):
            raise BenchError("The broker ended a stream during the measurement; see its log")
        answers, self._answers = self._answers, 0
        for _ in range(answers):
            latency_ns.record(now_ns - self._since.popleft())
        self.unanswered -= answers
        return answers


class BatchSubscription(LoadWorker):
    """Reads a topic from its beginning to its end, again and again."""

    def __init__(self, address: Address, topic: str, records: int) -> None:
        self._client = Http2Client("SubscribeBatch", address, self._take_data)
        self._request = mq.SubscribeRequest(topic=topic, max_messages=records).SerializeToString()
        self._records = records
        self._tail = b""
        self._count = 0
        self._seen = 0
        self.channels = (Channel(connect(address), self._client.outbox),)

    def start(self, now_ns: int, requests_max: int) -> int:  # noqa: ARG002  no request is timed
        if not self.unanswered and requests_max:
            self._client.call(self._request)
            self.unanswered = 1
        return 0

    def _take_data(self, data: bytes) -> None:
        text = self._tail + data
        self._count += text.count(MARK)
        # Shorter than the mark, so that none is counted twice.
        self._tail = text[-(len(MARK) - 1) :]

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:  # noqa: ARG002  no request is timed
        ended = self._client.receive(data)
        count, self._count = self._count, 0
        self._seen += count
        if ended:
            if self._seen != self._records:
                raise BenchError(
                    f"A subscription to {self._records} records ended after {self._seen}; see the broker's log"
                )
            self._seen = self.unanswered = 0
        return count


def unary(context: RowContext) -> Row:
    """Publish, one record per call."""
    message = mq.PublishRequest(topic=context.topic.name, payload=context.value.encode()).SerializeToString()
    calls = [UnaryCalls(context.grpc, message, context.window) for _ in range(context.connections)]
    return context.pumped(Pump(calls), 1)


def stream(context: RowContext) -> Row:
    """PublishStream, frames of many records."""
    payloads = [context.value.encode()] * BATCH_RECORDS
    name = context.topic.name
    streams = [FrameStream(context.grpc, name, payloads, context.window) for _ in range(context.connections)]
    return context.pumped(Pump(streams), BATCH_RECORDS)


def subscribe_batch(context: RowContext) -> Row:
    """SubscribeBatch without a group, from the beginning."""
    options, partitions = context.options, len(context.topic.leaders)
    value = b"v" * max(1, options.value_bytes - len(MARK)) + MARK
    batch, records = kafka.batch_filling(_PRELOAD_BATCH_BYTES, value, int(time.time() * 1000))
    count = max(1, min(_SUBSCRIBED_RECORDS_MAX, options.requests_max()) // records // partitions)
    preload(context.cluster, context.topic, batch, count)
    stored = count * records * partitions
    meter = Meter(context.pid)
    with Pump(
        [BatchSubscription(context.grpc, context.topic.name, stored) for _ in range(context.connections)]
    ) as pump:
        pump.run(options.warmup_s)
        meter.start()
        sample = pump.run(options.seconds)
        return context.row(meter, records=sample.answers)
