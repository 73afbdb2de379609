"""The line of a key in a TOML text. ``tomllib`` is the oracle for which keys there are."""

import tomllib

import pytest

from penstock.spark.pipelines.locate import lines_of

TEXT = '''\
# a comment with [brackets] and = signs
[pipeline]
name = "a # b"   # not = a key
"quoted.key" = 1
'literal' = 2

[source]
topics = [
  "orders",  # one
  "payments",
]
start = { orders = { 0 = 23 }, "pay ments" = {} }
options.depth = 3

[[steps]]
sql = """
SELECT *
FROM orders
WHERE a = "x" -- [steps]
"""

[[steps]]
sql = \'\'\'SELECT 'a' \'\'\'
at = 2026-03-01 12:00:00Z

  [[steps.more]]
  x = """quote "" inside\\"\\" two at the end"""""
  [[steps.more]]
  y = 1.5

[[sinks]]
[sinks.options]
z = true
'''


def paths_in(value, path=()):
    if isinstance(value, dict):
        for key, each in value.items():
            yield (*path, key)
            yield from paths_in(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield (*path, number)
            yield from paths_in(each, (*path, number))


def test_every_key_that_tomllib_finds_has_a_line_and_no_other_has() -> None:
    lines = lines_of(TEXT)
    assert set(lines.keys) == set(paths_in(tomllib.loads(TEXT)))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("pipeline",), 2),
        (("pipeline", "name"), 3),
        (("pipeline", "quoted.key"), 4),
        (("pipeline", "literal"), 5),
        (("source", "topics"), 8),
        (("source", "topics", 1), 10),
        (("source", "start", "pay ments"), 12),
        (("source", "options", "depth"), 13),
        (("steps",), 15),
        (("steps", 0), 15),
        (("steps", 1), 22),
        (("steps", 1, "more", 1, "y"), 29),
        (("sinks", 0), 31),
        (("sinks", 0, "options", "z"), 33),
    ],
)
def test_a_key_is_found_on_its_line(path, line) -> None:
    assert lines_of(TEXT).of(path) == line


def test_a_missing_key_has_the_line_of_its_table() -> None:
    lines = lines_of(TEXT)
    assert lines.of(("steps", 1, "python")) == 22
    assert lines.of(("nothing", "at all")) == 1


def test_the_text_of_a_long_string_begins_behind_the_first_line_break() -> None:
    lines = lines_of(TEXT)
    assert lines.of(("steps", 0, "sql")) == 16
    assert lines.of_value(("steps", 0, "sql")) == 17
    assert lines.of_value(("steps", 1, "sql")) == 23


def test_windows_line_ends_count_once() -> None:
    assert lines_of("[a]\r\nb = 1\r\n\r\n[c]\r\n").of(("c",)) == 4


@pytest.mark.parametrize("text", ["", "\n\n", "a = 1", 'a = "\\u00e9\\n"', "a.b.c = []\nd = {}\n", "# only a comment"])
def test_small_texts_are_read_to_the_end(text) -> None:
    assert set(lines_of(text).keys) == set(paths_in(tomllib.loads(text)))
