"""Results on stdout: a table for people, a JSON document or a JSON line per row for programs.

A row is a dict; its keys are the JSON names and, with blanks for underscores, the table's headings. Numbers are
grouped in tables only. A table that goes into a file or a pipe has no colours and no width limit, so nothing is cut.
What may have no end (records, batches) is printed by :class:`StreamedTable`, a page at a time.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
Row = Mapping[str, Value]

WIDTH_WITHOUT_TERMINAL: Final = 100_000
PAGE_ROWS: Final = 50
COLUMN_WIDTH_MAX: Final = 40
"""A longer cell is printed whole, and pushes the rest of its own line to the right."""
_GAP: Final = "  "
# A line break in a value must not break the row, nor an escape sequence reach the terminal.
_CONTROLS: Final = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


def emit(rows: Iterable[Row], columns: Sequence[str], output: Format, *, nothing: str = "") -> None:
    """Print rows. ``columns`` are the table's; the JSON has all there is. ``nothing`` is printed on stderr in place of an empty table."""
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


def picked(items: Iterable[object], columns: Mapping[str, str]) -> list[Row]:
    """A row for each item, with the attributes that ``columns`` names by their headings."""
    return [{heading: getattr(item, attribute) for heading, attribute in columns.items()} for item in items]


def emit_one(row: Row, output: Format) -> None:
    """Print one object for programs: a document, or a line. The command prints the table for people itself."""
    if output is Format.JSON:
        emit_document(row)
    else:
        sys.stdout.write(to_json(row) + "\n")


def emit_document(document: Value | Sequence[Row] | Row) -> None:
    """Print one JSON document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def to_json(row: Row) -> str:
    """One row as one line."""
    import msgspec

    return msgspec.json.encode(row).decode()


def print_table(rows: Sequence[Row], columns: Sequence[str], title: str | None = None) -> None:
    """Rows under headings; numbers are right-aligned."""
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


class StreamedTable:
    """Rows under one line of headings, printed as they come. Columns only grow, to the widest cell of a page."""

    def __init__(self, columns: Sequence[str], numbers: Collection[str] = ()) -> None:
        self._columns = columns
        self._headings = [column.replace("_", " ") for column in columns]
        self._widths = [len(heading) for heading in self._headings]
        self._to_the_right = [column in numbers for column in columns]
        self.count = 0

    def print(self, rows: Sequence[Row]) -> None:
        """Print them and flush."""
        for start in range(0, len(rows), PAGE_ROWS):
            page = [[one_line(row.get(column)) for column in self._columns] for row in rows[start : start + PAGE_ROWS]]
            for index, cells in enumerate(zip(*page, strict=True)):
                self._widths[index] = max(self._widths[index], min(max(map(len, cells)), COLUMN_WIDTH_MAX))
            if not self.count:
                sys.stdout.write(self._line(self._headings))
                sys.stdout.write(self._line(["-" * width for width in self._widths]))
            self.count += len(page)
            sys.stdout.writelines(map(self._line, page))
        sys.stdout.flush()

    def _line(self, cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, self._widths, self._to_the_right, strict=True)
        )
        return _GAP.join(padded).rstrip() + "\n"


def one_line(value: Value) -> str:
    """As :func:`as_text`, with control characters escaped."""
    return as_text(value).translate(_CONTROLS)


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
