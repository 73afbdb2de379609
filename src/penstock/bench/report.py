"""Rows for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.table import Table

from penstock.bench.rows import Row


def as_json(rows: Sequence[Row], about: Mapping[str, str | int | None]) -> str:
    """Every number of every row, and what was measured."""
    return msgspec.json.format(msgspec.json.encode({"about": about, "rows": rows}), indent=2).decode()


def as_json_line(row: Row) -> str:
    """Every number of one row, on one line."""
    return msgspec.json.encode(row).decode()


def as_table(rows: Sequence[Row], title: str, *, wide: bool = False) -> Table:
    """A table for a terminal: with all columns, or with those that fit into 80 characters."""
    caption = "MB: 10^6 bytes of record values; "
    caption += "load: cores that this tool used" if wide else "--wide and -o json show more"
    table = Table(title=title, caption=caption)
    for heading in ("workload", "acks"):
        table.add_column(heading, no_wrap=True)
    for heading, _, always in _COLUMNS:
        if wide or always:
            table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = (cell(row) for _, cell, always in _COLUMNS if wide or always)
        table.add_row(row.workload, row.acks or "", *cells)
    return table


_COLUMNS: tuple[tuple[str, Callable[[Row], str], bool], ...] = (
    ("records/s", lambda row: number(row.records_per_s), True),
    ("MB/s", lambda row: number(row.mb_per_s), True),
    ("requests/s", lambda row: number(row.requests_per_s), False),
    ("p50", lambda row: duration(row.p50_us), True),
    ("p99", lambda row: duration(row.p99_us), True),
    ("p99.9", lambda row: duration(row.p999_us), False),
    ("CPU s/GB", lambda row: number(_times(row.broker_cpu_s_per_mb, 1000)), True),
    ("CPU s/M req", lambda row: number(_times(row.broker_cpu_s_per_1000_requests, 1000)), False),
    ("cores", lambda row: number(row.broker_cores), False),
    ("load", lambda row: number(row.generator_cores), False),
    ("RSS MB", lambda row: number(row.broker_rss_mb), False),
)
"""Heading, cell, and whether it is in the table of 80 characters."""


def _times(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None else None


def number(value: float | None) -> str:
    """Three significant digits, with k and M for large numbers."""
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
    """A duration in microseconds or milliseconds."""
    if value_us is None:
        return "-"
    return f"{_three_digits(value_us)} us" if value_us < 1000 else f"{_three_digits(value_us / 1000)} ms"
