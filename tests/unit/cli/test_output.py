"""Tables for people, JSON for programs."""

import json

import pytest

from penstock.cli.output import COLUMN_WIDTH_MAX, PAGE_ROWS, Format, StreamedTable, as_text, emit

ROWS = [
    {"topic": "orders", "partitions": 3, "id": "a"},
    {"topic": "a very long name " * 20, "partitions": 12_000, "id": "b"},
]


def test_a_table_has_headings_and_grouped_numbers_and_cuts_nothing(capsys) -> None:
    emit(ROWS, ["topic", "partitions"], Format.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["topic", "partitions"]
    assert lines[2].split() == ["orders", "3"]
    assert lines[3].rstrip().endswith("12,000")
    assert ("a very long name " * 20).strip() in lines[3]


def test_json_is_one_document_with_everything(capsys) -> None:
    emit(ROWS, ["topic"], Format.JSON)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_ndjson_is_a_line_a_row(capsys) -> None:
    emit(ROWS, ["topic"], Format.NDJSON)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_nothing_is_said_to_people_and_is_an_empty_document_to_programs(capsys) -> None:
    emit([], ["topic"], Format.TABLE, nothing="no topics")
    assert capsys.readouterr() == ("", "no topics\n")
    emit([], ["topic"], Format.JSON, nothing="no topics")
    assert capsys.readouterr() == ("[]\n", "")
    emit([], ["topic"], Format.NDJSON, nothing="no topics")
    assert capsys.readouterr() == ("", "")


def test_lines_are_printed_as_they_are_given_under_one_heading(capsys) -> None:
    lines = StreamedTable(["offset", "the_value"], numbers=["offset"])
    lines.print([{"offset": 7, "the_value": "a"}])
    assert capsys.readouterr().out == "offset  the value\n------  ---------\n     7  a\n"
    lines.print([{"offset": 1234, "the_value": None}])
    assert capsys.readouterr().out == " 1,234  -\n"
    lines.print([{"offset": number, "the_value": "x"} for number in range(PAGE_ROWS * 2 + 1)])
    assert lines.count == PAGE_ROWS * 2 + 3
    assert len(capsys.readouterr().out.splitlines()) == PAGE_ROWS * 2 + 1


def test_a_line_stays_one_line_and_is_never_cut(capsys) -> None:
    long = "x" * (COLUMN_WIDTH_MAX * 2)
    StreamedTable(["a", "b"]).print([{"a": "1\n2\x1b[31m", "b": "c"}, {"a": long, "b": "d"}])
    _, rule, first, second = capsys.readouterr().out.splitlines()
    assert len(rule) == COLUMN_WIDTH_MAX + len("  -")
    assert first.split() == ["1\\n2\\x1b[31m", "c"]
    assert second == f"{long}  d"


def test_markup_in_a_value_is_only_text(capsys) -> None:
    emit([{"value": "[bold]x[/bold]"}], ["value"], Format.TABLE)
    assert "[bold]x[/bold]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (1234, "1,234"),
        (0.5, "0.50"),
        ([1, 2], "1,2"),
        ({"a": 1}, "a=1"),
        ("x", "x"),
        ([], ""),
    ],
)
def test_values_in_a_cell(value, text) -> None:
    assert as_text(value) == text
