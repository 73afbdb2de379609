"""Rows that produce: HTTP by wrk, lines over one HTTP request, JSON lines over TCP, gRPC calls and streams."""

from __future__ import annotations

import dataclasses
import json
from collections import deque

from penstock.address import Address
from penstock.bench.admin import connect
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1, proto, wrk
from penstock.bench.gateways.context import Context
from penstock.bench.gateways.conversation import Channel, ConversationPump
from penstock.bench.gateways.http2 import Http2Client
from penstock.bench.histogram import Histogram
from penstock.bench.ping import PingLane, PingPump
from penstock.bench.raw_client import Counter, Lane, Pump, RingSource, TokenCounter
from penstock.bench.rows import Meter, Row

BATCH_RECORDS = 100
CONNECTIONS_MANY = 64
_LINES_UNDER_WAY = 10_000
_NDJSON_CHUNKS_UNDER_WAY = 100
_PIPELINE_CONNECTIONS = 16
_LINES_UNDER_WAY_EACH = 1_000
_UNARY_CONNECTIONS = 4
_UNARY_CALLS_EACH = 16
_STREAMS = 4
_FRAMES_UNDER_WAY = 8


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def http_single(context: Context) -> Row:
    """One record a request."""
    return _by_wrk(context, f"/topics/{context.topic.name}/messages", _compact({"value": context.value}), 1)


def http_v1_single(context: Context) -> Row:
    """One record a request, of the other API."""
    return _by_wrk(context, "/v1/produce", _compact({"topic": context.topic.name, "value": context.value}), 1)


def http_batch(context: Context) -> Row:
    """An array of records a request."""
    body = _compact([{"value": context.value}] * BATCH_RECORDS)
    return _by_wrk(context, f"/topics/{context.topic.name}/messages", body, BATCH_RECORDS)


def _by_wrk(context: Context, path: str, body: bytes, records: int) -> Row:
    options = context.options
    connections = options.connections or CONNECTIONS_MANY

    def load(seconds: float) -> wrk.WrkSample:
        return wrk.run(context.http, path, body, connections=connections, seconds=seconds, content_type=http1.JSON)

    warm_requests = load(options.warmup_s).requests if options.warmup_s else 0
    meter = Meter(context.pid)
    meter.start()
    sample = load(options.seconds)
    row = context.row(meter, records=sample.requests * records, requests=sample.requests, seconds=sample.seconds)
    context.check_stored((warm_requests + sample.requests) * records)
    return dataclasses.replace(row, p50_us=sample.p50_us, p99_us=sample.p99_us, p999_us=sample.p999_us)


class GroupCounter:
    """Counts one for every `size` answers that another counter counts."""

    __slots__ = ("_counter", "_over", "_size")

    def __init__(self, counter: Counter, size: int) -> None:
        self._counter = counter
        self._size = size
        self._over = 0

    def feed(self, data: memoryview) -> int:
        """Whole groups."""
        groups, self._over = divmod(self._over + self._counter.feed(data), self._size)
        return groups


def http_ndjson(context: Context) -> Row:
    """One request, a record a line, an answer a line."""
    line = _compact({"value": context.value}) + b"\n"
    chunk = http1.chunk(line * BATCH_RECORDS)
    sock = connect(context.http)
    sock.sendall(http1.streamed_request(f"/topics/{context.topic.name}/messages", context.http, http1.NDJSON))
    window = context.options.window or _NDJSON_CHUNKS_UNDER_WAY
    failures = (*http1.ANSWER_FAILURES, b'"error"')
    counter = GroupCounter(TokenCounter(b'"offset":', failures), BATCH_RECORDS)
    return _pumped(context, Pump([Lane(sock, RingSource([chunk]), counter, window)]), BATCH_RECORDS)


def _line(context: Context) -> bytes:
    return _compact({"type": "produce", "topic": context.topic.name, "value": context.value}) + b"\n"


def _line_counter() -> TokenCounter:
    return TokenCounter(b"\n", (b'"ok":false', b'"ok": false'))


def tcp_64(context: Context) -> Row:
    """A line, its answer, the next line, on many connections."""
    connections = context.options.connections or CONNECTIONS_MANY
    line = _line(context)
    lanes = [PingLane(connect(context.tcp), line, _line_counter()) for _ in range(connections)]
    return _pumped(context, PingPump(lanes), 1)


def tcp_pipelined_1(context: Context) -> Row:
    """Many lines under way on one connection."""
    return _tcp_pipelined(context, context.options.connections or 1, _LINES_UNDER_WAY)


def tcp_pipelined_16(context: Context) -> Row:
    """Many lines under way on each of several connections."""
    return _tcp_pipelined(context, context.options.connections or _PIPELINE_CONNECTIONS, _LINES_UNDER_WAY_EACH)


def _tcp_pipelined(context: Context, connections: int, window: int) -> Row:
    window = context.options.window or window
    source = [_line(context)] * window
    lanes = [Lane(connect(context.tcp), RingSource(source), _line_counter(), window) for _ in range(connections)]
    return _pumped(context, Pump(lanes), 1)


def _pumped(context: Context, pump: Pump | PingPump, records: int) -> Row:
    """Warm up, measure, wait for what is under way, and look whether all of it is there."""
    options = context.options
    requests_max = context.requests_max(records)
    meter = Meter(context.pid)
    try:
        warm = pump.run(options.warmup_s, requests_max // 4).answers
        meter.start()
        sample = pump.run(options.seconds, requests_max - requests_max // 4)
        row = context.row(
            meter, records=sample.answers * records, requests=sample.answers, latency_ns=sample.latency_ns
        )
        acknowledged = warm + sample.answers + pump.drain()
    finally:
        pump.close()
    context.check_stored(acknowledged * records)
    return row


class UnaryCalls:
    """Keeps `calls` Publish calls under way on one connection."""

    def __init__(self, address: Address, message: bytes, calls: int) -> None:
        self._client = Http2Client("Publish", address)
        self._message = message
        self._calls = calls
        self._since: dict[int, int] = {}
        self.channels = [Channel(connect(address), self._client.outbox)]
        self.is_over = False

    def begin(self, now_ns: int) -> None:
        for _ in range(self._calls):
            self._since[self._client.call(self._message)] = now_ns

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: Histogram) -> int:  # noqa: ARG002  there is one channel
        client = self._client
        client.receive(data)
        ended = client.ended
        client.ended = []
        for stream in ended:
            latency_ns.record(now_ns - self._since.pop(stream))
            self._since[client.call(self._message)] = now_ns
        return len(ended)


class FrameStream:
    """Keeps `frames` frames of records under way on one PublishStream."""

    def __init__(self, address: Address, topic: str, payloads: list[bytes], frames: int) -> None:
        self._client = Http2Client("PublishStream", address, self._take_data)
        # The number is not looked at: answers come in order.
        self._frame = proto.publish_frame(topic, payloads, 1)
        self._records = len(payloads)
        self._frames = frames
        self._stream = 0
        self._reader = proto.MessageReader()
        self._answers = 0
        self._since: deque[int] = deque()
        self.channels = [Channel(connect(address), self._client.outbox)]
        self.is_over = False

    def begin(self, now_ns: int) -> None:
        self._stream = self._client.call(self._frame, ends=False)
        for _ in range(self._frames - 1):
            self._client.send(self._stream, self._frame)
        self._since.extend([now_ns] * self._frames)

    def _take_data(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if failure := proto.find_field(message, proto.FAILURES_FIELD):
                raise BenchError(f"the broker refused a record of a frame: {failure.decode(errors='replace')}")
            self._answers += 1

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: Histogram) -> int:  # noqa: ARG002  there is one channel
        self._client.receive(data)
        if self._client.ended:
            raise BenchError("the broker ended a stream during the measurement: see its log")
        answers, self._answers = self._answers, 0
        for _ in range(answers):
            latency_ns.record(now_ns - self._since.popleft())
            self._since.append(now_ns)
            self._client.send(self._stream, self._frame)
        return answers * self._records


def grpc_unary(context: Context) -> Row:
    """Publish, a record a call."""
    message = proto.publish_request(context.topic.name, context.value.encode())
    connections = context.options.connections or _UNARY_CONNECTIONS
    calls = context.options.window or _UNARY_CALLS_EACH
    pump = ConversationPump([UnaryCalls(context.grpc, message, calls) for _ in range(connections)])
    return _conversed(context, pump, 1)


def grpc_stream(context: Context) -> Row:
    """PublishStream, frames of many records."""
    payloads = [context.value.encode()] * BATCH_RECORDS
    connections = context.options.connections or _STREAMS
    frames = context.options.window or _FRAMES_UNDER_WAY
    name = context.topic.name
    pump = ConversationPump([FrameStream(context.grpc, name, payloads, frames) for _ in range(connections)])
    return _conversed(context, pump, BATCH_RECORDS)


def _conversed(context: Context, pump: ConversationPump, records: int) -> Row:
    options = context.options
    records_max = context.requests_max()
    meter = Meter(context.pid)
    try:
        warm = pump.run(options.warmup_s, records_max // 4).answers
        meter.start()
        sample = pump.run(options.seconds, records_max - records_max // 4)
        row = context.row(
            meter,
            records=sample.answers,
            requests=sample.answers // records,
            latency_ns=sample.latency_ns,
        )
    finally:
        pump.close()
    context.check_stored(warm + sample.answers)
    return row
