"""Where Spark's own processes write while a pipeline runs on a terminal."""

import subprocess
import sys
from typing import Never

import pytest

from penstock.cli.failures import Failure
from penstock.cli.output import Format
from penstock.cli.pipeline_screen import SparkLog, TerminalScreen, line_of, rows_read
from penstock.spark.pipelines.registry import PipelineState, QueryStatus, Run


def saying(text) -> None:
    """A process that is started as Java is: with this one's stderr."""
    subprocess.run([sys.executable, "-c", f"import sys; sys.stderr.write({text!r})"], check=True)


def test_what_started_processes_say_is_in_the_log_and_not_on_the_terminal(tmp_path, capfd) -> None:
    log = SparkLog(tmp_path / "big.log")
    assert log.around(lambda text: saying(text) or "session")("a trace\n") == "session"
    print("ours", file=sys.stderr, flush=True)
    assert capfd.readouterr().err == "ours\n"
    assert (tmp_path / "big.log").read_text() == "a trace\n"
    log.point_out()
    log.close()
    assert capfd.readouterr().err == f"The output of Spark is in {tmp_path / 'big.log'}\n"


def test_a_stop_is_told_on_the_terminal_while_spark_starts(tmp_path, capfd) -> None:
    screen = TerminalScreen(Format.TABLE, yes=False)
    SparkLog(tmp_path / "big.log").around(lambda _: screen.stopping())(None)
    assert capfd.readouterr().err == "stopping...\n"
    assert (tmp_path / "big.log").read_text() == ""


def test_what_does_not_start_has_said_why(tmp_path, capfd) -> None:
    (tmp_path / "big.log").write_text("of an earlier run\n")

    def fail(text) -> Never:
        saying(text)
        raise RuntimeError("Java has exited")

    with pytest.raises(RuntimeError, match="Java has exited"):
        SparkLog(tmp_path / "big.log").around(fail)("no memory\n")
    assert capfd.readouterr().err == "error: no memory\n"


def test_no_empty_log_is_left_and_nothing_told_of_it(tmp_path, capfd) -> None:
    log = SparkLog(tmp_path / "big.log")
    log.around(lambda _: None)("")
    log.point_out()
    log.close()
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_has_nothing_to_do_does_not_hide_the_others() -> None:
    busy = QueryStatus(name="a", query_id="1", batch_id=3, rows=10, rows_per_second=5.0, lag=0)
    idle = QueryStatus(name="b", query_id="2")
    run = Run(name="big", kind="steps", pid=1, birth="", state=PipelineState.RUNNING, queries=[busy, idle])
    assert line_of(run) == "big: 1 of 2 queries without a batch yet, 5 rows/s, lag 0, 10 rows read"


def test_nobody_to_ask_is_told_before_the_question(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(Failure, match=r"Cannot ask .*: add --yes"):
        TerminalScreen(Format.TABLE, yes=False).need_answer()
    TerminalScreen(Format.TABLE, yes=True).need_answer()


@pytest.mark.parametrize(("rows", "phrase"), [(0, "0 rows read"), (1, "1 row read"), (1_200, "1,200 rows read")])
def test_rows_are_counted_in_plain_words(rows, phrase) -> None:
    run = Run(name="big", kind="steps", pid=1, birth="", state=PipelineState.RUNNING, done=rows)
    assert rows_read(run) == phrase
    assert line_of(run).endswith(phrase)
