"""Workloads that produce over HTTP, by wrk and as lines of one request, and as JSON lines over TCP."""

from __future__ import annotations

import dataclasses
import json

from penstock.bench.context import RowContext
from penstock.bench.gateways import http1, wrk
from penstock.bench.kafka import connect
from penstock.bench.pump import Lane, Pump, RingSource, TokenCounter
from penstock.bench.rows import Meter, Row

BATCH_RECORDS = 100


def compact(value: object) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def http_single(context: RowContext) -> Row:
    """One record per request."""
    return _by_wrk(context, f"/topics/{context.topic.name}/messages", compact({"value": context.value}), 1)


def http_v1_single(context: RowContext) -> Row:
    """One record per request, of the other API."""
    return _by_wrk(context, "/v1/produce", compact({"topic": context.topic.name, "value": context.value}), 1)


def http_batch(context: RowContext) -> Row:
    """An array of records per request."""
    body = compact([{"value": context.value}] * BATCH_RECORDS)
    return _by_wrk(context, f"/topics/{context.topic.name}/messages", body, BATCH_RECORDS)


def _by_wrk(context: RowContext, path: str, body: bytes, records: int) -> Row:
    options = context.options

    def load(seconds: float) -> wrk.WrkSample:
        return wrk.run(
            context.http, path, body, connections=context.connections, seconds=seconds, content_type=http1.JSON
        )

    warm_requests = load(options.warmup_s).requests if options.warmup_s else 0
    meter = Meter(context.pid)
    meter.start()
    sample = load(options.seconds)
    row = context.row(meter, records=sample.requests * records, requests=sample.requests, seconds=sample.seconds)
    context.check_stored((warm_requests + sample.requests) * records)
    return dataclasses.replace(row, p50_us=sample.p50_us, p99_us=sample.p99_us, p999_us=sample.p999_us)


def http_ndjson(context: RowContext) -> Row:
    """One request; every line is a record, and has a line in the response."""
    chunk = http1.chunk((compact({"value": context.value}) + b"\n") * BATCH_RECORDS)
    sock = connect(context.http)
    sock.sendall(http1.streamed_request(f"/topics/{context.topic.name}/messages", context.http, http1.NDJSON))
    counter = TokenCounter(b'"offset":', (*http1.FAILURES, b'"error"'), BATCH_RECORDS)
    return context.pumped(Pump([Lane(sock, RingSource([chunk]), counter, context.window)]), BATCH_RECORDS)


def produce_line(context: RowContext, value: str) -> bytes:
    """A line of the TCP API that produces one record."""
    return compact({"type": "produce", "topic": context.topic.name, "value": value}) + b"\n"


def line_counter() -> TokenCounter:
    """Counts the responses to it."""
    return TokenCounter(b"\n", (b'"ok":false', b'"ok": false'))


def tcp(context: RowContext) -> Row:
    """A window of lines in flight on each connection."""
    source = [produce_line(context, context.value)] * context.window
    lanes = [Lane(context.tcp, RingSource(source), line_counter(), context.window) for _ in range(context.connections)]
    return context.pumped(Pump(lanes), 1)
