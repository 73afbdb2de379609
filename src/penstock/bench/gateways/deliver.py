"""The two ends of a delivery through each gateway: what sends a record on time, and the live consumer that gets it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

from penstock.address import Address
from penstock.bench.context import RowContext
from penstock.bench.delivery import STAMP, Consumer, Producer, TextStamper, TextTap, blank_value
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1
from penstock.bench.gateways.http2 import Http2Client
from penstock.bench.gateways.produce import line_counter, produce_line
from penstock.bench.gateways.queue import PLACE, AckMaker, consume_request
from penstock.bench.kafka import connect
from penstock.bench.pump import TokenCounter
from penstock.wire.mq import mq_generated as mq

_OPENING_S_MAX = 10.0

MakeProducer = Callable[[RowContext, ExitStack], Producer]
MakeConsumer = Callable[[RowContext, ExitStack], Consumer]


class CallStamper:
    """A gRPC call for every record, on one connection."""

    def __init__(self, client: Http2Client, message: bytes) -> None:
        self._client = client
        self._stamper = TextStamper(message)

    def frame(self, stamp_ns: int) -> bytes:
        self._client.call(bytes(self._stamper.frame(stamp_ns)))
        out = bytes(self._client.outbox)
        self._client.outbox.clear()
        return out


def _received(client: Http2Client, sock: socket.socket, data: memoryview) -> int:
    """Take in data and send what the connection owes the server; how many calls ended."""
    ended = len(client.receive(data))
    if client.outbox:
        sock.sendall(client.outbox)
        client.outbox.clear()
    return ended


class CallCounter:
    """Counts calls that succeeded."""

    def __init__(self, client: Http2Client, sock: socket.socket) -> None:
        self._client = client
        self._sock = sock

    def feed(self, data: memoryview) -> int:
        return _received(self._client, self._sock, data)


class AckingTap:
    """A worker of a queue: finds the stamps, and acks the records on a second connection."""

    def __init__(self, acks: AckMaker, sock: socket.socket) -> None:
        self._acks = acks
        self._sock = sock
        self._answers = TokenCounter(b"HTTP/1.1 204", http1.FAILURES)
        self._text = b""

    def feed(self, data: memoryview) -> list[int]:
        text = self._text + data
        whole = text.rfind(b"\n") + 1
        self._text = text[whole:]
        lines = text[:whole]
        places = PLACE.findall(lines)
        if places:
            self._sock.sendall(b"".join([self._acks.one(partition, offset) for partition, offset in places]))
            with suppress(BlockingIOError):
                self._answers.feed(memoryview(self._sock.recv(1 << 16, socket.MSG_DONTWAIT)))
        return [int(stamp) for stamp in STAMP.findall(lines)]


class SubscriptionTap:
    """A gRPC subscriber."""

    def __init__(self, address: Address, topic: str, sock: socket.socket) -> None:
        self._tap = TextTap()
        self._stamps: list[int] = []
        self._client = Http2Client("Subscribe", address, self._take_data)
        self._sock = sock
        self._client.call(mq.SubscribeRequest(topic=topic).SerializeToString())
        _received(self._client, sock, memoryview(b""))

    def _take_data(self, data: bytes) -> None:
        self._stamps += self._tap.feed(data)

    def feed(self, data: memoryview) -> list[int]:
        _received(self._client, self._sock, data)
        stamps, self._stamps = self._stamps, []
        return stamps


def http_producer(context: RowContext, stack: ExitStack) -> Producer:
    """POST of a message."""
    body = b'{"value":"' + blank_value(context.options.value_bytes) + b'"}'
    request = http1.request("POST", f"/topics/{context.topic.name}/messages", context.http, body)
    counter = TokenCounter(b"HTTP/1.1 200", http1.FAILURES)
    return stack.enter_context(connect(context.http)), TextStamper(request), counter


def tcp_producer(context: RowContext, stack: ExitStack) -> Producer:
    """A JSON line."""
    line = produce_line(context, blank_value(context.options.value_bytes).decode())
    return stack.enter_context(connect(context.tcp)), TextStamper(line), line_counter()


def grpc_producer(context: RowContext, stack: ExitStack) -> Producer:
    """Publish."""
    sock = stack.enter_context(connect(context.grpc))
    client = Http2Client("Publish", context.grpc)
    message = mq.PublishRequest(topic=context.topic.name, payload=blank_value(context.options.value_bytes))
    return sock, CallStamper(client, message.SerializeToString()), CallCounter(client, sock)


def _open(sock: socket.socket, request: bytes) -> None:
    """Send a request and wait for the head of its response: from then on the consumer is live."""
    sock.sendall(request)
    sock.settimeout(_OPENING_S_MAX)
    head = b""
    while b"\r\n\r\n" not in head:
        try:
            piece = sock.recv(1)
        except TimeoutError:
            piece = b""
        if not piece:
            raise BenchError("The broker did not begin to answer a consumer; see its log")
        head += piece
    sock.settimeout(None)
    status = head.partition(b"\r\n")[0]
    if b" 200 " not in status:
        raise BenchError(f"The broker refused a consumer: {status.decode(errors='replace')}")


def consume(context: RowContext, stack: ExitStack) -> Consumer:
    """The stream of GET /v1/consume."""
    sock, ack_sock = (stack.enter_context(connect(context.http)) for _ in range(2))
    _open(sock, consume_request(context.http, context.topic.name, "tap"))
    return sock, AckingTap(AckMaker(context.http, context.topic.name, "tap"), ack_sock)


def tail(context: RowContext, stack: ExitStack) -> Consumer:
    """The server-sent events of a tail."""
    sock = stack.enter_context(connect(context.http))
    _open(sock, http1.request("GET", f"/topics/{context.topic.name}/tail?from=earliest", context.http))
    return sock, TextTap()


def subscribe(context: RowContext, stack: ExitStack) -> Consumer:
    """Subscribe."""
    sock = stack.enter_context(connect(context.grpc))
    return sock, SubscriptionTap(context.grpc, context.topic.name, sock)
