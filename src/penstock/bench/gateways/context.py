"""What a row of the gateways is handed: where they listen, a topic of its own, and the caller's choices."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.address import Address
from penstock.bench.admin import Admin, Topic
from penstock.bench.faults import BenchError
from penstock.bench.histogram import Histogram
from penstock.bench.rows import Meter, Row
from penstock.bench.workloads import Options


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a broker listens; None for a gateway that is off."""

    kafka: Address
    http: Address | None = None
    tcp: Address | None = None
    grpc: Address | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """One run of one row."""

    name: str
    endpoints: Endpoints
    admin: Admin
    topic: Topic
    pid: int | None
    options: Options

    @property
    def http(self) -> Address:
        """Where HTTP is; the row was chosen because it is on."""
        assert self.endpoints.http is not None
        return self.endpoints.http

    @property
    def tcp(self) -> Address:
        """Where JSON lines are."""
        assert self.endpoints.tcp is not None
        return self.endpoints.tcp

    @property
    def grpc(self) -> Address:
        """Where gRPC is."""
        assert self.endpoints.grpc is not None
        return self.endpoints.grpc

    @property
    def value(self) -> str:
        """A record's value, the same in every gateway."""
        return "v" * self.options.value_bytes

    def requests_max(self, records: int = 1) -> int:
        """How many requests of so many records stay within the bounds."""
        options = self.options
        return max(4, min(options.records_max, options.bytes_max // options.value_bytes) // records)

    def row(
        self,
        meter: Meter,
        *,
        records: int,
        requests: int | None = None,
        latency_ns: Histogram | None = None,
        seconds: float | None = None,
        acks: str | None = None,
    ) -> Row:
        """End the measured stretch."""
        return meter.row(
            workload=self.name,
            acks=acks,
            records=records,
            value_bytes=self.options.value_bytes,
            requests=requests,
            latency_ns=latency_ns,
            seconds=seconds,
        )

    def stored(self) -> int:
        """Records in the topic, as a Kafka client sees it."""
        ends = self.admin.end_offsets(self.topic)
        return sum(ends or ())

    def check_stored(self, acknowledged: int) -> None:
        """What was acknowledged must be there."""
        stored = self.stored()
        if stored < acknowledged:
            raise BenchError(
                f"{acknowledged} records were acknowledged, the topic holds {stored}: see the broker's log"
            )
