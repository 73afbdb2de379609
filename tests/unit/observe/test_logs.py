"""Log lines: one entry a record, and nothing that a client sent can look like another entry."""

import json
import logging

from penstock.observe.logs import JsonFormatter, TextFormatter


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
