"""The workloads through the gateways: their stable names and shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.bench.context import Need, RowContext, Workload, WorkloadKind
from penstock.bench.delivery import deliver
from penstock.bench.gateways import deliver as sides
from penstock.bench.gateways import grpc, produce, queue
from penstock.bench.rows import Row

_HTTP, _TCP, _GRPC = Need.HTTP, Need.TCP, Need.GRPC


def _load(
    needs: tuple[Need, ...],
    name: str,
    title: str,
    run: Callable[[RowContext], Row],
    connections: int = 1,
    window: int = 1,
) -> Workload:
    return Workload(name, title, WorkloadKind.GATEWAY, run, connections, window, needs=needs)


def _delivery(
    name: str, title: str, producer: sides.MakeProducer, consumer: sides.MakeConsumer, *needs: Need
) -> Workload:
    run = partial(deliver, consumer=consumer, producer=producer)
    return Workload(name, f"{title}, 1,000 records/s", WorkloadKind.DELIVERY, run, needs=needs)


_wrk, _http = partial(_load, (_HTTP, Need.WRK)), partial(_load, (_HTTP,))
_tcp, _grpc = partial(_load, (_TCP,)), partial(_load, (_GRPC,))

GATEWAY_WORKLOADS = (
    _wrk("http-single", "POST /topics/T/messages, one record, 64 connections, by wrk", produce.http_single, 64),
    _wrk("http-v1-single", "POST /v1/produce, 64 connections, by wrk", produce.http_v1_single, 64),
    _wrk("http-batch-100", "arrays of 100 records per request, 64 connections, by wrk", produce.http_batch, 64),
    _http("http-ndjson", "one request, one record per line", produce.http_ndjson, window=100),
    _tcp("tcp-64", "JSON lines, 64 connections, one line at a time", produce.tcp, 64),
    _tcp("tcp-pipelined-1", "JSON lines, one connection, 10,000 in flight", produce.tcp, window=10_000),
    _tcp("tcp-pipelined-16", "JSON lines, 16 connections, 1,000 in flight on each", produce.tcp, 16, 1_000),
    _grpc("grpc-unary", "Publish, 4 connections, 16 calls in flight on each", grpc.unary, 4, 16),
    _grpc("grpc-stream", "PublishStream, frames of 100 records, 4 streams", grpc.stream, 4, 8),
    _grpc("grpc-subscribe-batch", "SubscribeBatch from the beginning, 2 streams", grpc.subscribe_batch, 2),
    _http("queue-1", "lease one record, ack it, 16 connections", queue.queue_1, 16),
    _http("queue-batch", "lease 100 records, ack them in one call, 16 connections", queue.queue_batch, 16),
    _http("queue-consume", "GET /v1/consume, an ack for each record without waiting for it", queue.queue_consume),
    _delivery("delivery-http-consume", "POST to GET /v1/consume", sides.http_producer, sides.consume, _HTTP),
    _delivery("delivery-http-tail", "POST to server-sent events", sides.http_producer, sides.tail, _HTTP),
    _delivery("delivery-grpc", "Publish to Subscribe", sides.grpc_producer, sides.subscribe, _GRPC),
    _delivery("delivery-tcp-grpc", "JSON line to Subscribe", sides.tcp_producer, sides.subscribe, _TCP, _GRPC),
)
