"""What Redis does in the shapes of the gateways' rows: XADD, XREAD, and XREADGROUP with XACK.

Invariant: where a row of the gateways is driven by a loop of ours, so is its counterpart here, by the same loop; where it is driven by wrk, a
C program, so is its counterpart, by redis-benchmark.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.base import run_tool
from bench.peers.redis import ENTRY_ID, KEY, Redis, command_frame
from penstock.address import Address
from penstock.bench.context import Options
from penstock.bench.faults import BenchError
from penstock.bench.gateways import queue
from penstock.bench.histogram import LatencyHistogram
from penstock.bench.kafka import connect
from penstock.bench.pump import NO_LIMIT, Channel, Lane, LoadWorker, Pump, RingSource, TokenCounter
from penstock.bench.rows import Meter, Row

GROUP = b"bench"
_BATCH_RECORDS = 100
_CONNECTIONS = 16
_READ_RECORDS_MAX = 500_000
_PRELOAD_S_MAX = 120.0
_ENTRIES = re.compile(rb"\$\d+\r\nbench\r\n\*(\d+)\r\n")
_NOTHING = (b"*-1\r\n", b"$-1\r\n")
_BENCHMARK_RATE = re.compile(r'^"[^"]*","([\d.]+)"(?:,"[\d.]+","[\d.]+","([\d.]+)","[\d.]+","([\d.]+)")?', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RedisRow:
    """A named shape of load on Redis."""

    name: str
    title: str
    run: Callable[[Redis, Options, str], Row]


def _xadd(options: Options) -> bytes:
    # The field is not called v: what ends a value must not end a field.
    return command_frame(b"XADD", KEY, b"*", b"f", b"v" * options.value_bytes)


def _produce(redis: Redis, options: Options, name: str, connections: int, window: int) -> Row:
    meter = Meter(redis.pid)
    with redis.fresh_stream():
        latency_ns = redis.produce(meter, options, connections, window)
        return _row(meter, name, options, latency_ns.count, latency_ns)


def _row(
    meter: Meter,
    name: str,
    options: Options,
    records: int,
    latency_ns: LatencyHistogram | None,
    seconds: float | None = None,
) -> Row:
    requests = latency_ns.count if latency_ns is not None else None
    return meter.row(
        workload=name,
        acks=None,
        records=records,
        value_bytes=options.value_bytes,
        requests=requests,
        latency_ns=latency_ns,
        seconds=seconds,
    )


def _benchmark(redis: Redis, options: Options, name: str, pipeline: int) -> Row:
    """XADD by redis-benchmark, which counts requests and not seconds: a short run says how many are a round."""

    def load(requests: int) -> tuple[float, float | None, float | None]:
        if not shutil.which("redis-benchmark"):
            raise BenchError("Cannot find redis-benchmark on the PATH; install Debian's package redis-tools")
        words = ["redis-benchmark", "-h", redis.address.host, "-p", str(redis.address.port), "--csv", "-c", "64"]
        words += ["-P", str(pipeline), "-n", str(requests), "XADD", KEY.decode(), "*", "f", "v" * options.value_bytes]
        output = run_tool(words, "run redis-benchmark")
        # The first line of two is the headings.
        found = _BENCHMARK_RATE.search(output.partition("\n")[2])
        if not found:
            raise BenchError(f"redis-benchmark did not say a rate: {output[-300:]}")
        times = [float(text) * 1000 if text else None for text in found.groups()[1:]]
        return float(found[1]), times[0], times[1]

    with redis.fresh_stream():
        rate, _, _ = load(20_000)
        rate, _, _ = load(max(20_000, min(int(rate * max(0.2, options.warmup_s)), options.requests_max() // 4)))
        requests = max(20_000, min(int(rate * options.seconds), options.requests_max()))
        meter = Meter(redis.pid)
        meter.start()
        rate, p50_us, p99_us = load(requests)
        row = _row(meter, name, options, requests, None, requests / rate)
    return dataclasses.replace(row, p50_us=p50_us, p99_us=p99_us, requests_per_s=rate)


def _preload(redis: Redis, options: Options, records: int) -> None:
    window = 1000
    with Pump([Lane(redis.address, RingSource([_xadd(options)] * window), redis.counter(), window)]) as pump:
        stored = pump.run(_PRELOAD_S_MAX, records).answers
    if stored != records:
        raise BenchError(f"Only {stored} of {records} entries could be stored in {_PRELOAD_S_MAX:.0f} s")


class Reply:
    """Gathers one reply of XREAD or XREADGROUP: whole when it holds as many values as it says it has entries."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: memoryview) -> list[bytes] | None:
        """The entries' names; an empty list when there was nothing to read; None while the reply is not whole."""
        text = self._data + data
        self._data = text
        if text in _NOTHING:
            self._data = b""
            return []
        if text.startswith(b"-"):
            raise BenchError(f"Redis answered with an error: {text[:200].decode(errors='replace')}")
        entries = _ENTRIES.search(text, 0, 200)
        if entries is None or text.count(b"v\r\n", entries.end()) < int(entries[1]):
            return None
        self._data = b""
        return ENTRY_ID.findall(text, entries.end() - 2)


class Reader(LoadWorker):
    """XREAD from the beginning to the end, again and again."""

    def __init__(self, address: Address) -> None:
        self._reply = Reply()
        self._last = b"0-0"
        self.channels = (Channel(connect(address)),)

    def start(self, now_ns: int, requests_max: int) -> int:  # noqa: ARG002  no request is timed
        if not self.unanswered:
            self.unanswered = 1
            words = (b"XREAD", b"COUNT", b"%d" % _BATCH_RECORDS, b"STREAMS", KEY, self._last)
            self.channels[0].outbox += command_frame(*words)
        return 0

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:  # noqa: ARG002  no request is timed
        names = self._reply.feed(data)
        if names is None:
            return 0
        self.unanswered = 0
        self._last = names[-1] if names else b"0-0"
        return len(names)


class GroupWorker(LoadWorker):
    """Reads for a group, acks what it got, reads again; one command at a time."""

    def __init__(self, address: Address, consumer: bytes, records: int) -> None:
        self._read = _read_group(consumer, records)
        self._reply = Reply()
        self._held = 0
        self._since = 0
        self.channels = (Channel(connect(address)),)

    def start(self, now_ns: int, requests_max: int) -> int:  # noqa: ARG002  the stream holds as much as it may read
        if not self.unanswered and not self.is_over:
            self.unanswered = 1
            self._since = now_ns
            self.channels[0].outbox += self._read
        return 0

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:
        if self._held:
            if bytes(data) != b":%d\r\n" % self._held:
                raise BenchError(
                    f"Redis did not take all acknowledgements: {bytes(data[:200]).decode(errors='replace')}"
                )
            finished, self._held = self._held, 0
            self.unanswered = 0
            latency_ns.record(now_ns - self._since)
            return finished
        names = self._reply.feed(data)
        if names is None:
            return 0
        self._held = len(names)
        if names:
            channel.outbox += command_frame(b"XACK", KEY, GROUP, *names)
        else:
            self.is_over = True
            self.unanswered = 0
        return 0


class PipelinedWorker(LoadWorker):
    """Reads for a group on one connection and acks each entry on another, without waiting for the replies."""

    def __init__(self, address: Address, consumer: bytes) -> None:
        self._read = _read_group(consumer, _BATCH_RECORDS)
        self._reply = Reply()
        self._answers = TokenCounter(b":1", (b"\n-", b"\n:0"))
        self._reads, self._acks = Channel(connect(address)), Channel(connect(address))
        self.channels = (self._reads, self._acks)

    def start(self, now_ns: int, requests_max: int) -> int:  # noqa: ARG002  no request is timed
        if not self.unanswered and not self.is_over:
            self.unanswered = 1
            self._reads.outbox += self._read
        return 0

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:  # noqa: ARG002  no request is timed
        if channel is self._acks:
            return self._answers.feed(data)
        names = self._reply.feed(data)
        if names is not None:
            self._acks.outbox += b"".join([command_frame(b"XACK", KEY, GROUP, name) for name in names])
            # After an empty reply nothing is read any more, but acks may still be in flight.
            self.unanswered = 0 if names else 1
        return 0


def _read_group(consumer: bytes, records: int) -> bytes:
    return command_frame(b"XREADGROUP", b"GROUP", GROUP, consumer, b"COUNT", b"%d" % records, b"STREAMS", KEY, b">")


def _conversed(
    redis: Redis,
    options: Options,
    name: str,
    records: int,
    connections: int,
    worker: Callable[[int], LoadWorker],
    *,
    drains: bool,
) -> Row:
    with redis.fresh_stream():
        _preload(redis, options, records)
        redis.ask(b"XGROUP", b"CREATE", KEY, GROUP, b"0")
        meter = Meter(redis.pid)
        with Pump([worker(index) for index in range(connections)]) as pump:
            warm = pump.run(options.warmup_s, records // 4 if drains else NO_LIMIT).answers
            meter.start()
            sample = pump.run(options.seconds, records - warm if drains else NO_LIMIT)
            return _row(meter, name, options, sample.answers, sample.latency_ns)


def _read(redis: Redis, options: Options, name: str) -> Row:
    records = min(_READ_RECORDS_MAX, options.requests_max())
    return _conversed(redis, options, name, records, 2, lambda _: Reader(redis.address), drains=False)


def _work(redis: Redis, options: Options, name: str, taken: int, per_s: int) -> Row:
    records = queue.records_needed(options.warmup_s + options.seconds, per_s, options.requests_max())

    def worker(index: int) -> LoadWorker:
        return GroupWorker(redis.address, b"worker-%d" % index, taken)

    return _conversed(redis, options, name, records, _CONNECTIONS, worker, drains=True)


def _work_pipelined(redis: Redis, options: Options, name: str) -> Row:
    records = queue.records_needed(options.warmup_s + options.seconds, queue.PRELOAD_PER_S_MANY, options.requests_max())
    return _conversed(
        redis, options, name, records, 1, lambda _: PipelinedWorker(redis.address, b"worker"), drains=True
    )


def _delivery(redis: Redis, options: Options, name: str) -> Row:
    meter = Meter(redis.pid)
    with redis.fresh_stream():
        latency_ns = redis.deliver(meter, options)
        return _row(meter, name, options, latency_ns.count, latency_ns)


_ONE, _MANY = queue.PRELOAD_PER_S_ONE, queue.PRELOAD_PER_S_MANY
REDIS_ROWS = (
    RedisRow("xadd-64-c", "XADD, 64 connections, by redis-benchmark", lambda r, o, n: _benchmark(r, o, n, 1)),
    RedisRow(
        "xadd-64x100-c",
        "XADD, 64 connections x 100 pipelined, by redis-benchmark",
        lambda r, o, n: _benchmark(r, o, n, 100),
    ),
    RedisRow("xadd-64", "XADD, 64 connections", lambda r, o, n: _produce(r, o, n, 64, 1)),
    RedisRow(
        "xadd-pipelined-1", "XADD, one connection, 10,000 in flight", lambda r, o, n: _produce(r, o, n, 1, 10_000)
    ),
    RedisRow(
        "xadd-pipelined-16",
        "XADD, 16 connections, 1,000 in flight on each",
        lambda r, o, n: _produce(r, o, n, 16, 1000),
    ),
    RedisRow("xread-100", "XREAD of 100 from the beginning, 2 connections", _read),
    RedisRow("xreadgroup-1", "XREADGROUP of one, XACK, 16 connections", lambda r, o, n: _work(r, o, n, 1, _ONE)),
    RedisRow(
        "xreadgroup-100",
        "XREADGROUP of 100, one XACK of them, 16 connections",
        lambda r, o, n: _work(r, o, n, _BATCH_RECORDS, _MANY),
    ),
    RedisRow(
        "xreadgroup-pipelined", "XREADGROUP of 100, an XACK for each entry without waiting for it", _work_pipelined
    ),
    RedisRow("delivery-xread", "XADD to a blocking XREAD, 1,000 entries/s", _delivery),
)
REDIS_BY_NAME = {row.name: row for row in REDIS_ROWS}
COUNTERPARTS = {
    "http-single": "xadd-64-c",
    "http-v1-single": "xadd-64-c",
    "http-batch-100": "xadd-64x100-c",
    "http-ndjson": "xadd-pipelined-1",
    "tcp-64": "xadd-64",
    "tcp-pipelined-1": "xadd-pipelined-1",
    "tcp-pipelined-16": "xadd-pipelined-16",
    "grpc-unary": "xadd-64",
    "grpc-stream": "xadd-pipelined-16",
    "grpc-subscribe-batch": "xread-100",
    "queue-1": "xreadgroup-1",
    "queue-batch": "xreadgroup-100",
    "queue-consume": "xreadgroup-pipelined",
    "delivery-http-consume": "delivery-xread",
    "delivery-http-tail": "delivery-xread",
    "delivery-grpc": "delivery-xread",
    "delivery-tcp-grpc": "delivery-xread",
    "delivery-kafka": "delivery-xread",
}
"""Which row of Redis each of ours is compared with."""
