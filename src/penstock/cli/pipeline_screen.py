"""What a running pipeline shows: on a terminal one line that is updated, elsewhere a line from time to time; results on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar, cast

from penstock.cli.failures import Exit, Failure, complain, note
from penstock.cli.output import Format, Row, emit
from penstock.cli.progress import LINE_INTERVAL_S, ProgressReporter, progress
from penstock.cli.stderr import say_at_once, stderr_into

if TYPE_CHECKING:
    from penstock.spark.pipelines.registry import Run

S = TypeVar("S")
T = TypeVar("T")

LOG_LINES: Final = 20


class SparkLog:
    """Collects what Java and the workers would write on the terminal: traces of errors that are shown there in a sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = path.stat().st_size if path.exists() else 0

    def around(self, make: Callable[[S], T]) -> Callable[[S], T]:
        """Make a session whose processes write here; show the end of it if the session does not start."""

        def made(settings: S) -> T:
            try:
                with self._path.open("ab") as sink, stderr_into(sink.fileno()):
                    return make(settings)
            except Exception:
                for line in self._said().splitlines()[-LOG_LINES:]:
                    complain(line)
                raise

        return made

    def point_out(self) -> None:
        """After a failure, show where the log is."""
        if self._said():
            note(f"The output of Spark is in {self._path}")

    def close(self) -> None:
        """Remove the file if it is empty."""
        if self._path.exists() and not self._path.stat().st_size:
            self._path.unlink()

    def _said(self) -> str:
        if not self._path.exists():
            return ""
        return self._path.read_bytes()[self._begin :].decode(errors="replace")


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
        """Show the line of progress, unless one was written a moment ago."""
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

    def progress(self, what: str, total: int | None) -> ProgressReporter:
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

    def stopping(self) -> None:
        """Confirm Ctrl-C, since the end may take a while."""
        say_at_once("\nstopping..." if self._drawn else "stopping...")
        self._drawn = False

    def need_answer(self) -> None:
        """Refuse to start if it will have to ask and there is no terminal."""
        if not self._yes and not sys.stdin.isatty():
            raise Failure("Cannot ask for confirmation without a terminal: add --yes", Exit.USAGE)

    def confirm(self, question: str) -> bool:
        """Ask, unless ``--yes`` was given."""
        if self._yes:
            return True
        if not sys.stdin.isatty():
            raise Failure(f"{question} Cannot ask without a terminal: add --yes", Exit.USAGE)
        import typer

        self.clear()
        return typer.confirm(question, err=True)


def line_of(run: Run) -> str:
    """The progress in one line."""
    batch = "no batch yet" if run.last_batch is None else f"batch {run.last_batch:,}"
    waiting = sum(query.batch_id is None for query in run.queries)
    if 0 < waiting < len(run.queries):
        # A query without input, such as one for bad values, may never have a batch.
        batch = f"{waiting} of {len(run.queries)} queries without a batch yet"
    lag = "" if run.lag is None else f", lag {run.lag:,}"
    return f"{run.name}: {batch}, {run.rows_per_second:,.0f} rows/s{lag}, {rows_read(run)}"


def rows_read(run: Run) -> str:
    """How many, as a phrase."""
    return f"{run.rows:,} row{'' if run.rows == 1 else 's'} read"
