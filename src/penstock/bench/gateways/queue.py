"""Rows that work a queue over HTTP: lease and ack, one record or many at a time, and the stream of GET /v1/consume with acks beside it.

Invariant: a record counts when its ack was answered. The queue is filled before the clock starts; a row ends early when it is worked off.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.address import Address
from penstock.bench import batches
from penstock.bench.admin import connect
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1
from penstock.bench.gateways.context import Context
from penstock.bench.gateways.conversation import Channel, Conversation, ConversationPump
from penstock.bench.histogram import Histogram
from penstock.bench.preload import preload
from penstock.bench.raw_client import TokenCounter
from penstock.bench.rows import Meter, Row

GROUP = "bench"
LEASE_MS = 60_000
IN_FLIGHT = 1000
"""What a worker takes on at a time whose work is nothing."""
BATCH_RECORDS = 100
CONNECTIONS = 16
_PRELOAD_BATCH_BYTES = 64 << 10
PRELOAD_PER_S_ONE = 30_000
PRELOAD_PER_S_MANY = 200_000
"""More records than a worker of today finishes in a second, taken one or many at a time."""
_PLACE = re.compile(rb'"partition":(\d+),"offset":(\d+)')


def records_needed(context_seconds: float, per_s: int, records_max: int) -> int:
    """How many records a queue row is given."""
    return max(BATCH_RECORDS, min(int(context_seconds * per_s), records_max))


class AckMaker:
    """Makes POST /v1/ack by joining what is always the same with what is not."""

    def __init__(self, address: Address, topic: str, owner: str) -> None:
        self._head = (
            f"POST /v1/ack HTTP/1.1\r\nHost: {address}\r\nContent-Type: {http1.JSON}\r\nContent-Length: ".encode()
        )
        names = json.dumps({"topic": topic, "group": GROUP, "owner": owner}, separators=(",", ":"))
        self._names = names[:-1].encode() + b',"partition":'

    def many(self, partition: bytes, offsets: Sequence[bytes]) -> bytes:
        """An ack of several records of one partition."""
        body = self._names + partition + b',"offsets":[' + b",".join(offsets) + b"]}"
        return self._head + b"%d\r\n\r\n" % len(body) + body

    def one(self, partition: bytes, offset: bytes) -> bytes:
        """An ack of one record."""
        body = self._names + partition + b',"offset":' + offset + b"}"
        return self._head + b"%d\r\n\r\n" % len(body) + body


class LeaseWorker:
    """Leases, acks what it got, leases again; one request at a time."""

    def __init__(self, address: Address, topic: str, owner: str, records: int) -> None:
        body = {"topic": topic, "group": GROUP, "owner": owner, "max_records": records, "lease_ms": LEASE_MS}
        self._lease = http1.request("POST", "/v1/lease", address, json.dumps(body).encode())
        self._acks = AckMaker(address, topic, owner)
        self._reader = http1.AnswerReader()
        self._leased = 0
        self._acks_open = 0
        self._since = 0
        self.channels = [Channel(connect(address))]
        self.is_over = False

    def begin(self, now_ns: int) -> None:
        self._since = now_ns
        self.channels[0].outbox += self._lease

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: Histogram) -> int:
        finished = 0
        for body in self._reader.feed(data):
            if self._acks_open:
                self._acks_open -= 1
                if not self._acks_open:
                    finished += self._leased
                    latency_ns.record(now_ns - self._since)
                    self._since = now_ns
                    channel.outbox += self._lease
                continue
            places = _PLACE.findall(body)
            self._leased = len(places)
            if not places:
                self.is_over = True
            elif len(places) == 1:
                self._acks_open = 1
                channel.outbox += self._acks.one(*places[0])
            else:
                by_partition: dict[bytes, list[bytes]] = {}
                for partition, offset in places:
                    by_partition.setdefault(partition, []).append(offset)
                self._acks_open = len(by_partition)
                for partition, offsets in by_partition.items():
                    channel.outbox += self._acks.many(partition, offsets)
        return finished


class StreamWorker:
    """Takes records from a stream and acks each of them on a second connection, without waiting for the answers."""

    def __init__(self, address: Address, topic: str, owner: str) -> None:
        path = f"/v1/consume?topic={topic}&group={GROUP}&owner={owner}&lease_ms={LEASE_MS}&max_in_flight={IN_FLIGHT}"
        self._request = http1.request("GET", path, address)
        self._acks = AckMaker(address, topic, owner)
        self._answers = TokenCounter(b"HTTP/1.1 204", http1.ANSWER_FAILURES)
        self._tail = b""
        self._is_open = False
        self._since: deque[tuple[int, int]] = deque()
        self._stream, self._ack_channel = Channel(connect(address)), Channel(connect(address))
        self.channels = [self._stream, self._ack_channel]
        self.is_over = False

    def begin(self, now_ns: int) -> None:  # noqa: ARG002  the stream itself is not timed
        self._stream.outbox += self._request

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: Histogram) -> int:
        if channel is self._ack_channel:
            return self._settle(self._answers.feed(data), now_ns, latency_ns)
        text = self._tail + data
        if not self._is_open:
            status, found, _ = text.partition(b"\r\n")
            if found and b" 200 " not in status:
                raise BenchError(f"the broker refused a worker: {status.decode(errors='replace')}")
            self._is_open = bool(found)
        whole = text.rfind(b"\n")
        self._tail = text[whole + 1 :]
        places = _PLACE.findall(text, 0, whole + 1)
        if places:
            self._ack_channel.outbox += b"".join([self._acks.one(partition, offset) for partition, offset in places])
            self._since.append((now_ns, len(places)))
        return 0

    def _settle(self, count: int, now_ns: int, latency_ns: Histogram) -> int:
        left = count
        while left:
            since, records = self._since.popleft()
            if records > left:
                self._since.appendleft((since, records - left))
            settled = min(left, records)
            latency_ns.record(now_ns - since, settled)
            left -= settled
        return count


def queue_1(context: Context) -> Row:
    """One record at a time."""

    def worker(index: int) -> Conversation:
        return LeaseWorker(context.http, context.topic.name, f"worker-{index}", 1)

    return _worked(context, worker, CONNECTIONS, PRELOAD_PER_S_ONE)


def queue_batch(context: Context) -> Row:
    """Many records at a time."""

    def worker(index: int) -> Conversation:
        return LeaseWorker(context.http, context.topic.name, f"worker-{index}", BATCH_RECORDS)

    return _worked(context, worker, CONNECTIONS, PRELOAD_PER_S_MANY)


def queue_consume(context: Context) -> Row:
    """A stream of records, an ack for each."""

    def worker(index: int) -> Conversation:
        return StreamWorker(context.http, context.topic.name, f"worker-{index}")

    return _worked(context, worker, 1, PRELOAD_PER_S_ONE * 2)


def _worked(context: Context, worker: Callable[[int], Conversation], connections: int, per_s: int) -> Row:
    options = context.options
    wanted = records_needed(options.warmup_s + options.seconds, per_s, context.requests_max())
    value = context.value.encode()
    batch, records = batches.batch_filling(_PRELOAD_BATCH_BYTES, value, int(time.time() * 1000))
    count = max(1, wanted // records // context.topic.partitions)
    preload(context.admin, context.topic, batch, count)
    stored = count * records * context.topic.partitions
    pump = ConversationPump([worker(index) for index in range(options.connections or connections)])
    meter = Meter(context.pid)
    try:
        warm = pump.run(options.warmup_s, stored // 4).answers
        meter.start()
        sample = pump.run(options.seconds, stored - warm)
        return context.row(
            meter, records=sample.answers, requests=sample.latency_ns.count, latency_ns=sample.latency_ns
        )
    finally:
        pump.close()
