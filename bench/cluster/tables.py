"""The tables of a run."""

from __future__ import annotations

import statistics

from bench.cluster.run import ClusterReport
from bench.cluster.systems import SYSTEMS
from bench.results import best_rows, table
from penstock.bench.rows import Row

_TITLES = {kind.name: kind.title for kind in SYSTEMS}
_OURS = "penstock-3"
_RATIOS = {"penstock-1": "3 nodes / 1 node", "kafka-3": "Penstock / Kafka"}


def markdown(report: ClusterReport) -> str:
    """All of them."""
    about = "".join(f"- {name}: {value}\n" for name, value in report.machine.items())
    parts = ["# Several nodes\n", about, _rows(report), _idle(report), _gaps(report)]
    if report.missing:
        parts.append("".join(f"- {name}: not measured, {why}\n" for name, why in report.missing.items()))
    if report.failures:
        parts.append("## Failed\n\n" + "".join(f"- {each}\n" for each in report.failures))
    return "\n".join(part for part in parts if part)


def _rows(report: ClusterReport) -> str:
    if not report.results:
        return ""
    best = best_rows(report.results)
    systems = [name for name in _TITLES if any(system == name for system, _, _ in best)]
    rows = list(dict.fromkeys((flush, row_id) for _, flush, row_id in best))
    lines = []
    for flush, row_id in rows:
        cells = [best.get((system, flush, row_id)) for system in systems]
        lines.append([row_id, flush, *(_cell(row) for row in cells), *_ratios(best, flush, row_id, systems)])
    heads = ["row, acks=all", "flush", *(_TITLES[name] for name in systems)]
    heads += [_RATIOS[name] for name in systems if name in _RATIOS and _OURS in systems]
    return "## Rows\n\nRecords per second, and the p50 of a request.\n\n" + table(heads, lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    latency = "" if row.p50_us is None else f", {row.p50_us / 1000:.2f} ms"
    return f"{row.records_per_s:,.0f}/s{latency}"


def _ratios(best: dict[tuple[str, str, str], Row], flush: str, row_id: str, systems: list[str]) -> list[str]:
    ours = best.get((_OURS, flush, row_id))
    found = []
    for name in systems:
        if name == _OURS or _OURS not in systems:
            continue
        other = best.get((name, flush, row_id))
        found.append("-" if ours is None or other is None else f"{ours.records_per_s / other.records_per_s:.2f}")
    return found


def _idle(report: ClusterReport) -> str:
    if not report.idle:
        return ""
    lines = [
        [_TITLES[system], name, f"{cores * 100:.2f} %"]
        for system, each in report.idle.items()
        for name, cores in each.items()
    ]
    return "## Idle\n\nCPU of one core, without any load.\n\n" + table(["system", "process", "CPU"], lines)


def _gaps(report: ClusterReport) -> str:
    if not report.gaps:
        return ""
    lines = []
    for each in report.gaps:
        gaps = sorted(each.seconds)
        tenths = statistics.quantiles(gaps, n=10, method="inclusive") if len(gaps) > 1 else gaps * 9
        numbers = (gaps[0], statistics.median(gaps), tenths[8], gaps[-1])
        lines.append([_TITLES[each.system], each.how, str(len(gaps)), *(f"{number:.2f} s" for number in numbers)])
    heads = ["system", "the leader is", "times", "min", "median", "p90", "max"]
    return "## Failures of nodes\n\nHow long a producer with acks=all is interrupted.\n\n" + table(heads, lines)
