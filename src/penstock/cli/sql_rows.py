"""The result of a query on stdout: a table for people, JSON, JSON lines or CSV for programs.

A table shows a limited number of rows, and on a terminal cuts long cells; in a pipe cells are complete. In the other formats
all rows are written, as they come.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Final

from penstock.cli.failures import note
from penstock.cli.output import WIDTH_WITHOUT_TERMINAL, Value, one_line, to_json
from penstock.text import text_of

CELL_CHARS_MAX: Final = 200
"""On a terminal. Longer values are cut."""


class RowFormat(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], form: RowFormat, rows_max: int | None) -> None:
    """Print the rows; ``rows_max`` limits a table."""
    if form is RowFormat.TABLE:
        _write_table(columns, rows, rows_max)
    elif form is RowFormat.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_csv_cell(value) for value in row] for row in rows)
    elif form is RowFormat.NDJSON:
        for line in _lines(columns, rows):
            sys.stdout.write(line + "\n")
    else:
        separator = "[\n"
        for line in _lines(columns, rows):
            sys.stdout.write(separator + "  " + line)
            separator = ",\n"
        sys.stdout.write("\n]\n" if separator == ",\n" else "[]\n")
    sys.stdout.flush()


def plain(value: object) -> Value:
    """A value from Spark as JSON: times as ISO text with their zone, decimals as text so that no digit is lost."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone().isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return text_of(bytes(value))[0]
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    fields = getattr(value, "__fields__", None)
    if fields is not None and isinstance(value, tuple):
        return {name: plain(each) for name, each in zip(fields, value, strict=True)}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)


def _lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    names = _distinct(columns)
    for row in rows:
        yield to_json({name: plain(value) for name, value in zip(names, row, strict=True)})


def _distinct(columns: Sequence[str]) -> list[str]:
    """SQL allows two columns of one name, a JSON object does not: the second ``a`` is ``a_2``."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _csv_cell(value: object) -> str:
    """As in JSON, but text without quotes and nothing for null."""
    if value is None:
        return ""
    found = plain(value)
    if isinstance(found, str):
        return found
    return _json_of(found)


def _json_of(value: Value) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _cell(value: object, *, cut: bool) -> str:
    """A cell of a table. Numbers are not grouped, unlike in other tables: they may be keys rather than counts."""
    if value is None:
        text = "-"
    elif isinstance(value, datetime):
        text = value.isoformat(" ", "milliseconds" if value.microsecond % 1000 == 0 else "microseconds")
    else:
        found = plain(value)
        text = one_line(found) if isinstance(found, str) else _json_of(found)
    return f"{text[: CELL_CHARS_MAX - 1]}…" if cut and len(text) > CELL_CHARS_MAX else text


def _write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], rows_max: int | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = list(rows if rows_max is None else islice(rows, rows_max + 1))
    more = rows_max is not None and len(shown) > rows_max
    if more:
        shown.pop()
    on_terminal = sys.stdout.isatty()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        cells = [row[number] for row in shown if row[number] is not None]
        numeric = bool(cells) and all(isinstance(cell, int | float | Decimal) for cell in cells)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        table.add_row(*(Text(_cell(value, cut=on_terminal)) for value in row))
    width = None if on_terminal else WIDTH_WITHOUT_TERMINAL
    if columns:
        Console(file=sys.stdout, width=width, highlight=False, soft_wrap=not on_terminal).print(table)
    if more:
        note(f"Showing the first {rows_max:,} rows; use --limit for more, or --output ndjson or csv for all")
    elif columns:
        note(f"{len(shown):,} row{'' if len(shown) == 1 else 's'}")
