"""The tables of a run of the gateways beside Redis.

Invariant: of several rounds the best counts, for both alike. A ratio above 1 means better than Redis; one that the spread of the rounds does
not bear out is marked.
"""

from __future__ import annotations

from bench.gateways.redis_rows import COUNTERPARTS, REDIS_BY_NAME
from bench.gateways.run import KAFKA_DELIVERY, NAMES, GatewayReport
from bench.results import FLUSHES, ratio, table
from penstock.bench.context import WorkloadKind
from penstock.bench.gateways.workloads import GATEWAY_WORKLOADS
from penstock.bench.report import duration, number
from penstock.bench.rows import Row

_LATENCY_ROWS = frozenset(
    {row.name for row in GATEWAY_WORKLOADS if row.kind is WorkloadKind.DELIVERY} | {KAFKA_DELIVERY}
)
_TITLES = {row.name: row.title for row in GATEWAY_WORKLOADS} | {
    KAFKA_DELIVERY: "Kafka protocol: produce to a long-polling fetch, 1,000 records/s"
}


def markdown(report: GatewayReport) -> str:
    """All tables."""
    about = [f"- {key}: {value}\n" for key, value in report.machine.items()]
    about.append(
        "- x Redis: above 1 is better; with a ~ the rounds of the two overlap, or there was only one, so it may be chance\n"
    )
    about += [f"- {name}: not measured, {reason}\n" for name, reason in report.missing.items()]
    parts = ["# The gateways beside Redis\n", "".join(about)]
    for flush in FLUSHES:
        if any(result.flush == flush for result in report.results):
            title = (
                "Unsynced: acknowledged when the operating system has the record"
                if flush == "os"
                else "Synced: acknowledged when the record is on the disk"
            )
            parts.append(f"## {title}\n\n{_rates(report, flush)}\n{_latencies(report, flush)}")
    parts.append("## The rows\n\n" + _legend(report))
    if report.failures:
        parts.append("## What failed\n\n" + "".join(f"- {failure}\n" for failure in report.failures))
    return "\n".join(parts)


def _rounds(report: GatewayReport, system: str, flush: str, name: str) -> list[Row]:
    wanted = (system, flush, name)
    return [one.row for one in report.results if (one.system, one.flush, one.row.workload) == wanted]


def _seen(report: GatewayReport, flush: str, *, latency: bool) -> list[str]:
    names = {one.row.workload for one in report.results if one.flush == flush and one.system == "penstock"}
    return [name for name in NAMES if name in names and (name in _LATENCY_ROWS) is latency]


def _ratio(ours: list[float], theirs: list[float], *, more_is_better: bool) -> str:
    if not ours or not theirs:
        return "-"
    best = max if more_is_better else min
    times = ratio(best(ours), best(theirs), more_is_better=more_is_better)
    if times is None:
        return "-"
    is_few = len(ours) < 2 or len(theirs) < 2
    overlaps = is_few or max(min(ours), min(theirs)) <= min(max(ours), max(theirs))
    return f"{times:.2f}{' ~' if overlaps else ''}"


def _rates(report: GatewayReport, flush: str) -> str:
    lines = []
    for name in _seen(report, flush, latency=False):
        counterpart = COUNTERPARTS[name]
        rounds, theirs = (_rounds(report, *key) for key in (("penstock", flush, name), ("redis", flush, counterpart)))
        best = max(rounds, key=lambda row: row.records_per_s)
        redis = max(theirs, key=lambda row: row.records_per_s) if theirs else None
        times = _ratio(
            [row.records_per_s for row in rounds], [row.records_per_s for row in theirs], more_is_better=True
        )
        lines.append(
            [
                name,
                number(best.records_per_s),
                _cpu(best),
                duration(best.p50_us),
                duration(best.p99_us),
                counterpart,
                number(redis.records_per_s) if redis else "-",
                _cpu(redis) if redis else "-",
                times,
            ]
        )
    heads = ["row", "records/s", "CPU us per record", "p50", "p99", "Redis", "entries/s", "CPU us per entry", "x Redis"]
    return table(heads, lines) if lines else ""


def _cpu(row: Row) -> str:
    return number(row.broker_cpu_s * 1e6 / row.records if row.broker_cpu_s is not None and row.records else None)


def _latencies(report: GatewayReport, flush: str) -> str:
    lines = []
    for name in _seen(report, flush, latency=True):
        rounds, theirs = (
            _rounds(report, *key) for key in (("penstock", flush, name), ("redis", flush, COUNTERPARTS[name]))
        )
        best = min(rounds, key=lambda row: row.p50_us or 0)
        redis = min(theirs, key=lambda row: row.p50_us or 0) if theirs else None
        ours_us, theirs_us = ([row.p50_us for row in rows if row.p50_us is not None] for rows in (rounds, theirs))
        lines.append(
            [
                name,
                duration(best.p50_us),
                duration(best.p99_us),
                duration(best.p999_us),
                _cpu(best),
                duration(redis.p50_us) if redis else "-",
                duration(redis.p99_us) if redis else "-",
                _ratio(ours_us, theirs_us, more_is_better=False),
            ]
        )
    heads = ["delivery", "p50", "p99", "p99.9", "CPU us per record", "Redis p50", "Redis p99", "p50 x Redis"]
    return table(heads, lines) if lines else ""


def _legend(report: GatewayReport) -> str:
    names = {result.row.workload for result in report.results}
    lines = [[name, _TITLES[name]] for name in NAMES if name in names]
    lines += [[name, row.title] for name, row in REDIS_BY_NAME.items() if name in names]
    return table(["row", "load"], lines)
