"""Results on stdout: a table for people, a JSON document or a JSON line per row for programs.

A row is a dict; its keys are the JSON names and, with blanks for underscores, the table's headings. Numbers are
grouped in tables only. A table that goes into a file or a pipe has no colours and no width limit, so nothing is cut.
What may have no end (records, batches) is printed by :class:`StreamedTable`, a page at a time.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import msgspec

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


def picked(item: object, *attributes: str, **renamed: str) -> Row:
    """A row with these attributes of an item; ``heading="attribute"`` renames one."""
    names = {**dict(zip(attributes, attributes, strict=True)), **renamed}
    return {heading: getattr(item, attribute) for heading, attribute in names.items()}


def emit_each(rows: Sequence[Row], output: Format, show: Callable[[Row], None]) -> None:
    """Print rows that are not lines of one table: for people, ``show`` prints each of them."""
    if output is Format.JSON:
        emit_document(rows)
        return
    for row in rows:
        if output is Format.NDJSON:
            sys.stdout.write(to_json(row) + "\n")
        else:
            show(row)


def emit_one(row: "Row | msgspec.Struct", output: Format) -> None:
    """Print one object for programs: a document, or a line. The command prints the table for people itself."""
    if output is Format.JSON:
        emit_document(row)
    else:
        sys.stdout.write(to_json(row) + "\n")


def emit_document(document: "Sequence[Row] | Row | msgspec.Struct") -> None:
    """Print one JSON document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def stream_json(pages: Iterable[Iterable[Row]], output: Format) -> None:
    """Print rows as they arrive: JSON lines, or one array with a line for each row, which is closed even after Ctrl-C."""
    if output is Format.NDJSON:
        for page in pages:
            sys.stdout.writelines(to_json(row) + "\n" for row in page)
            sys.stdout.flush()
        return
    sys.stdout.write("[\n")
    # Before a row, so that its line is complete at once.
    comma = ""
    try:
        for page in pages:
            for row in page:
                sys.stdout.write(f"{comma}{to_json(row)}\n")
                comma = ","
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write("]\n")
        raise
    sys.stdout.write("]\n")


def key_and_value(key: str | None, key_encoding: str | None, value: str | None, encoding: str | None) -> Row:
    """The key and value of a record, with the encoding of those that are not text."""
    return {
        "key": key,
        **({"key_encoding": key_encoding} if key_encoding else {}),
        "value": value,
        **({"encoding": encoding} if encoding else {}),
    }


def to_json(row: "Row | msgspec.Struct") -> str:
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
