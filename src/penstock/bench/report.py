"""Rows for people and for programs, and ratios between systems.

Invariant: a ratio is above 1 when the system is better than the base, whether more is better (rates) or less is (times, CPU).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from penstock.bench.rows import Row


def as_json(rows: Sequence[Row], about: dict[str, str | int | float | None]) -> str:
    """Every number of every row, with what was measured."""
    return msgspec.json.format(msgspec.json.encode({"about": about, "rows": rows}), indent=2).decode()


def as_table(rows: Sequence[Row], title: str) -> Table:
    """A table for a terminal."""
    table = Table(title=title, caption="MB are 10^6 bytes of record values; 'load' is this tool's own use of cores")
    for heading in ("workload", "acks"):
        table.add_column(heading, no_wrap=True)
    headings = (
        "records/s",
        "MB/s",
        "requests/s",
        "p50",
        "p99",
        "p99.9",
        "CPU s/GB",
        "CPU s/M req",
        "cores",
        "load",
        "RSS MB",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.workload,
            row.acks or "",
            number(row.records_per_s),
            number(row.mb_per_s),
            number(row.requests_per_s),
            duration(row.p50_us),
            duration(row.p99_us),
            duration(row.p999_us),
            number(_times(row.broker_cpu_s_per_mb, 1000)),
            number(_times(row.broker_cpu_s_per_1000_requests, 1000)),
            number(row.broker_cores),
            number(row.generator_cores),
            number(row.broker_rss_mb),
        )
    return table


def _times(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None else None


def number(value: float | None) -> str:
    """Three digits that matter, with k and M for large ones."""
    if value is None:
        return "-"
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{_three_digits(value / limit)} {suffix}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def duration(value_us: float | None) -> str:
    """Microseconds or milliseconds, whichever reads better."""
    if value_us is None:
        return "-"
    return f"{_three_digits(value_us)} us" if value_us < 1000 else f"{_three_digits(value_us / 1000)} ms"


def ratio(value: float | None, base: float | None, *, more_is_better: bool) -> float | None:
    """How many times better `value` is than `base`; None when it cannot be said."""
    if value is None or base is None or value <= 0 or base <= 0:
        return None
    return value / base if more_is_better else base / value
