"""Progress of a long command on stderr: a bar on a terminal, a line from time to time elsewhere, nothing if it is quick."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

LINE_INTERVAL_S = 10.0
BAR_INTERVAL_S = 0.1
SECOND_S = 1.0
CLEAR_LINE = "\r\x1b[K"


class ProgressReporter(Protocol):
    """Where a command reports what it has done."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Report that ``amount`` more is done; ``note`` describes the current step."""
        ...


class _NoProgress:
    def advance(self, amount: int = 1, note: str = "") -> None:
        pass


class _ProgressLog:
    """For a log file: a line every ten seconds, so that a long run is not silent and a short one is.

    The rate is measured from the first step: what came before it, such as the start of Spark, does not count.
    """

    def __init__(self, unit: str, total: int | None) -> None:
        self._unit = unit
        self._total = total
        self._done = self._reported = 0
        self._last = monotonic()
        self._first: tuple[float, int] | None = None
        self._note = ""

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        self._note = note
        now = monotonic()
        if self._first is None:
            self._first = (now, self._done)
        if now - self._last >= LINE_INTERVAL_S:
            self._report(now)

    def finish(self) -> None:
        """Report the final state, if anything was reported before."""
        if self._reported and self._reported < self._done:
            self._report(monotonic())

    def _report(self, now: float) -> None:
        assert self._first is not None, "nothing is reported before the first step"
        self._last, self._reported = now, self._done
        total = f" of {self._total:,}" if self._total else ""
        began, before = self._first
        rate = f", {(self._done - before) / (now - began):,.0f}/s" if now > began else ""
        print(f"{self._done:,}{total} {self._unit}{rate} {self._note}".rstrip(), file=sys.stderr)


@contextmanager
def progress(
    what: str, unit: str, total: int | None = None, *, shown: bool | None = None
) -> Iterator[ProgressReporter]:
    """Show progress while the block runs. ``shown``: as the user said; None: a bar on a terminal, lines elsewhere."""
    if shown is False:
        yield _NoProgress()
    elif shown or sys.stderr.isatty():
        with _bar(what, unit, total) as bar:
            yield bar
    else:
        lines = _ProgressLog(unit, total)
        try:
            yield lines
        finally:
            lines.finish()


@contextmanager
def _bar(what: str, unit: str, total: int | None) -> Iterator[ProgressReporter]:
    from rich import progress as rich_progress
    from rich.console import Console

    columns: list[rich_progress.ProgressColumn] = [
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn() if unit == "bytes" else rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("" if unit == "bytes" else unit),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("{task.fields[note]}"),
    ]
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total, note="")

        class Bar:
            """Gathers small steps: a bar that is redrawn for each record would be the slowest part."""

            def __init__(self) -> None:
                self._gathered = 0
                self._due = 0.0

            def advance(self, amount: int = 1, note: str = "") -> None:
                self._gathered += amount
                now = monotonic()
                if now >= self._due:
                    shown.update(task, advance=self._gathered, note=note)
                    self._gathered = 0
                    self._due = now + BAR_INTERVAL_S

            def finish(self) -> None:
                shown.update(task, advance=self._gathered)

        bar = Bar()
        yield bar
        bar.finish()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """On a terminal, show what the command waits for and for how many seconds; clear the line at the end. Elsewhere, show nothing."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.flush()
    # A copy, because the stream itself may be redirected meanwhile.
    terminal = os.dup(sys.stderr.fileno())
    ended = threading.Event()

    def show() -> None:
        began = monotonic()
        while True:
            os.write(terminal, f"{CLEAR_LINE}{what}... {monotonic() - began:.0f} s".encode())
            if ended.wait(SECOND_S):
                return

    showing = threading.Thread(target=show, daemon=True)
    showing.start()
    try:
        yield
    finally:
        ended.set()
        showing.join()
        os.write(terminal, CLEAR_LINE.encode())
        os.close(terminal)
