"""Results on stdout: a table for people, a JSON document or a JSON line per row for programs.

A row is a dict; its keys are the JSON names and, with blanks for underscores, the table's headings. Numbers are
grouped in tables only. A table that goes into a file or a pipe has no colours and no width limit, so nothing is cut.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
Row = Mapping[str, Value]

WIDTH_WITHOUT_TERMINAL = 100_000


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


def emit(rows: Iterable[Row], columns: Sequence[str], output: Format, *, nothing: str = "") -> None:
    """Print rows. ``columns`` are the table's; the JSON has all there is. ``nothing`` is said of an empty table, on stderr."""
    listed = list(rows)
    if output is Format.JSON:
        emit_document(listed)
    elif output is Format.NDJSON:
        for row in listed:
            sys.stdout.write(to_json(row) + "\n")
    elif listed:
        print_table(listed, columns)
    elif nothing:
        print(nothing, file=sys.stderr)


def emit_document(document: Value | Sequence[Row] | Row) -> None:
    """Print one JSON document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def to_json(row: Row) -> str:
    """One row as one line."""
    import msgspec

    return msgspec.json.encode(row).decode()


def print_table(rows: Sequence[Row], columns: Sequence[str], title: str | None = None) -> None:
    """Rows under headings; numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(as_text(row.get(column))) for column in columns))
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    Console(file=sys.stdout, width=width, highlight=False, soft_wrap=width is not None).print(table)


def as_text(value: Value) -> str:
    """A value in a table's cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={as_text(each)}" for key, each in value.items())
    return ",".join(str(each) for each in value)
