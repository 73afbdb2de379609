"""The workloads of the benchmark, the options of a run, and the context in which a row is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.bench import kafka
from penstock.bench.faults import BenchError
from penstock.bench.gateways import wrk
from penstock.bench.rows import Meter, Row

if TYPE_CHECKING:
    from penstock.address import Address
    from penstock.bench.histogram import LatencyHistogram
    from penstock.bench.kafka import BenchTopic
    from penstock.bench.pump import Pump
    from penstock.client import Cluster


class WorkloadKind(Enum):
    """The kind of a workload, which determines the numbers in the tables."""

    PRODUCE = "produce"
    FETCH = "fetch"
    CLIENT = "client"
    GATEWAY = "gateway"
    DELIVERY = "delivery"


class Need(Enum):
    """What a workload requires in addition to the Kafka listener."""

    HTTP = "http"
    TCP = "tcp"
    GRPC = "grpc"
    WRK = "wrk"


@dataclass(frozen=True, slots=True)
class Workload:
    """A named kind of load. `batch_bytes` 0 means one record per request; with `has_acks`, it runs once for each acks setting."""

    name: str
    title: str
    kind: WorkloadKind
    run: Callable[[RowContext], Row]
    connections: int = 1
    window: int = 1
    batch_bytes: int = 0
    has_acks: bool = False
    needs: tuple[Need, ...] = ()

    def why_not(self, endpoints: Endpoints) -> str | None:
        """Why it cannot run here, or None if it can."""
        for need in self.needs:
            if need is Need.WRK:
                if not wrk.is_installed():
                    return wrk.MISSING
            elif getattr(endpoints, need.value) is None:
                return f"the broker's {need.value} listener is off; start the broker with --{need.value} HOST:PORT"
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """A workload with one of the acks settings that apply to it: one row of the result."""

    workload: Workload
    acks: str | None = None

    @property
    def id(self) -> str:
        """The name of the row."""
        return f"{self.workload.name}/acks={self.acks}" if self.acks else self.workload.name


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, for all workloads."""

    seconds: float = 5.0
    warmup_s: float = 1.0
    partitions: int = 1
    value_bytes: int = 100
    records_max: int = 100_000_000
    bytes_max: int = 4 << 30
    connections: int | None = None
    window: int | None = None

    def requests_max(self, records: int = 1, request_bytes: int | None = None) -> int:
        """The maximum number of requests of `records` records each, within the limits on records and bytes."""
        return max(4, min(self.records_max // records, self.bytes_max // (request_bytes or records * self.value_bytes)))


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a broker listens; None for a listener that is off."""

    kafka: Address
    http: Address | None = None
    tcp: Address | None = None
    grpc: Address | None = None


@dataclass(frozen=True, slots=True)
class RowContext:
    """One run of one row, on a topic of its own."""

    workload: Workload
    acks: str | None
    endpoints: Endpoints
    cluster: Cluster
    topic: BenchTopic
    pid: int | None
    options: Options

    @property
    def http(self) -> Address:
        """The HTTP listener; a row that needs it only runs where there is one."""
        assert self.endpoints.http is not None
        return self.endpoints.http

    @property
    def tcp(self) -> Address:
        """The JSON lines listener."""
        assert self.endpoints.tcp is not None
        return self.endpoints.tcp

    @property
    def grpc(self) -> Address:
        """The gRPC listener."""
        assert self.endpoints.grpc is not None
        return self.endpoints.grpc

    @property
    def connections(self) -> int:
        """How many connections to open."""
        return self.options.connections or self.workload.connections

    @property
    def window(self) -> int:
        """How many requests each connection may have in flight."""
        return self.options.window or self.workload.window

    @property
    def value(self) -> str:
        """The value of each record."""
        return "v" * self.options.value_bytes

    def batch(self, batch_bytes: int) -> tuple[bytearray, int]:
        """A batch with as many records as fit into `batch_bytes`, or one for 0; and their number."""
        return kafka.batch_filling(batch_bytes, self.value.encode(), int(time.time() * 1000))

    def row(
        self,
        meter: Meter,
        *,
        records: int,
        requests: int | None = None,
        latency_ns: LatencyHistogram | None = None,
        seconds: float | None = None,
    ) -> Row:
        """End the measurement; the row."""
        return meter.row(
            workload=self.workload.name,
            acks=self.acks,
            records=records,
            value_bytes=self.options.value_bytes,
            requests=requests,
            latency_ns=latency_ns,
            seconds=seconds,
        )

    def pumped(self, pump: Pump, records: int, request_bytes: int | None = None) -> Row:
        """Warm up, measure, wait for the requests in flight, and check that everything acknowledged is in the log."""
        options = self.options
        requests_max = options.requests_max(records, request_bytes)
        meter = Meter(self.pid)
        with pump:
            # The warm-up must leave most of the limit for the measurement.
            warm = pump.run(options.warmup_s, requests_max // 4).answers
            meter.start()
            sample = pump.run(options.seconds, requests_max - requests_max // 4)
            row = self.row(
                meter, records=sample.answers * records, requests=sample.answers, latency_ns=sample.latency_ns
            )
            self.check_stored((warm + sample.answers + pump.drain()) * records)
        return row

    def stored(self) -> int:
        """Records in the topic, as a Kafka client sees it."""
        return sum(kafka.end_offsets(self.cluster, self.topic))

    def check_stored(self, acknowledged: int) -> None:
        """Fail when records that were acknowledged are missing."""
        stored = self.stored()
        if stored < acknowledged:
            raise BenchError(
                f"{acknowledged} records were acknowledged, but the topic holds {stored}; see the broker's log"
            )
