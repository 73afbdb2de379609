"""Workloads that process a queue over HTTP: lease and ack, one record or many at a time, and the stream of GET /v1/consume with acks beside it.

Invariant: a record counts when its ack was answered. The queue is filled before the clock starts; a row ends early when the queue is empty.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

from penstock.address import Address
from penstock.bench.context import RowContext
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1
from penstock.bench.gateways.produce import compact
from penstock.bench.histogram import LatencyHistogram
from penstock.bench.kafka import connect
from penstock.bench.lanes import preload
from penstock.bench.pump import Channel, LoadWorker, Pump, TokenCounter, settle
from penstock.bench.rows import Meter, Row

GROUP = "bench"
BATCH_RECORDS = 100
_LEASE_MS = 60_000
_IN_FLIGHT = 1000
"""How many records a worker holds whose work is nothing."""
_PRELOAD_BATCH_BYTES = 64 << 10
PRELOAD_PER_S_ONE = 30_000
PRELOAD_PER_S_MANY = 200_000
"""More records than a worker finishes in a second today, taken one or many at a time."""
PLACE = re.compile(rb'"partition":(\d+),"offset":(\d+)')


def records_needed(seconds: float, per_s: int, records_max: int) -> int:
    """How many records a queue row is given."""
    return max(BATCH_RECORDS, min(int(seconds * per_s), records_max))


def consume_request(address: Address, topic: str, owner: str) -> bytes:
    """Opens the stream of a worker."""
    path = f"/v1/consume?topic={topic}&group={GROUP}&owner={owner}&lease_ms={_LEASE_MS}&max_in_flight={_IN_FLIGHT}"
    return http1.request("GET", path, address)


class AckMaker:
    """Makes POST /v1/ack by joining what never changes with what does."""

    def __init__(self, address: Address, topic: str, owner: str) -> None:
        self._head = (
            f"POST /v1/ack HTTP/1.1\r\nHost: {address}\r\nContent-Type: {http1.JSON}\r\nContent-Length: ".encode()
        )
        self._names = compact({"topic": topic, "group": GROUP, "owner": owner})[:-1] + b',"partition":'

    def many(self, partition: bytes, offsets: Sequence[bytes]) -> bytes:
        """An ack of several records of one partition."""
        return self._request(partition + b',"offsets":[' + b",".join(offsets) + b"]}")

    def one(self, partition: bytes, offset: bytes) -> bytes:
        """An ack of one record."""
        return self._request(partition + b',"offset":' + offset + b"}")

    def _request(self, place: bytes) -> bytes:
        return self._head + b"%d\r\n\r\n" % (len(self._names) + len(place)) + self._names + place


class LeaseWorker(LoadWorker):
    """Leases, acks what it got, leases again; one request at a time."""

    def __init__(self, address: Address, topic: str, owner: str, records: int) -> None:
        body = {"topic": topic, "group": GROUP, "owner": owner, "max_records": records, "lease_ms": _LEASE_MS}
        self._lease = http1.request("POST", "/v1/lease", address, compact(body))
        self._acks = AckMaker(address, topic, owner)
        self._reader = http1.ResponseReader()
        self._leased = 0
        self._acks_open = 0
        self._since = 0
        self.channels = (Channel(connect(address)),)

    def start(self, now_ns: int, requests_max: int) -> int:
        if not self.unanswered and requests_max and not self.is_over:
            self.unanswered = 1
            self._since = now_ns
            self.channels[0].outbox += self._lease
        return 0

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:
        finished = 0
        for body in self._reader.feed(data):
            if self._acks_open:
                self._acks_open -= 1
                if not self._acks_open:
                    self.unanswered = 0
                    finished += self._leased
                    latency_ns.record(now_ns - self._since)
                continue
            places = PLACE.findall(body)
            self._leased = len(places)
            if not places:
                self.is_over = True
                self.unanswered = 0
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


class StreamWorker(LoadWorker):
    """Takes records from a stream and acks each of them on a second connection, without waiting for the responses."""

    def __init__(self, address: Address, topic: str, owner: str) -> None:
        self._request = consume_request(address, topic, owner)
        self._acks = AckMaker(address, topic, owner)
        self._answers = TokenCounter(b"HTTP/1.1 204", http1.FAILURES)
        self._tail = b""
        self._is_open = False
        self._since: deque[tuple[int, int]] = deque()
        self._stream, self._ack_channel = Channel(connect(address)), Channel(connect(address))
        self.channels = (self._stream, self._ack_channel)

    def start(self, now_ns: int, requests_max: int) -> int:  # noqa: ARG002  the stream itself is not timed
        self._stream.outbox += self._request
        self._request = b""
        return 0

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:
        if channel is self._ack_channel:
            count = self._answers.feed(data)
            settle(self._since, count, now_ns, latency_ns)
            return count
        text = self._tail + data
        if not self._is_open:
            status, found, _ = text.partition(b"\r\n")
            if found and b" 200 " not in status:
                raise BenchError(f"The broker refused a worker: {status.decode(errors='replace')}")
            self._is_open = bool(found)
        whole = text.rfind(b"\n")
        self._tail = text[whole + 1 :]
        places = PLACE.findall(text, 0, whole + 1)
        if places:
            self._ack_channel.outbox += b"".join([self._acks.one(partition, offset) for partition, offset in places])
            self._since.append((now_ns, len(places)))
        return 0


def queue_1(context: RowContext) -> Row:
    """One record at a time."""
    name = context.topic.name
    return _worked(context, lambda owner: LeaseWorker(context.http, name, owner, 1), PRELOAD_PER_S_ONE)


def queue_batch(context: RowContext) -> Row:
    """Many records at a time."""
    name = context.topic.name
    return _worked(context, lambda owner: LeaseWorker(context.http, name, owner, BATCH_RECORDS), PRELOAD_PER_S_MANY)


def queue_consume(context: RowContext) -> Row:
    """A stream of records, an ack for each."""
    name = context.topic.name
    return _worked(context, lambda owner: StreamWorker(context.http, name, owner), PRELOAD_PER_S_ONE * 2)


def _worked(context: RowContext, worker: Callable[[str], LoadWorker], per_s: int) -> Row:
    options, partitions = context.options, len(context.topic.leaders)
    wanted = records_needed(options.warmup_s + options.seconds, per_s, options.requests_max())
    batch, records = context.batch(_PRELOAD_BATCH_BYTES)
    count = max(1, wanted // records // partitions)
    preload(context.cluster, context.topic, batch, count)
    stored = count * records * partitions
    meter = Meter(context.pid)
    with Pump([worker(f"worker-{index}") for index in range(context.connections)]) as pump:
        warm = pump.run(options.warmup_s, stored // 4).answers
        meter.start()
        sample = pump.run(options.seconds, stored - warm)
        return context.row(
            meter, records=sample.answers, requests=sample.latency_ns.count, latency_ns=sample.latency_ns
        )
