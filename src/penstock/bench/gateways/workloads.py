"""The workloads through the gateways: their stable names and shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.bench.context import Need, RowContext, Workload, WorkloadKind
from penstock.bench.delivery import deliver
from penstock.bench.gateways import deliver as sides
from penstock.bench.gateways import grpc, produce, queue
from penstock.bench.rows import Row

_HTTP, _TCP, _GRPC, _WRK = Need.HTTP, Need.TCP, Need.GRPC, Need.WRK


def _load(
    name: str, title: str, run: Callable[[RowContext], Row], *needs: Need, connections: int = 1, window: int = 1
) -> Workload:
    return Workload(name, title, WorkloadKind.GATEWAY, run, connections, window, needs=needs)


def _delivery(
    name: str, title: str, producer: sides.MakeProducer, consumer: sides.MakeConsumer, *needs: Need
) -> Workload:
    run = partial(deliver, consumer=consumer, producer=producer)
    return Workload(name, f"{title}, 1,000 records/s", WorkloadKind.DELIVERY, run, needs=needs)


GATEWAY_WORKLOADS = (
    _load(
        "http-single",
        "POST /topics/T/messages, one record, 64 connections, by wrk",
        produce.http_single,
        _HTTP,
        _WRK,
        connections=64,
    ),
    _load(
        "http-v1-single",
        "POST /v1/produce, 64 connections, by wrk",
        produce.http_v1_single,
        _HTTP,
        _WRK,
        connections=64,
    ),
    _load(
        "http-batch-100",
        "arrays of 100 records per request, 64 connections, by wrk",
        produce.http_batch,
        _HTTP,
        _WRK,
        connections=64,
    ),
    _load("http-ndjson", "one request, one record per line", produce.http_ndjson, _HTTP, window=100),
    _load("tcp-64", "JSON lines, 64 connections, one line at a time", produce.tcp, _TCP, connections=64),
    _load("tcp-pipelined-1", "JSON lines, one connection, 10,000 in flight", produce.tcp, _TCP, window=10_000),
    _load(
        "tcp-pipelined-16",
        "JSON lines, 16 connections, 1,000 in flight on each",
        produce.tcp,
        _TCP,
        connections=16,
        window=1_000,
    ),
    _load(
        "grpc-unary", "Publish, 4 connections, 16 calls in flight on each", grpc.unary, _GRPC, connections=4, window=16
    ),
    _load(
        "grpc-stream", "PublishStream, frames of 100 records, 4 streams", grpc.stream, _GRPC, connections=4, window=8
    ),
    _load(
        "grpc-subscribe-batch",
        "SubscribeBatch from the beginning, 2 streams",
        grpc.subscribe_batch,
        _GRPC,
        connections=2,
    ),
    _load("queue-1", "lease one record, ack it, 16 connections", queue.queue_1, _HTTP, connections=16),
    _load(
        "queue-batch",
        "lease 100 records, ack them in one call, 16 connections",
        queue.queue_batch,
        _HTTP,
        connections=16,
    ),
    _load(
        "queue-consume", "GET /v1/consume, an ack for each record without waiting for it", queue.queue_consume, _HTTP
    ),
    _delivery("delivery-http-consume", "POST to GET /v1/consume", sides.http_producer, sides.consume, _HTTP),
    _delivery("delivery-http-tail", "POST to server-sent events", sides.http_producer, sides.tail, _HTTP),
    _delivery("delivery-grpc", "Publish to Subscribe", sides.grpc_producer, sides.subscribe, _GRPC),
    _delivery("delivery-tcp-grpc", "JSON line to Subscribe", sides.tcp_producer, sides.subscribe, _TCP, _GRPC),
)
