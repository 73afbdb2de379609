"""Rows of delivery: the time from the call that produces a record to its arrival at a live consumer, through each gateway.

Invariant: the send time travels in the value as text between two signs that nothing else there has, so a consumer's side needs no
parser: what it received is searched. Both sides are one process with one clock.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

from penstock.address import Address
from penstock.bench.admin import connect
from penstock.bench.delivery import Stamper, Tap, measure_delivery
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1, proto
from penstock.bench.gateways.context import Context
from penstock.bench.gateways.http2 import Http2Client
from penstock.bench.gateways.queue import GROUP, IN_FLIGHT, LEASE_MS, AckMaker
from penstock.bench.raw_client import Counter, TokenCounter
from penstock.bench.rows import Meter, Row
from penstock.bench.workloads import DELIVERY_RATE_PER_S

_DIGITS = 20
_STAMP = re.compile(rb"@(\d{20})@")
_BLANK = b"@" + b"0" * _DIGITS + b"@"
_PLACE = re.compile(rb'"partition":(\d+),"offset":(\d+)')
_OPENING_S_MAX = 10.0
VALUE_BYTES_MIN = len(_BLANK)


def blank_value(value_bytes: int) -> bytes:
    """A value with room for a stamp."""
    return _BLANK + b"v" * max(0, value_bytes - len(_BLANK))


class TextStamper:
    """A request made once, its stamp patched for every beat."""

    def __init__(self, request: bytes) -> None:
        self._frame = bytearray(request)
        self._at = request.index(_BLANK) + 1

    def frame(self, stamp_ns: int) -> bytearray:
        self._frame[self._at : self._at + _DIGITS] = b"%020d" % stamp_ns
        return self._frame


class CallStamper:
    """A gRPC call for every beat, on one connection."""

    def __init__(self, client: Http2Client, message: bytes) -> None:
        self._client = client
        self._stamper = TextStamper(message)

    def frame(self, stamp_ns: int) -> bytes:
        self._client.call(bytes(self._stamper.frame(stamp_ns)))
        out = bytes(self._client.outbox)
        self._client.outbox.clear()
        return out


class CallCounter:
    """Counts calls that ended well, and sends what the connection owes the server."""

    def __init__(self, client: Http2Client, sock: socket.socket) -> None:
        self._client = client
        self._sock = sock

    def feed(self, data: memoryview) -> int:
        client = self._client
        client.receive(data)
        if client.outbox:
            self._sock.sendall(client.outbox)
            client.outbox.clear()
        ended = len(client.ended)
        client.ended.clear()
        return ended


class TextTap:
    """Finds the stamps in what a consumer receives."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: memoryview | bytes) -> list[int]:
        text = self._tail + data
        stamps = []
        end = 0
        for found in _STAMP.finditer(text):
            stamps.append(int(found[1]))
            end = found.end()
        # Less than a whole stamp, so that none is found twice.
        self._tail = text[max(end, len(text) - len(_BLANK) + 1) :]
        return stamps


class AckingTap:
    """A worker of a queue: finds the stamps, and acks the records on a second connection."""

    def __init__(self, acks: AckMaker, sock: socket.socket) -> None:
        self._acks = acks
        self._sock = sock
        self._answers = TokenCounter(b"HTTP/1.1 204", http1.ANSWER_FAILURES)
        self._text = b""

    def feed(self, data: memoryview) -> list[int]:
        text = self._text + data
        whole = text.rfind(b"\n") + 1
        self._text = text[whole:]
        lines = text[:whole]
        places = _PLACE.findall(lines)
        if places:
            self._sock.sendall(b"".join([self._acks.one(partition, offset) for partition, offset in places]))
            self._drain()
        return [int(stamp) for stamp in _STAMP.findall(lines)]

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._answers.feed(memoryview(self._sock.recv(1 << 16, socket.MSG_DONTWAIT)))


class SubscriptionTap:
    """A gRPC subscriber."""

    def __init__(self, address: Address, topic: str, sock: socket.socket) -> None:
        self._tap = TextTap()
        self._stamps: list[int] = []
        self._client = Http2Client("Subscribe", address, self._take_data)
        self._sock = sock
        self._client.call(proto.subscribe_request(topic))
        self._flush()

    def _take_data(self, data: bytes) -> None:
        self._stamps += self._tap.feed(data)

    def _flush(self) -> None:
        if self._client.outbox:
            self._sock.sendall(self._client.outbox)
            self._client.outbox.clear()

    def feed(self, data: memoryview) -> list[int]:
        self._client.receive(data)
        self._flush()
        stamps, self._stamps = self._stamps, []
        return stamps


Side = tuple[socket.socket, Stamper, Counter]
_MakeTap = Callable[[Context, ExitStack], tuple[socket.socket, Tap]]


def _http_producer(context: Context, stack: ExitStack) -> Side:
    body = b'{"value":"' + blank_value(context.options.value_bytes) + b'"}'
    request = http1.request("POST", f"/topics/{context.topic.name}/messages", context.http, body)
    counter = TokenCounter(b"HTTP/1.1 200", http1.ANSWER_FAILURES)
    return stack.enter_context(connect(context.http)), TextStamper(request), counter


def _tcp_producer(context: Context, stack: ExitStack) -> Side:
    value = blank_value(context.options.value_bytes).decode()
    line = json.dumps({"type": "produce", "topic": context.topic.name, "value": value}).encode() + b"\n"
    counter = TokenCounter(b"\n", (b'"ok":false', b'"ok": false'))
    return stack.enter_context(connect(context.tcp)), TextStamper(line), counter


def _grpc_producer(context: Context, stack: ExitStack) -> Side:
    sock = stack.enter_context(connect(context.grpc))
    client = Http2Client("Publish", context.grpc)
    message = proto.publish_request(context.topic.name, blank_value(context.options.value_bytes))
    return sock, CallStamper(client, message), CallCounter(client, sock)


def _open(sock: socket.socket, request: bytes) -> None:
    """Send a request and wait for the head of its answer: from then on the consumer is live."""
    sock.sendall(request)
    sock.settimeout(_OPENING_S_MAX)
    head = b""
    while b"\r\n\r\n" not in head:
        try:
            piece = sock.recv(1)
        except TimeoutError:
            piece = b""
        if not piece:
            raise BenchError("the broker did not begin to answer a consumer: see its log")
        head += piece
    sock.settimeout(None)
    status = head.partition(b"\r\n")[0]
    if b" 200 " not in status:
        raise BenchError(f"the broker refused a consumer: {status.decode(errors='replace')}")


def _consume_tap(context: Context, stack: ExitStack) -> tuple[socket.socket, Tap]:
    sock, ack_sock = (stack.enter_context(connect(context.http)) for _ in range(2))
    path = (
        f"/v1/consume?topic={context.topic.name}&group={GROUP}&owner=tap&lease_ms={LEASE_MS}&max_in_flight={IN_FLIGHT}"
    )
    _open(sock, http1.request("GET", path, context.http))
    return sock, AckingTap(AckMaker(context.http, context.topic.name, "tap"), ack_sock)


def _tail_tap(context: Context, stack: ExitStack) -> tuple[socket.socket, Tap]:
    sock = stack.enter_context(connect(context.http))
    _open(sock, http1.request("GET", f"/topics/{context.topic.name}/tail?from=earliest", context.http))
    return sock, TextTap()


def _subscription_tap(context: Context, stack: ExitStack) -> tuple[socket.socket, Tap]:
    sock = stack.enter_context(connect(context.grpc))
    return sock, SubscriptionTap(context.grpc, context.topic.name, sock)


def _deliver(context: Context, producer: Callable[[Context, ExitStack], Side], consumer: _MakeTap) -> Row:
    options = context.options
    meter = Meter(context.pid)
    with ExitStack() as stack:
        inward, tap = consumer(context, stack)
        out, stamper, answers = producer(context, stack)
        latency_ns = measure_delivery(
            out=out,
            stamper=stamper,
            answers=answers,
            inward=inward,
            tap=tap,
            rate_per_s=DELIVERY_RATE_PER_S,
            warmup_s=options.warmup_s,
            seconds=options.seconds,
            on_start=meter.start,
        )
        return context.row(meter, records=latency_ns.count, requests=latency_ns.count, latency_ns=latency_ns)


def http_to_consume(context: Context) -> Row:
    """POST of a message to the stream of GET /v1/consume."""
    return _deliver(context, _http_producer, _consume_tap)


def http_to_tail(context: Context) -> Row:
    """POST of a message to the server-sent events of a tail."""
    return _deliver(context, _http_producer, _tail_tap)


def grpc_to_subscribe(context: Context) -> Row:
    """Publish to Subscribe."""
    return _deliver(context, _grpc_producer, _subscription_tap)


def tcp_to_subscribe(context: Context) -> Row:
    """A JSON line to Subscribe."""
    return _deliver(context, _tcp_producer, _subscription_tap)
