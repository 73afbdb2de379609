"""Log lines: one entry a record, and nothing that a client sent can look like another entry."""

import json
import logging

import pytest

from penstock.observe.logs import JsonFormatter, TextFormatter, set_up

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
