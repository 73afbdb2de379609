"""The workloads over the Kafka protocol: their stable names and shapes, and how each is run.

Invariant: everything a workload sends is made before the clock starts; what is written stays within the limits on records and bytes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from penstock.bench import kafka
from penstock.bench.context import RowContext, Workload, WorkloadKind
from penstock.bench.delivery import Consumer, KafkaStamper, KafkaTap, Producer, deliver
from penstock.bench.faults import BenchError
from penstock.bench.lanes import FetchCounter, FetchSource, ProduceCounter, preload, produce_lane
from penstock.bench.pump import Lane, Pump
from penstock.bench.rows import Meter, Row
from penstock.wire.kafka.apis import ApiKey

MIB = 1 << 20
KIB16 = 16 << 10
_FETCH_WAIT_MS_MAX = 500
_FETCH_PRELOAD_BYTES_MAX = 128 * MIB


def produce(context: RowContext) -> Row:
    """Produce requests of one batch each."""
    assert context.acks is not None
    batch, records = context.batch(context.workload.batch_bytes)
    partitions = len(context.topic.leaders)
    lanes = [
        produce_lane(context.cluster, context.topic, index % partitions, context.acks, batch, context.window)
        for index in range(context.connections)
    ]
    return context.pumped(Pump(lanes), records, len(batch))


def _fetch_version(context: RowContext) -> int:
    return kafka.version_for(context.cluster, context.topic.leaders[0], ApiKey.FETCH, kafka.FETCH_VERSION_MAX)


def fetch(context: RowContext) -> Row:
    """Fetch batches that are stored before the clock starts, again and again."""
    options, topic = context.options, context.topic
    partitions = len(topic.leaders)
    batch, records = context.batch(context.workload.batch_bytes)
    limits = replace(options, bytes_max=min(_FETCH_PRELOAD_BYTES_MAX, options.bytes_max) // partitions)
    count = limits.requests_max(records, len(batch))
    preload(context.cluster, topic, batch, count)
    version = _fetch_version(context)
    layout = kafka.fetch_layout(version, topic.name)
    _check_fetched(context, version, batch, records)
    lanes: list[Lane] = []
    counters: list[FetchCounter] = []
    for index in range(context.connections):
        partition = index % partitions
        # A limit of just one batch makes every response one batch long, whatever the broker does with a batch that fits in part.
        request = kafka.fetch_request(
            version, topic.name, partition, bytes_max=len(batch), wait_ms_max=_FETCH_WAIT_MS_MAX
        )
        first = index * count // context.connections
        source = FetchSource(request, records_per_batch=records, batches=count, first_batch=first)
        counters.append(FetchCounter(layout))
        lanes.append(Lane(topic.leaders[partition], source, counters[-1], context.window))
    meter = Meter(context.pid)
    with Pump(lanes) as pump:
        pump.run(options.warmup_s)
        before = sum(counter.bytes_received for counter in counters)
        meter.start()
        sample = pump.run(options.seconds)
        received = sum(counter.bytes_received for counter in counters) - before
        fetched = received * records // len(batch)
        row = context.row(meter, records=fetched, requests=sample.answers, latency_ns=sample.latency_ns)
        pump.drain()
    return row


def _check_fetched(context: RowContext, version: int, batch: bytearray, records: int) -> None:
    """Fetch the second batch and compare it with what was stored, so that the timed responses need no look inside."""
    topic = context.topic
    request = kafka.fetch_request(version, topic.name, 0, bytes_max=len(batch), wait_ms_max=_FETCH_WAIT_MS_MAX)
    frame = bytearray(request.frame)
    frame[request.offset_at : request.offset_at + 8] = records.to_bytes(8, "big")
    response = b""
    with kafka.connect(topic.leaders[0]) as sock:
        sock.sendall(frame)
        while len(response) < 4 or len(response) < 4 + int.from_bytes(response[:4], "big"):
            piece = sock.recv(MIB)
            if not piece:
                raise BenchError("The broker closed the connection of a fetch request; see its log")
            response += piece
    layout = kafka.fetch_layout(version, topic.name)
    layout.check(response)
    at, size = layout.records_span(response)
    fetched = response[at : at + max(size, 0)]
    # A broker sets the base offset and the leader epoch, which the CRC does not cover.
    if fetched[:8] != records.to_bytes(8, "big") or fetched[16:] != batch[16:]:
        raise BenchError(
            f"The broker did not return the batch that was stored at offset {records}: {size} bytes differ"
        )


def _producer(context: RowContext, stack: ExitStack) -> Producer:
    assert context.acks is not None
    leader, name = context.topic.leaders[0], context.topic.name
    version = kafka.version_for(context.cluster, leader, ApiKey.PRODUCE, kafka.PRODUCE_VERSION_MAX)
    stamper = KafkaStamper(version, name, context.acks, context.options.value_bytes)
    return stack.enter_context(kafka.connect(leader)), stamper, ProduceCounter(kafka.produce_layout(version, name))


def _consumer(context: RowContext, stack: ExitStack) -> Consumer:
    name, version = context.topic.name, _fetch_version(context)
    sock = stack.enter_context(kafka.connect(context.topic.leaders[0]))
    request = kafka.fetch_request(version, name, 0, bytes_max=MIB, wait_ms_max=_FETCH_WAIT_MS_MAX)
    return sock, KafkaTap(sock, request, kafka.fetch_layout(version, name))


def _deliver(context: RowContext) -> Row:
    return deliver(context, _consumer, _producer)


def _produces(name: str, title: str, connections: int, window: int, batch_bytes: int = 0) -> Workload:
    return Workload(name, title, WorkloadKind.PRODUCE, produce, connections, window, batch_bytes, has_acks=True)


WORKLOADS = (
    _produces("produce-1m", "produce, 1 MB requests of 100 B records", 4, 2, MIB),
    _produces("produce-16k", "produce, 16 KiB requests of 100 B records", 4, 8, KIB16),
    _produces("single-64", "produce, one record per request, 64 connections", 64, 1),
    _produces("single-16x16", "produce, one record per request, 16 connections x 16 in flight", 16, 16),
    _produces("single-1", "produce, one record per request, one connection, one at a time", 1, 1),
    Workload("fetch-1m", "fetch, 1 MB responses", WorkloadKind.FETCH, fetch, 4, 1, MIB),
    Workload("fetch-16k", "fetch, 16 KiB responses", WorkloadKind.FETCH, fetch, 4, 1, KIB16),
    Workload("delivery", "produce to delivery, 1,000 records/s", WorkloadKind.DELIVERY, _deliver, has_acks=True),
)
