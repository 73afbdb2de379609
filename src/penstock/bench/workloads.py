"""The workloads: their stable names and shapes, and how each is run against a Kafka-protocol broker.

Invariant: everything a workload sends is made before the clock starts; the topic is new for each run and removed after it; what is
written stays within `bytes_max` and `records_max`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.address import Address
from penstock.bench import batches, delivery, frames, librdkafka
from penstock.bench.admin import Admin, Topic, connect, receive_frame
from penstock.bench.faults import BenchError
from penstock.bench.frames import FETCH_VERSIONS, PRODUCE_VERSIONS, Acks, Api
from penstock.bench.histogram import Histogram
from penstock.bench.ping import PingLane, PingPump
from penstock.bench.preload import preload, produce_lane
from penstock.bench.raw_client import FetchCounter, FetchSource, Lane, ProduceCounter, Pump
from penstock.bench.rows import Meter, Row

MIB = 1 << 20
KIB16 = 16 << 10
_FETCH_PRELOAD_BYTES_MAX = 128 * MIB
_CLIENT_PRELOAD_RECORDS_MAX = 2_000_000
DELIVERY_RATE_PER_S = 1000


class Kind(Enum):
    """How a workload is run."""

    PRODUCE = "produce"
    FETCH = "fetch"
    LIBRDKAFKA_IN = "librdkafka in"
    LIBRDKAFKA_OUT = "librdkafka out"
    CONFLUENT_IN = "confluent in"
    CONFLUENT_OUT = "confluent out"
    DELIVERY = "delivery"


_WRITES = frozenset({Kind.PRODUCE, Kind.LIBRDKAFKA_IN, Kind.CONFLUENT_IN, Kind.DELIVERY})


@dataclass(frozen=True, slots=True)
class Workload:
    """A named shape of load. `batch_bytes` 0 means one record a request."""

    name: str
    title: str
    kind: Kind
    connections: int = 1
    window: int = 1
    batch_bytes: int = 0

    @property
    def has_acks(self) -> bool:
        """Whether it is run once for each acks."""
        return self.kind in _WRITES


WORKLOADS = (
    Workload("produce-1m", "produce, 1 MB requests of 100 B records", Kind.PRODUCE, 4, 2, MIB),
    Workload("produce-16k", "produce, 16 KiB requests of 100 B records", Kind.PRODUCE, 4, 8, KIB16),
    Workload("single-64", "one record a request, 64 connections", Kind.PRODUCE, 64, 1),
    Workload("single-16x16", "one record a request, 16 connections x 16 pipelined", Kind.PRODUCE, 16, 16),
    Workload("single-1", "one record a request, one connection, one at a time", Kind.PRODUCE, 1, 1),
    Workload("fetch-1m", "fetch, 1 MB answers", Kind.FETCH, 4, 1, MIB),
    Workload("fetch-16k", "fetch, 16 KiB answers", Kind.FETCH, 4, 1, KIB16),
    Workload("librdkafka-in", "librdkafka produces 100 B records", Kind.LIBRDKAFKA_IN),
    Workload("librdkafka-out", "librdkafka consumes 100 B records", Kind.LIBRDKAFKA_OUT, batch_bytes=MIB),
    Workload("confluent-in", "confluent-kafka (Python) produces 100 B records", Kind.CONFLUENT_IN),
    Workload("confluent-out", "confluent-kafka (Python) consumes 100 B records", Kind.CONFLUENT_OUT, batch_bytes=MIB),
    Workload("delivery", "produce to delivery, 1,000 records/s", Kind.DELIVERY),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller may choose for every workload."""

    seconds: float = 5.0
    warmup_s: float = 1.0
    partitions: int = 1
    value_bytes: int = 100
    records_max: int = 100_000_000
    bytes_max: int = 4 << 30
    connections: int | None = None
    window: int | None = None


def select_workloads(only: list[str]) -> list[Workload]:
    """The workloads named in `only`, in their usual order; all when it is empty."""
    known = {workload.name for workload in WORKLOADS}
    if unknown := [name for name in only if name not in known]:
        raise BenchError(f"no workload is called {', '.join(unknown)}: choose from {', '.join(sorted(known))}")
    return [workload for workload in WORKLOADS if not only or workload.name in only]


def run_workload(workload: Workload, acks: Acks | None, bootstrap: Address, pid: int | None, options: Options) -> Row:
    """Run one workload on a topic of its own."""
    run = _RUNNERS[workload.kind]
    with Admin(bootstrap) as admin:
        name = f"bench-{workload.name}-{time.time_ns() // 1000 % 10**9:09d}"
        partitions = 1 if workload.kind is Kind.DELIVERY else options.partitions
        topic = admin.topic(name, partitions)
        try:
            return run(_Context(workload, acks, admin, topic, pid, options))
        finally:
            admin.delete_topics([name])


@dataclass(frozen=True, slots=True)
class _Context:
    workload: Workload
    acks: Acks | None
    admin: Admin
    topic: Topic
    pid: int | None
    options: Options

    @property
    def connections(self) -> int:
        return self.options.connections or self.workload.connections

    @property
    def window(self) -> int:
        return self.options.window or self.workload.window

    def requests_max(self, batch_bytes: int, records: int) -> int:
        """How many requests stay within the bounds on bytes and records."""
        return max(1, min(self.options.bytes_max // batch_bytes, self.options.records_max // records))

    def batch(self) -> tuple[bytes, int]:
        value = b"v" * self.options.value_bytes
        now_ms = int(time.time() * 1000)
        if not self.workload.batch_bytes:
            return batches.batch_of([value], now_ms), 1
        return batches.batch_filling(self.workload.batch_bytes, value, now_ms)

    def row(self, meter: Meter, records: int, requests: int | None = None, latency_ns: Histogram | None = None) -> Row:
        """End the measured stretch."""
        return meter.row(
            workload=self.workload.name,
            acks=self.acks.label if self.acks else None,
            records=records,
            value_bytes=self.options.value_bytes,
            requests=requests,
            latency_ns=latency_ns,
        )


def _ping_lane(context: _Context, partition: int, acks: Acks, batch: bytes) -> PingLane:
    topic = context.topic
    version = context.admin.version_of(Api.PRODUCE, PRODUCE_VERSIONS)
    frame = frames.produce_request(version, 0, topic.name, partition, acks, batch)
    counter = ProduceCounter(frames.produce_answer(version, topic.name), 1)
    return PingLane(connect(topic.leaders[partition]), frame, counter)


def _run_produce(context: _Context) -> Row:
    assert context.acks is not None
    batch, records = context.batch()
    partitions = [index % context.topic.partitions for index in range(context.connections)]
    pump: Pump | PingPump
    # A large frame does not fit a socket's buffer, which the short loop for one request at a time relies on.
    if context.window == 1 and len(batch) <= KIB16:
        pump = PingPump([_ping_lane(context, partition, context.acks, batch) for partition in partitions])
    else:
        pump = Pump(
            [
                produce_lane(context.admin, context.topic, partition, context.acks, batch, context.window)
                for partition in partitions
            ]
        )
    requests_max = context.requests_max(len(batch), records)
    meter = Meter(context.pid)
    try:
        # The warm-up may not eat up what the measured stretch is allowed to write.
        pump.run(context.options.warmup_s, requests_max // 4)
        meter.start()
        sample = pump.run(context.options.seconds, requests_max - requests_max // 4)
        row = context.row(
            meter, records=sample.answers * records, requests=sample.answers, latency_ns=sample.latency_ns
        )
        pump.drain()
    finally:
        pump.close()
    return row


def _run_fetch(context: _Context) -> Row:
    batch, records = context.batch()
    topic = context.topic
    allowed = min(_FETCH_PRELOAD_BYTES_MAX, context.options.bytes_max) // topic.partitions
    count = max(2, min(allowed // len(batch), context.options.records_max // records))
    preload(context.admin, context.topic, batch, count)
    version = context.admin.version_of(Api.FETCH, FETCH_VERSIONS)
    layout = frames.fetch_answer(version, topic.name)
    _check_fetched(context, version, batch, records)
    lanes: list[Lane] = []
    counters: list[FetchCounter] = []
    for index in range(context.connections):
        partition = index % topic.partitions
        # A limit of just one batch makes every answer one batch long, whatever the broker does with a batch that fits in part.
        request = frames.fetch_request(version, 0, topic.name, partition, answer_bytes_max=len(batch), wait_ms_max=500)
        first = index * count // context.connections
        source = FetchSource(request, records_per_batch=records, batches=count, first_batch=first)
        counters.append(FetchCounter(layout))
        lanes.append(Lane(connect(topic.leaders[partition]), source, counters[-1], context.window))
    pump = Pump(lanes)
    meter = Meter(context.pid)
    try:
        pump.run(context.options.warmup_s, 1 << 62)
        before = sum(counter.bytes_received for counter in counters)
        meter.start()
        sample = pump.run(context.options.seconds, 1 << 62)
        received = sum(counter.bytes_received for counter in counters) - before
        fetched = received * records // len(batch)
        row = context.row(meter, records=fetched, requests=sample.answers, latency_ns=sample.latency_ns)
        pump.drain()
    finally:
        pump.close()
    return row


def _check_fetched(context: _Context, version: int, batch: bytes, records: int) -> None:
    """Fetch the second batch and compare it with what was stored, so that the timed answers need no look inside."""
    topic = context.topic
    request = frames.fetch_request(version, 0, topic.name, 0, answer_bytes_max=len(batch), wait_ms_max=500)
    frame = bytearray(request.frame)
    frame[request.offset_at : request.offset_at + 8] = records.to_bytes(8, "big")
    with connect(topic.leaders[0]) as sock:
        sock.sendall(frame)
        answer = bytes(4) + receive_frame(sock)
    at, size = frames.records_span(frames.fetch_answer(version, topic.name), answer)
    fetched = answer[at : at + max(size, 0)]
    # A broker sets the base offset and the leader epoch, which the CRC does not cover.
    if fetched[:8] != records.to_bytes(8, "big") or fetched[16:] != batch[16:]:
        raise BenchError(
            f"the broker did not give back the batch that was stored at offset {records}: {size} bytes differ"
        )


def _run_delivery(context: _Context) -> Row:
    assert context.acks is not None
    options, topic = context.options, context.topic
    value_bytes = max(8, options.value_bytes)
    produce = context.admin.version_of(Api.PRODUCE, PRODUCE_VERSIONS)
    fetch = context.admin.version_of(Api.FETCH, FETCH_VERSIONS)
    meter = Meter(context.pid)
    with connect(topic.leaders[0]) as out, connect(topic.leaders[0]) as inward:
        latency_ns = delivery.measure_delivery(
            out=out,
            stamper=delivery.KafkaStamper(produce, topic.name, context.acks, value_bytes),
            answers=ProduceCounter(frames.produce_answer(produce, topic.name), 1),
            inward=inward,
            tap=delivery.KafkaTap.on(inward, fetch, topic.name, value_bytes),
            rate_per_s=DELIVERY_RATE_PER_S,
            warmup_s=options.warmup_s,
            seconds=options.seconds,
            on_start=meter.start,
        )
        return context.row(meter, records=latency_ns.count, requests=latency_ns.count, latency_ns=latency_ns)


def _run_client_in(context: _Context, produce: Callable[[librdkafka.InPlan], int]) -> Row:
    assert context.acks is not None
    options = context.options
    meter = Meter(context.pid)
    records_max = max(1, min(options.records_max, options.bytes_max // options.value_bytes))
    acknowledged = produce(
        librdkafka.InPlan(
            bootstrap=str(context.admin.bootstrap),
            topic=context.topic.name,
            acks=context.acks.label,
            value_bytes=options.value_bytes,
            warmup_s=options.warmup_s,
            seconds=options.seconds,
            records_max=records_max,
            on_start=meter.start,
        )
    )
    row = context.row(meter, records=acknowledged)
    # A client that gives up on a record says so only to a callback, which would cost too much here: the topic tells.
    stored = sum(context.admin.end_offsets(context.topic) or ())
    if stored < acknowledged:
        raise BenchError(
            f"the client handed over {acknowledged} records, the topic holds {stored}: see the broker's log"
        )
    return row


def _run_client_out(context: _Context, consume: Callable[[librdkafka.OutPlan], int]) -> Row:
    options, topic = context.options, context.topic
    batch, records = context.batch()
    allowed = min(_CLIENT_PRELOAD_RECORDS_MAX, options.records_max, options.bytes_max // options.value_bytes)
    count = max(1, allowed // records // topic.partitions)
    preload(context.admin, context.topic, batch, count)
    meter = Meter(context.pid)
    consumed = consume(
        librdkafka.OutPlan(
            bootstrap=str(context.admin.bootstrap),
            topic=topic.name,
            partitions=topic.partitions,
            records=count * records * topic.partitions,
            warmup_s=options.warmup_s,
            seconds=options.seconds,
            on_start=meter.start,
        )
    )
    return context.row(meter, records=consumed)


_RUNNERS: dict[Kind, Callable[[_Context], Row]] = {
    Kind.PRODUCE: _run_produce,
    Kind.FETCH: _run_fetch,
    Kind.DELIVERY: _run_delivery,
    Kind.LIBRDKAFKA_IN: lambda context: _run_client_in(context, librdkafka.produce_by_library),
    Kind.LIBRDKAFKA_OUT: lambda context: _run_client_out(context, librdkafka.consume_by_library),
    Kind.CONFLUENT_IN: lambda context: _run_client_in(context, librdkafka.produce_by_python),
    Kind.CONFLUENT_OUT: lambda context: _run_client_out(context, librdkafka.consume_by_python),
}
