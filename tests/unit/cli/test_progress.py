"""Progress in a log: what its lines say, and when there are any. A wait, on a terminal."""

import os
import pty
from contextlib import suppress
from typing import Never

import pytest

from penstock.cli import progress as module
from penstock.cli.progress import progress, waiting


@pytest.fixture
def clock(monkeypatch):
    """Goes when it is told to."""
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    return now


def test_the_last_line_is_where_a_long_run_ended(clock, capsys) -> None:
    with progress("replaying", "records", 10) as bar:
        clock[0] = 20.0
        bar.advance(5, "from the lake")
        clock[0] = 22.5
        bar.advance(5, "from the broker")
    assert capsys.readouterr().err.splitlines() == [
        "5 of 10 records from the lake",
        "10 of 10 records, 2/s from the broker",
    ]


def test_the_rate_does_not_count_what_came_before_the_first_step(clock, capsys) -> None:
    with progress("sending", "records") as bar:
        clock[0] = 9.0
        bar.advance(1)
        clock[0] = 11.0
        bar.advance(2000)
    assert capsys.readouterr().err == "2,001 records, 1,000/s\n"


def test_a_short_run_says_nothing(clock, capsys) -> None:
    with progress("sending", "records") as bar:
        clock[0] = 9.0
        bar.advance(10)
    assert capsys.readouterr().err == ""


def test_a_long_run_that_fails_says_how_far_it_came(clock, capsys) -> None:
    def fail() -> Never:
        with progress("sending", "bytes") as bar:
            clock[0] = 10.0
            bar.advance(1)
            bar.advance(1)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert capsys.readouterr().err.splitlines() == ["1 bytes", "2 bytes"]


def test_a_wait_is_shown_on_a_terminal_and_cleared_at_its_end(monkeypatch) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb", buffering=0) as screen:
        with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patched:
            patched.setattr("sys.stderr", stderr)
            patched.setattr(module, "monotonic", lambda: 0.0)
            patched.setattr(module, "SECOND_S", 3_600.0)
            with waiting("starting Spark"):
                pass
        shown = b""
        # A terminal that its program has closed ends with an error.
        with suppress(OSError):
            while part := screen.read(1_000):
                shown += part
    assert shown == b"\r\x1b[Kstarting Spark... 0 s\r\x1b[K"


def test_a_wait_is_not_shown_in_a_log(clock, capsys) -> None:
    with waiting("starting Spark"):
        pass
    assert capsys.readouterr().err == ""
