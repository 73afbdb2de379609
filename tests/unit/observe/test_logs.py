"""Log lines: one entry a record, and nothing that a client sent can look like another entry."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from penstock.observe.logs import REPEATS_MAX, JsonFormatter, RepeatLimit, TextFormatter, request_id, set_up

LOGGERS = ("penstock", "uvicorn", "asyncio")


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("penstock.kafka", logging.WARNING, __file__, 1, "%s", (text,), None)


def test_a_line_break_in_a_text_cannot_start_an_entry() -> None:
    line = TextFormatter().format(record("bad\n2026-01-01T00:00:00.000Z error   penstock: forged\x1b[31m"))
    assert all(part.startswith("    ") for part in line.split("\n")[1:])
    assert "\x1b" not in line


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record('a "quoted"\nbreak'))
    assert "\n" not in line
    assert json.loads(line)["message"] == 'a "quoted"\nbreak'


def test_what_libraries_log_has_the_same_shape(capsys: pytest.CaptureFixture[str]) -> None:
    kept = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).propagate) for name in LOGGERS}
    try:
        set_up(as_json=True, level="info")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").info("Started")
    finally:
        for name, (handlers, propagate) in kept.items():
            logging.getLogger(name).handlers[:] = handlers
            logging.getLogger(name).propagate = propagate
            logging.getLogger(name).setLevel(logging.NOTSET)
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "Invalid HTTP request received."


@pytest.fixture
def served() -> Iterator[str]:
    token = request_id.set("abc-1")
    yield "abc-1"
    request_id.reset(token)


def test_a_line_of_a_request_carries_its_id(served: str) -> None:
    assert json.loads(JsonFormatter().format(record("hello")))["request_id"] == served
    assert TextFormatter().format(record("hello")).endswith("penstock.kafka: hello (request abc-1)")
    assert TextFormatter().format(record("request abc-1 failed")).endswith(": request abc-1 failed")


def test_one_line_can_say_its_request_itself() -> None:
    said = record("hello")
    said.request_id = "abc-2"
    assert json.loads(JsonFormatter().format(said))["request_id"] == "abc-2"


def test_a_line_without_a_request_has_no_id() -> None:
    assert "request_id" not in json.loads(JsonFormatter().format(record("hello")))
    assert TextFormatter().format(record("hello")).endswith(": hello")


def test_an_error_is_told_with_its_trace() -> None:
    try:
        raise ValueError("no\ngood")
    except ValueError:
        failed = logging.LogRecord("penstock", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["message"], entry["level"], entry["error"]) == ("it failed", "error", "ValueError: no\ngood")
    assert "Traceback" in entry["trace"]


def lines(limit: RepeatLimit, count: int, *, name: str = "penstock.kafka", at: float = 1000.0) -> list[str]:
    passed = []
    for number in range(count):
        made = logging.LogRecord(name, logging.WARNING, __file__, 1, "closing %s: 100%%", (number,), None)
        made.created = at
        if limit.filter(made):
            passed.append(made.getMessage())
    return passed


def test_lines_that_clients_cause_are_limited_and_counted() -> None:
    limit = RepeatLimit()
    passed = lines(limit, 100)
    assert len(passed) == REPEATS_MAX
    assert passed[0] == "closing 0: 100%"
    assert passed[-1] == f"closing {REPEATS_MAX - 1}: 100% (more lines like this in the next 60 s are not shown)"
    assert lines(limit, 50, at=1059.0) == []
    passed = lines(limit, 2, at=1060.0)
    assert passed == [f"closing 0: 100% ({150 - REPEATS_MAX} more lines like this were not shown)", "closing 1: 100%"]


def test_kinds_are_limited_apart_and_the_brokers_own_lines_never() -> None:
    limit = RepeatLimit()
    assert len(lines(limit, 100)) == REPEATS_MAX
    assert len(lines(limit, 100, name="penstock.tcp")) == REPEATS_MAX
    assert len(lines(limit, 100, name="penstock.server")) == 100


def test_a_disk_that_is_full_is_told_of_a_few_times_by_whoever_copies_to_it() -> None:
    limit = RepeatLimit()
    text, passed = "%s/%d: cannot write to %s: no space left on device", 0
    for partition in range(118):
        values = ("orders", partition, "data")
        passed += limit.filter(logging.LogRecord("penstock.cluster", logging.WARNING, __file__, 1, text, values, None))
    assert passed == REPEATS_MAX


def test_the_very_same_line_is_limited_whoever_writes_it_and_others_of_its_kind_are_not() -> None:
    limit = RepeatLimit()
    same = [
        limit.filter(logging.LogRecord("penstock.server", logging.WARNING, __file__, 1, "%s", ("full",), None))
        for _ in range(118)
    ]
    assert sum(same) == REPEATS_MAX
    assert limit.filter(logging.LogRecord("penstock.server", logging.WARNING, __file__, 1, "%s", ("other",), None))


@pytest.mark.parametrize("name", ["penstock.kafka", "penstock.server"])
def test_a_line_whose_values_do_not_fit_its_text_is_no_error_of_whoever_logs_it(name: str) -> None:
    limit = RepeatLimit()
    passed = [
        limit.filter(logging.LogRecord(name, logging.WARNING, __file__, 1, "%d are left", ("none",), None))
        for _ in range(2 * REPEATS_MAX)
    ]
    assert sum(passed) == REPEATS_MAX


def test_a_clock_that_goes_back_does_not_silence_the_log() -> None:
    limit = RepeatLimit()
    lines(limit, 100)
    assert len(lines(limit, 1, at=10.0)) == 1
