"""The rows of the gateways: their stable names, what each needs, and how each is run on a topic of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from penstock.bench.admin import Admin
from penstock.bench.faults import BenchError
from penstock.bench.gateways import consume, deliver, produce, queue, wrk
from penstock.bench.gateways.context import Context, Endpoints
from penstock.bench.rows import Row
from penstock.bench.run import Job
from penstock.bench.workloads import Options


class Need(Enum):
    """What a row cannot do without."""

    HTTP = "http"
    TCP = "tcp"
    GRPC = "grpc"
    WRK = "wrk"


class Measure(Enum):
    """What a row is about."""

    RATE = "records/s"
    LATENCY = "p50"


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """A named shape of load on a gateway."""

    name: str
    title: str
    run: Callable[[Context], Row]
    needs: tuple[Need, ...]
    measure: Measure = Measure.RATE

    def why_not(self, endpoints: Endpoints) -> str | None:
        """A sentence when it cannot be run; None when it can."""
        for need in self.needs:
            if need is Need.WRK:
                if not wrk.is_installed():
                    return wrk.MISSING
            elif getattr(endpoints, need.value) is None:
                return f"the broker's {need.value} gateway is off: start it with --{need.value} HOST:PORT"
        return None


_HTTP, _TCP, _GRPC, _WRK = Need.HTTP, Need.TCP, Need.GRPC, Need.WRK
GATEWAY_ROWS = (
    GatewayRow(
        "http-single", "POST /topics/T/messages, one record, 64 connections, by wrk", produce.http_single, (_HTTP, _WRK)
    ),
    GatewayRow("http-v1-single", "POST /v1/produce, 64 connections, by wrk", produce.http_v1_single, (_HTTP, _WRK)),
    GatewayRow(
        "http-batch-100", "arrays of 100 records a request, 64 connections, by wrk", produce.http_batch, (_HTTP, _WRK)
    ),
    GatewayRow("http-ndjson", "one request, a record a line", produce.http_ndjson, (_HTTP,)),
    GatewayRow("tcp-64", "JSON lines, 64 connections, one line at a time", produce.tcp_64, (_TCP,)),
    GatewayRow("tcp-pipelined-1", "JSON lines, one connection, 10,000 under way", produce.tcp_pipelined_1, (_TCP,)),
    GatewayRow(
        "tcp-pipelined-16", "JSON lines, 16 connections, 1,000 under way on each", produce.tcp_pipelined_16, (_TCP,)
    ),
    GatewayRow("grpc-unary", "Publish, 4 connections, 16 calls under way on each", produce.grpc_unary, (_GRPC,)),
    GatewayRow("grpc-stream", "PublishStream, frames of 100 records, 4 streams", produce.grpc_stream, (_GRPC,)),
    GatewayRow(
        "grpc-subscribe-batch", "SubscribeBatch from the beginning, 2 streams", consume.grpc_subscribe_batch, (_GRPC,)
    ),
    GatewayRow("queue-1", "lease one, ack it, 16 connections", queue.queue_1, (_HTTP,)),
    GatewayRow("queue-batch", "lease 100, ack them in one call, 16 connections", queue.queue_batch, (_HTTP,)),
    GatewayRow(
        "queue-consume", "GET /v1/consume, an ack for each record, not waited for", queue.queue_consume, (_HTTP,)
    ),
    GatewayRow(
        "delivery-http-consume",
        "POST to GET /v1/consume, 1,000 records/s",
        deliver.http_to_consume,
        (_HTTP,),
        Measure.LATENCY,
    ),
    GatewayRow(
        "delivery-http-tail",
        "POST to server-sent events, 1,000 records/s",
        deliver.http_to_tail,
        (_HTTP,),
        Measure.LATENCY,
    ),
    GatewayRow(
        "delivery-grpc", "Publish to Subscribe, 1,000 records/s", deliver.grpc_to_subscribe, (_GRPC,), Measure.LATENCY
    ),
    GatewayRow(
        "delivery-tcp-grpc",
        "JSON line to Subscribe, 1,000 records/s",
        deliver.tcp_to_subscribe,
        (_TCP, _GRPC),
        Measure.LATENCY,
    ),
)


def select_rows(only: list[str]) -> list[GatewayRow]:
    """The rows named in `only`, in their usual order; all when it is empty."""
    known = {row.name for row in GATEWAY_ROWS}
    if unknown := [name for name in only if name not in known]:
        raise BenchError(f"no row is called {', '.join(unknown)}: choose from {', '.join(sorted(known))}")
    return [row for row in GATEWAY_ROWS if not only or row.name in only]


def run_row(row: GatewayRow, endpoints: Endpoints, pid: int | None, options: Options) -> Row:
    """Run one row."""
    with Admin(endpoints.kafka) as admin:
        name = f"bench-{row.name}-{time.time_ns() // 1000 % 10**9:09d}"
        # A consumer that is live on one partition is what a delivery measures.
        partitions = 1 if row.measure is Measure.LATENCY else options.partitions
        topic = admin.topic(name, partitions)
        try:
            measured = row.run(Context(row.name, endpoints, admin, topic, pid, options))
        except OSError as error:
            raise BenchError(f"the connection broke during the measurement: {error}; see the broker's log") from error
        finally:
            admin.delete_topics([name])
    if not measured.records:
        raise BenchError(f"nothing was finished in {measured.seconds:.1f} s: see the broker's log")
    return measured


def gateway_jobs(rows: list[GatewayRow], endpoints: Endpoints, pid: int | None, options: Options) -> list[Job]:
    """The same, to be run later."""
    return [Job(row.name, row.title, partial(run_row, row, endpoints, pid, options)) for row in rows]
