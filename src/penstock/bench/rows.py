"""The result of a measurement: one row per workload and acks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from penstock.bench.histogram import LatencyHistogram
from penstock.bench.process_stats import Usage, usage_of


@dataclass(frozen=True, slots=True)
class Row:
    """One measured workload. Rates are per second; MB are 10^6 bytes of record values; None means not known."""

    workload: str
    acks: str | None
    seconds: float
    records: int
    records_per_s: float
    mb_per_s: float
    requests_per_s: float | None
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    broker_cpu_s: float | None
    broker_cpu_s_per_mb: float | None
    broker_cpu_s_per_1000_requests: float | None
    broker_cores: float | None
    broker_rss_mb: float | None
    broker_rss_anon_mb: float | None
    generator_cores: float

    @property
    def id(self) -> str:
        """The name of the row: stable, unique within a run."""
        return f"{self.workload}/acks={self.acks}" if self.acks else self.workload


class Meter:
    """Reads the CPU time of the broker and of this process at the start and the end of a measurement.

    A load generator that is a child of this process is counted as this process after it has ended.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._before: Usage | None = None
        self._cpu_before = 0.0
        self._wall_before = 0.0

    def start(self) -> None:
        """Start the measurement."""
        self._before = usage_of(self._pid) if self._pid else None
        self._cpu_before = _own_cpu_s()
        self._wall_before = time.perf_counter()

    def row(
        self,
        *,
        workload: str,
        acks: str | None,
        records: int,
        value_bytes: int,
        requests: int | None = None,
        latency_ns: LatencyHistogram | None = None,
        seconds: float | None = None,
    ) -> Row:
        """End the measurement. `seconds` is its length if another program measured it."""
        wall_s = seconds or time.perf_counter() - self._wall_before
        generator_s = _own_cpu_s() - self._cpu_before
        after = usage_of(self._pid) if self._pid else None
        cpu_s = after.cpu_s - self._before.cpu_s if after and self._before else None
        mb = records * value_bytes / 1e6
        return Row(
            workload=workload,
            acks=acks,
            seconds=wall_s,
            records=records,
            records_per_s=records / wall_s,
            mb_per_s=mb / wall_s,
            requests_per_s=requests / wall_s if requests is not None else None,
            p50_us=_percentile_us(latency_ns, 50),
            p99_us=_percentile_us(latency_ns, 99),
            p999_us=_percentile_us(latency_ns, 99.9),
            broker_cpu_s=cpu_s,
            broker_cpu_s_per_mb=cpu_s / mb if cpu_s is not None and mb else None,
            broker_cpu_s_per_1000_requests=cpu_s * 1000 / requests if cpu_s is not None and requests else None,
            broker_cores=cpu_s / wall_s if cpu_s is not None else None,
            broker_rss_mb=after.rss_bytes / 1e6 if after else None,
            broker_rss_anon_mb=after.rss_anon_bytes / 1e6 if after else None,
            generator_cores=generator_s / wall_s,
        )


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _percentile_us(latency_ns: LatencyHistogram | None, percent: float) -> float | None:
    value = latency_ns.percentile(percent) if latency_ns else None
    return value / 1000 if value is not None else None
