"""What a side-by-side run found, and the Markdown tables made of it.

Invariant: of several rounds the best counts, for every system alike, because what disturbs a run on a shared machine only ever slows it;
all rounds are in the JSON file. A ratio above 1 means better than Kafka; one
that the spread of the rounds does not bear out is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.clients import ALL_WORKLOADS
from penstock.bench.context import Workload, WorkloadKind
from penstock.bench.report import duration, number
from penstock.bench.rows import Row

BASE = "kafka"
FLUSHES = ("os", "sync")
_BY_NAME = {workload.name: workload for workload in ALL_WORKLOADS}


@dataclass(frozen=True, slots=True)
class Result:
    """One row of one system in one round."""

    system: str
    flush: str
    round: int
    row: Row


@dataclass(frozen=True, slots=True)
class Cost:
    """What a system costs without load. None: not measured, or not applicable to this system."""

    system: str
    cold_start_s: float
    idle_rss_mb: float | None
    idle_rss_anon_mb: float | None
    connections: int | None = None
    rss_mb_with_connections: float | None = None
    rss_mb_after_load: float | None = None
    rss_anon_mb_after_load: float | None = None
    load_mb: float | None = None
    partitions: int | None = None
    create_partitions_s: float | None = None
    fill_partitions_s: float | None = None
    rss_mb_with_filled_partitions: float | None = None
    stop_with_partitions_s: float | None = None
    ready_with_partitions_s: float | None = None
    served_with_partitions_s: float | None = None
    rss_mb_with_partitions: float | None = None


@dataclass(slots=True)
class Report:
    """The contents of the result files."""

    machine: dict[str, str | int | float] = field(default_factory=dict)
    systems: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Metric:
    """Which number of a row is compared."""

    label: str
    attribute: str
    more_is_better: bool

    def of(self, row: Row) -> float | None:
        """The number."""
        value: float | None = getattr(row, self.attribute)
        return value

    def show(self, row: Row | None) -> str:
        """The number for people."""
        if row is None:
            return "-"
        value = self.of(row)
        if self.attribute.endswith("_us"):
            return duration(value)
        # Seconds per MB or per 1,000 requests are small numbers; a thousandth of them reads better, and is what the labels say.
        return number(value * 1000 if value is not None and self.attribute.startswith("broker_cpu") else value)


_RECORDS = Metric("records/s", "records_per_s", more_is_better=True)
_REQUESTS = Metric("requests/s", "requests_per_s", more_is_better=True)
_MB = Metric("MB/s", "mb_per_s", more_is_better=True)
_P50 = Metric("p50", "p50_us", more_is_better=False)
_P99 = Metric("p99", "p99_us", more_is_better=False)
_P999 = Metric("p99.9", "p999_us", more_is_better=False)
_CPU_MB = Metric("CPU ms per MB", "broker_cpu_s_per_mb", more_is_better=False)
_CPU_REQUESTS = Metric("CPU us per request", "broker_cpu_s_per_1000_requests", more_is_better=False)


def ratio(value: float | None, base: float | None, *, more_is_better: bool) -> float | None:
    """How many times better `value` is than `base`, be more better or less; None when it is not known."""
    if value is None or base is None or value <= 0 or base <= 0:
        return None
    return value / base if more_is_better else base / value


def main_metrics(workload: Workload) -> tuple[Metric, ...]:
    """What a workload is about; by the first of them the best round is chosen."""
    if workload.kind is WorkloadKind.DELIVERY:
        return (_P50, _P99)
    if workload.name == "single-1":
        return (_P50,)
    if workload.kind is WorkloadKind.PRODUCE and not workload.batch_bytes:
        return (_REQUESTS,)
    if workload.kind in (WorkloadKind.PRODUCE, WorkloadKind.FETCH):
        return (_MB,)
    return (_RECORDS,)


def best_rows(results: list[Result]) -> dict[tuple[str, str, str], Row]:
    """The best round by system, flush and row name."""
    best: dict[tuple[str, str, str], Row] = {}
    for result in results:
        key = (result.system, result.flush, result.row.id)
        metric = main_metrics(_BY_NAME[result.row.workload])[0]
        held = best.get(key)
        gain = ratio(metric.of(result.row), metric.of(held) if held else None, more_is_better=metric.more_is_better)
        if held is None or (gain is not None and gain > 1):
            best[key] = result.row
    return best


def markdown(report: Report) -> str:
    """All tables."""
    parts = ["# Side by side\n", _about(report)]
    best = best_rows(report.results)
    flushes = [flush for flush in FLUSHES if any(key[1] == flush for key in best)]
    for flush in flushes:
        title = (
            "Unsynced: acknowledged when the operating system has the record"
            if flush == "os"
            else "Synced: acknowledged when the record is on the disk"
        )
        parts.append(f"## {title}\n\n{_comparison(report, best, flush, main_metrics)}")
    if best:
        parts.append("## Broker CPU\n\nProcessor time of the broker's process.\n")
        parts += [f"### flush = {flush}\n\n{_comparison(report, best, flush, _cpu_metric)}" for flush in flushes]
        parts.append("## Latency of a request, or of a delivery\n")
        parts += [f"### flush = {flush}\n\n{_comparison(report, best, flush, _latency_metrics)}" for flush in flushes]
    if report.costs:
        parts.append(f"## Cost without load\n\n{_costs(report)}")
    if report.failures:
        parts.append("## What failed\n\n" + "".join(f"- {failure}\n" for failure in report.failures))
    return "\n".join(parts)


def _cpu_metric(workload: Workload) -> tuple[Metric, ...]:
    if workload.kind in (WorkloadKind.PRODUCE, WorkloadKind.DELIVERY) and not workload.batch_bytes:
        return (_CPU_REQUESTS,)
    return (_CPU_MB,)


def _latency_metrics(workload: Workload) -> tuple[Metric, ...]:
    return (
        (_P50, _P99, _P999)
        if workload.kind in (WorkloadKind.PRODUCE, WorkloadKind.FETCH, WorkloadKind.DELIVERY)
        else ()
    )


def _about(report: Report) -> str:
    lines = [f"- {key}: {value}\n" for key, value in report.machine.items()]
    lines.append(
        "- x Kafka: above 1 is better; with a ~ the rounds of the two overlap, or there was only one, so it may be chance\n"
    )
    lines += [f"- {name}: not measured, {reason}\n" for name, reason in report.missing.items()]
    return "".join(lines)


def _rounds_overlap(report: Report, metric: Metric, flush: str, row_id: str, system: str) -> bool:
    """Whether a system's rounds and Kafka's cover a common range, or are too few to say: then the difference may be chance."""
    ranges = []
    for name in (system, BASE):
        rows = [r.row for r in report.results if (r.system, r.flush, r.row.id) == (name, flush, row_id)]
        values = [value for row in rows if (value := metric.of(row)) is not None]
        if len(values) < 2:
            return True
        ranges.append((min(values), max(values)))
    return max(low for low, _ in ranges) <= min(high for _, high in ranges)


def _comparison(
    report: Report,
    best: dict[tuple[str, str, str], Row],
    flush: str,
    metrics_of: Callable[[Workload], tuple[Metric, ...]],
) -> str:
    """A line for each row and metric: every system's number, and how many times Kafka's that is."""
    systems = [name for name in report.systems if any(key[0] == name and key[1] == flush for key in best)]
    order = list(_BY_NAME)
    row_ids = sorted(
        {key[2] for key in best if key[1] == flush}, key=lambda name: (order.index(name.partition("/")[0]), name)
    )
    heads = ["row", "what"]
    for name in systems:
        heads.append(report.systems[name])
        if name != BASE and BASE in systems:
            heads.append("x Kafka")
    lines = []
    for row_id in row_ids:
        base = best.get((BASE, flush, row_id))
        metrics = metrics_of(_BY_NAME[row_id.partition("/")[0]])
        for metric in metrics:
            cells = [row_id, metric.label]
            for name in systems:
                row = best.get((name, flush, row_id))
                cells.append(metric.show(row))
                if name != BASE and BASE in systems:
                    times = ratio(
                        metric.of(row) if row else None,
                        metric.of(base) if base else None,
                        more_is_better=metric.more_is_better,
                    )
                    doubt = " ~" if _rounds_overlap(report, metric, flush, row_id, name) else ""
                    cells.append(f"{times:.2f}{doubt}" if times is not None else "-")
            lines.append(cells)
    return table(heads, lines)


def table(heads: list[str], lines: list[list[str]]) -> str:
    """A Markdown table; the first two columns are words."""
    rule = ["---" if index < 2 else "---:" for index in range(len(heads))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *lines))


def _costs(report: Report) -> str:
    heads = [
        "system",
        "cold start",
        "idle RSS (anonymous), MB",
        "RSS with idle connections, MB",
        "RSS (anonymous) after a load, MB",
        "partitions",
        "created in",
        "created and a record in each in",
        "RSS then, MB",
        "stopped in",
        "ready again in",
        "all served again in",
        "RSS then, MB",
    ]
    lines = []
    for cost in report.costs:
        connections = f"{number(cost.rss_mb_with_connections)} with {cost.connections}" if cost.connections else "-"
        load = (
            f"{number(cost.rss_mb_after_load)} ({number(cost.rss_anon_mb_after_load)}) after {number(cost.load_mb)} MB"
        )
        lines.append(
            [
                report.systems.get(cost.system, cost.system),
                _seconds(cost.cold_start_s),
                f"{number(cost.idle_rss_mb)} ({number(cost.idle_rss_anon_mb)})",
                connections,
                load if cost.load_mb else "-",
                f"{cost.partitions:,}" if cost.partitions else "-",
                _seconds(cost.create_partitions_s),
                _seconds(cost.fill_partitions_s),
                number(cost.rss_mb_with_filled_partitions),
                _seconds(cost.stop_with_partitions_s),
                _seconds(cost.ready_with_partitions_s),
                _seconds(cost.served_with_partitions_s),
                number(cost.rss_mb_with_partitions),
            ]
        )
    return table(heads, lines)


def _seconds(value: float | None) -> str:
    return f"{value:.2f} s" if value is not None else "-"
