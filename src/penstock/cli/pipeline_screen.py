"""What a running pipeline shows: on a terminal one line that is written over, elsewhere a line now and then; results on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, cast

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.output import Format, Row, emit
from penstock.cli.progress import LINE_INTERVAL_S, Progress, progress

if TYPE_CHECKING:
    from penstock.spark.pipelines.registry import Run


class TerminalScreen:
    """Progress on stderr, results on stdout."""

    def __init__(self, output: Format, *, yes: bool) -> None:
        self._output = output
        self._yes = yes
        self._live = sys.stderr.isatty()
        self._drawn = False
        self._last_s = float("-inf")
        self._open = ExitStack()

    def __enter__(self) -> TerminalScreen:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self.clear()

    def show(self, run: Run) -> None:
        """The line of progress, or nothing when one was written a moment ago."""
        if self._live:
            sys.stderr.write(f"\r\x1b[K{line_of(run)}")
            sys.stderr.flush()
            self._drawn = True
        elif monotonic() - self._last_s >= LINE_INTERVAL_S:
            self._last_s = monotonic()
            print(line_of(run), file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the last line of progress as it is."""
        if self._drawn:
            sys.stderr.write("\n")
            self._drawn = False

    def progress(self, what: str, total: int | None) -> Progress:
        """A bar, or lines."""
        self._open.close()
        return self._open.enter_context(progress(what, "records", total))

    def emit(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], nothing: str) -> None:
        """Results."""
        self._open.close()
        self.clear()
        emit(cast("Sequence[Row]", rows), columns, self._output, nothing=nothing)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """For people."""
        note(text)

    def confirm(self, question: str) -> bool:
        """Ask, unless ``--yes`` was given."""
        if self._yes:
            return True
        if not sys.stdin.isatty():
            raise Failure(f"{question} Nobody is there to ask: add --yes", Exit.USAGE)
        import typer

        self.clear()
        return typer.confirm(question, err=True)


def line_of(run: Run) -> str:
    """How it goes, in one line."""
    batch = "no batch yet" if run.last_batch is None else f"batch {run.last_batch:,}"
    lag = "" if run.lag is None else f", lag {run.lag:,}"
    return f"{run.name}: {batch}, {run.rows_per_second:,.0f} rows/s{lag}, {run.rows:,} rows"
