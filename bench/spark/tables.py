"""The table of a run of the Spark connector beside its ceilings."""

from __future__ import annotations

from bench.results import table
from bench.spark.rows import ROWS
from bench.spark.run import SparkReport


def markdown(report: SparkReport) -> str:
    """All of it."""
    about = [f"- {key}: {value}\n" for key, value in report.machine.items()]
    about.append("- of ceiling: 1 would be a connector that costs nothing; with a ~ the rounds of the two overlap\n")
    parts = ["# The Spark connector beside its ceilings\n", "".join(about), _rates(report)]
    if report.failures:
        parts.append("## What failed\n\n" + "".join(f"- {failure}\n" for failure in report.failures))
    return "\n".join(parts)


def _rates(report: SparkReport) -> str:
    lines = []
    for row in ROWS:
        rates = {
            system: [
                one.rows / one.seconds / 1000 for one in report.results if (one.name, one.system) == (row.name, system)
            ]
            for system in ("penstock", "ceiling")
        }
        ours, ceiling = rates["penstock"], rates["ceiling"]
        if not ours or not ceiling:
            continue
        mark = " ~" if max(ours) > min(ceiling) else ""
        lines.append([row.title, f"{max(ours):,.0f}", f"{max(ceiling):,.0f}", f"{max(ours) / max(ceiling):.2f}{mark}"])
    return table(["", "Penstock, k rows/s", "ceiling, k rows/s", "of ceiling"], lines)
