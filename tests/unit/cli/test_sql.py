import csv
import importlib.util
import io
import json
import os
import signal
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Never

import pytest

from penstock.cli import main, sql, sql_shell
from penstock.cli.failures import Exit, Failure
from penstock.cli.sql import names_there, range_options
from penstock.cli.sql_rows import RowFormat, plain, write_rows
from penstock.cli.sql_shell import parts_of, script_of, shell

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        (" SELECT 1 ;\n\nSELECT ';' ; -- ; no more\n", ["SELECT 1", "SELECT ';'"]),
        (";;", []),
        ("-- nothing", []),
        ("SELECT `a;b`", ["SELECT `a;b`"]),
        ("\\d", ["\\d"]),
        ("\\d\nSELECT 1; \\d it's\n\\d `a;b`\nSELECT 2", ["\\d", "SELECT 1", "\\d it's", "\\d `a;b`", "SELECT 2"]),
        ("SELECT 1\n\\d x\nFROM x;", ["\\d x", "SELECT 1\nFROM x"]),
        ("SELECT '\n\\d\n', r'\\d+' -- \\d\n", ["SELECT '\n\\d\n', r'\\d+' -- \\d"]),
        ("SELECT '\n\\d", ["SELECT '\n\\d"]),
        ("SELECT 1; SELECT\n\\q\n2; SELECT 3", ["SELECT 1"]),
        ("help\nSELECT 1", ["\\?", "SELECT 1"]),
        ("Help;\nSELECT 1;HELP ;", ["\\?", "SELECT 1", "\\?"]),
        ("help; SELECT 1", ["\\?", "SELECT 1"]),
        ("SELECT 1;\nexit\nSELECT 2", ["SELECT 1"]),
        ("SELECT 1; Quit; SELECT 2", ["SELECT 1"]),
        ("-- so\nEXIT;", []),
        ("SELECT 1 AS\nexit;", ["SELECT 1 AS\nexit"]),
        ("SELECT 1 AS\n\\d\nhelp", ["\\d", "SELECT 1 AS\nhelp"]),
        ("SELECT '\nexit\n'", ["SELECT '\nexit\n'"]),
        ("SELECT help FROM quit", ["SELECT help FROM quit"]),
    ],
)
def test_a_text_holds_statements_and_commands(text, statements) -> None:
    assert script_of(text) == statements


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1;", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1; -- so", True),
    ],
)
def test_a_statement_goes_to_its_semicolon(text, complete) -> None:
    assert (not parts_of(text)[1]) is complete


def test_the_last_hour_begins_an_hour_ago_and_may_be_empty() -> None:
    options = range_options(None, None, "1h", NOW_MS)
    assert options == {
        "startingTimestamp": str(NOW_MS - 3_600_000),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def test_a_moment_to_read_from_and_one_to_read_to() -> None:
    options = range_options("2026-01-31T12:00:00Z", "2026-02-01T00:00:00Z", None, NOW_MS)
    assert options["startingTimestamp"] == "1769860800000"
    assert options["endingTimestamp"] == "1769904000000"


def test_from_earliest_is_what_is_read_anyway() -> None:
    assert range_options("earliest", None, None, NOW_MS) == {}


@pytest.mark.parametrize(
    "arguments",
    [("earliest", None, "1h"), ("latest", None, None), ("42", None, None), (None, None, "soon"), (None, "x", None)],
)
def test_a_range_that_makes_no_sense_is_refused(arguments) -> None:
    with pytest.raises(Failure) as refused:
        range_options(*arguments, now_ms=NOW_MS)
    assert refused.value.code is Exit.USAGE


def test_names_that_sql_cannot_read_are_shown_in_backticks() -> None:
    names = [name for name, _ in names_there(["orders", "dlq.orders", "a-b"])]
    assert names[:3] == ["orders", "`dlq.orders`", "`a-b`"]
    assert "penstock_groups" in names


ROWS = [(1, "one", None), (2, "two\nlines", 2.5)]
COLUMNS = ["n", "text", "x"]


def written(capsys, form, rows_max=10, rows=ROWS):
    write_rows(COLUMNS, iter(rows), form, rows_max)
    return capsys.readouterr()


def test_rows_as_one_json_document(capsys) -> None:
    assert json.loads(written(capsys, RowFormat.JSON).out) == [
        {"n": 1, "text": "one", "x": None},
        {"n": 2, "text": "two\nlines", "x": 2.5},
    ]


def test_columns_of_the_same_name_are_all_in_a_json_object(capsys) -> None:
    write_rows(["a", "a", "a_2", "a"], [(1, 2, 3, 4)], RowFormat.NDJSON, None)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "a_3": 2, "a_2": 3, "a_4": 4}


def test_no_rows_are_an_empty_document(capsys) -> None:
    assert json.loads(written(capsys, RowFormat.JSON, rows=[]).out) == []


def test_rows_as_json_lines(capsys) -> None:
    assert [json.loads(line)["n"] for line in written(capsys, RowFormat.NDJSON).out.splitlines()] == [1, 2]


def test_rows_as_csv_can_be_read_back(capsys) -> None:
    assert list(csv.reader(io.StringIO(written(capsys, RowFormat.CSV).out))) == [
        ["n", "text", "x"],
        ["1", "one", ""],
        ["2", "two\nlines", "2.5"],
    ]


def test_a_table_says_when_there_is_more(capsys) -> None:
    shown = written(capsys, RowFormat.TABLE, rows_max=1)
    assert "one" in shown.out
    assert "two" not in shown.out
    assert "Showing the first 1 rows; use --limit for more" in shown.err


def test_a_table_keeps_a_row_in_a_line_and_numbers_without_commas(capsys) -> None:
    shown = written(capsys, RowFormat.TABLE, rows=[(1_234_567, "two\nlines", None)])
    assert "1234567" in shown.out
    assert "two\\nlines" in shown.out
    assert "1 row" in shown.err


def test_other_forms_are_not_cut_at_the_limit(capsys) -> None:
    assert len(written(capsys, RowFormat.NDJSON, rows_max=1).out.splitlines()) == 2


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
        (date(2026, 1, 31), "2026-01-31"),
        (Decimal("0.10"), "0.10"),
        (b"text", "text"),
        (b"\xff", "/w=="),
        (bytearray(b"text"), "text"),
        (timedelta(seconds=1.5), 1.5),
        ({1: [b"a"]}, {"1": ["a"]}),
        (True, True),
    ],
)
def test_values_have_a_form_in_json(value, as_json) -> None:
    found = plain(value)
    if isinstance(value, datetime):
        assert datetime.fromisoformat(found) == value
    else:
        assert found == as_json


def at_prompt(monkeypatch, tmp_path, lines, run) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    given = iter(lines)

    def read(_prompt):
        line = next(given, EOFError)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    shell(run)


def test_a_statement_at_the_prompt_may_go_over_lines(monkeypatch, tmp_path) -> None:
    ran = []
    at_prompt(monkeypatch, tmp_path, ["SELECT 1", "", "FROM x; SELECT 2;", "\\q", "SELECT 3;"], ran.append)
    assert ran == ["SELECT 1\n\nFROM x", "SELECT 2"]


def test_a_statement_that_was_begun_by_mistake_keeps_nobody_at_the_prompt(monkeypatch, tmp_path) -> None:
    ran = []
    at_prompt(monkeypatch, tmp_path, ["SELECT '", "\\q", "SELECT 3;"], ran.append)
    assert ran == []


@pytest.mark.parametrize("word", ["exit", "quit;", "EXIT", " Quit ; "])
def test_words_leave_the_prompt_and_help_spoils_no_statement(word, monkeypatch, tmp_path, capsys) -> None:
    ran = []
    at_prompt(monkeypatch, tmp_path, ["help", "SELECT 1;", "HELP;", word, "SELECT 3;"], ran.append)
    assert ran == ["SELECT 1"]
    assert capsys.readouterr().out.count("show this help") == 2


def test_the_prompt_survives_what_fails_and_leaves_out_what_was_to_follow_it(monkeypatch, tmp_path, capsys) -> None:
    ran = []

    def run(statement) -> None:
        ran.append(statement)
        if statement == "bad":
            raise Failure("it is bad")

    at_prompt(monkeypatch, tmp_path, ["bad; after;", "\\nonsense", "good;"], run)
    assert ran == ["bad", "good"]
    shown = capsys.readouterr().err
    assert "error: it is bad" in shown
    assert "Unknown command \\nonsense" in shown


def test_an_interrupt_at_the_prompt_drops_the_statement(monkeypatch, tmp_path) -> None:
    ran = []
    at_prompt(monkeypatch, tmp_path, ["SELECT 1", KeyboardInterrupt, "SELECT 2;"], ran.append)
    assert ran == ["SELECT 2"]


def in_java(act):
    """Call it as py4j would, which is how a wait for Java is known."""
    exec("def call(act):\n    return act()", module := {"__name__": "py4j.clientserver"})
    return module["call"](act)


@pytest.fixture
def handler_of_pyspark():
    """Put in place when a session is made; called while a statement runs, it breaks the connection to Java."""
    called = []
    before = signal.signal(signal.SIGINT, lambda *_: called.append("reentrant call"))
    yield called
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_cancels_the_statement_and_leaves_the_connection_to_java_alone(
    monkeypatch, tmp_path, capsys, handler_of_pyspark
) -> None:
    cancelled = threading.Event()
    monkeypatch.setattr(sql_shell, "_canceller", lambda: cancelled.set)
    ran = []

    def wait_for_the_job() -> Never:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(30)
        ran.append("the answer was read")
        raise Failure("Job 0 cancelled as part of cancellation of all jobs")

    def run(statement) -> None:
        ran.append(statement)
        if statement == "long":
            in_java(wait_for_the_job)

    at_prompt(monkeypatch, tmp_path, ["long; after;", "next;"], run)
    assert ran == ["long", "the answer was read", "next"]
    assert capsys.readouterr().err.splitlines()[1:] == ["Interrupted"]
    assert handler_of_pyspark == []


def test_an_interrupt_ends_what_does_not_wait_for_java_at_once(
    monkeypatch, tmp_path, capsys, handler_of_pyspark
) -> None:
    ran = []

    def run(statement) -> None:
        if statement == "long":
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(30)
        ran.append(statement)

    at_prompt(monkeypatch, tmp_path, ["long;", "next;"], run)
    assert ran == ["next"]
    assert capsys.readouterr().err.splitlines()[1:] == ["Interrupted"]
    os.kill(os.getpid(), signal.SIGINT)
    assert handler_of_pyspark, "outside of the prompt the handler is as it was"


def test_the_prompt_lists_and_describes(monkeypatch, tmp_path, capsys) -> None:
    ran = []
    at_prompt(monkeypatch, tmp_path, ["\\d", "\\d dlq.orders", "\\d `a-b`", "\\?"], ran.append)
    assert ran == ["SHOW TABLES", "DESCRIBE `dlq.orders`", "DESCRIBE `a-b`"]
    assert "list the columns" in capsys.readouterr().out


def test_a_command_inside_of_a_statement_is_obeyed_at_once_and_the_statement_goes_on(
    monkeypatch, tmp_path, capsys
) -> None:
    ran = []
    lines = ["SELECT", "\\d orders", "\\nonsense", "x FROM orders; \\d", "SELECT '", "\\d", "';"]
    at_prompt(monkeypatch, tmp_path, lines, ran.append)
    assert ran == ["DESCRIBE `orders`", "SELECT\nx FROM orders", "SHOW TABLES", "SELECT '\n\\d\n'"]
    assert "Unknown command \\nonsense" in capsys.readouterr().err


class NoSpark:
    """Stands where a session, or its views, would."""

    def __init__(self, *_, **__) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def answered(monkeypatch, penstock_broker):
    """What is asked of Spark, by a command that runs without one."""
    asked = []
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", str(penstock_broker.bootstrap))
    monkeypatch.setattr(sql, "_started", NoSpark)
    monkeypatch.setattr("penstock.spark.views.Views", NoSpark)
    monkeypatch.setattr(sql, "answer", lambda _spark, _views, statement, *_: asked.append(statement))
    return asked


def test_commands_on_standard_input_are_obeyed_as_at_the_prompt(monkeypatch, capsys, answered) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\\d\nSELECT 1; SELECT 2\n\\d orders\n\\?\n\\q\nSELECT 3;"))
    assert main.run(["sql"]) == Exit.OK
    assert answered == ["SHOW TABLES", "SELECT 1", "DESCRIBE `orders`"]
    assert "list the columns" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "helps"), [("exit\nSELECT 1;", 0), ("help\n", 1), ("help;\nQUIT;\nSELECT 1", 1)])
def test_words_on_standard_input_that_need_no_spark_start_none(text, helps, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main.run(["sql", "--bootstrap", "127.0.0.1:1"]) == Exit.OK
    shown = capsys.readouterr()
    assert (shown.out.count("show this help"), shown.err) == (helps, "")


def test_a_command_may_stand_where_a_query_is_given(capsys, answered) -> None:
    assert main.run(["sql", "\\d orders"]) == Exit.OK
    assert answered == ["DESCRIBE `orders`"]
    assert main.run(["sql", "\\nonsense"]) == Exit.USAGE
    assert "Unknown command \\nonsense" in capsys.readouterr().err


def test_a_broker_that_cannot_be_reached_is_told_before_spark_is_started(capsys) -> None:
    code = main.run(["sql", "SELECT 1", "--bootstrap", "127.0.0.1:1", "--request-timeout", "0.5"])
    shown = capsys.readouterr().err
    assert code == Exit.UNREACHABLE
    assert "starting Spark" not in shown


def test_a_missing_extra_is_told_before_spark_is_said_to_start(monkeypatch, capsys) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(Failure, match="PySpark is not installed: pip install") as raised, sql._started("local[1]", {}):
        pass
    assert raised.value.code == Exit.USAGE
    assert capsys.readouterr().err == ""


def test_an_empty_query_is_wrong_usage(capsys) -> None:
    assert main.run(["sql", " ; "]) == Exit.USAGE
