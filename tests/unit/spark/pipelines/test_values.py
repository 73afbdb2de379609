"""Durations, triggers and starts as people write them."""

import pytest

from penstock.spark.pipelines.values import (
    Trigger,
    check_schema,
    duration_ms,
    interval_of,
    moment_ms,
    start_options,
    trigger_of,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10s", 10_000),
        ("5 minutes", 300_000),
        ("250ms", 250),
        ("3 milliseconds", 3),
        ("1 Hour", 3_600_000),
        ("2d", 172_800_000),
        ("7 min", 420_000),
    ],
)
def test_durations(text, ms) -> None:
    assert duration_ms(text) == ms
    assert interval_of(text) == f"{ms} milliseconds"


@pytest.mark.parametrize("text", ["", "ten seconds", "10", "10 fortnights", "-1s", "1s 2s"])
def test_invalid_durations_are_refused(text) -> None:
    with pytest.raises(ValueError, match='is not a duration such as "10s", "5 minutes" or "2 hours"'):
        duration_ms(text)


def test_triggers() -> None:
    assert trigger_of("once") == trigger_of("available-now") == Trigger(once=True)
    assert trigger_of("10s") == Trigger(every_ms=10_000)
    assert trigger_of("") == Trigger()
    with pytest.raises(ValueError, match='"often" is not a duration such as "10s", or "once"'):
        trigger_of("often")


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("earliest", {"startingOffsets": "earliest"}),
        ("latest", {"startingOffsets": "latest"}),
        ({"orders": {"0": 23}}, {"startingOffsets": '{"orders": {"0": 23}}'}),
        ('{"orders": {"0": -2}}', {"startingOffsets": '{"orders": {"0": -2}}'}),
        ("2026-03-01", {"startingTimestamp": "1772323200000", "startingOffsetsByTimestampStrategy": "latest"}),
    ],
)
def test_where_a_source_starts(start, options) -> None:
    assert start_options(start) == options


def test_moments_are_the_same_everywhere() -> None:
    assert moment_ms("2026-03-01T12:00:00Z") == moment_ms("2026-03-01T14:00:00+02:00") == 1772366400000
    with pytest.raises(ValueError, match='has no time zone; write "2026-03-01T12:00:00Z" for UTC'):
        moment_ms("2026-03-01T12:00:00")


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("erliest", '"erliest" is not "earliest", "latest", a time such as "2026-03-01T12:00:00Z", or offsets'),
        ("{orders", "The offsets are not JSON"),
        ('{"orders": 3}', "The offsets must be numbers by topic and partition"),
        ('{"orders": {"0": "x"}}', "The offsets must be numbers by topic and partition"),
    ],
)
def test_a_start_that_cannot_be_understood_says_what_to_write(start, text) -> None:
    with pytest.raises(ValueError, match=text.replace("[", r"\[")):
        start_options(start)


@pytest.mark.parametrize(
    "schema",
    [
        "id INT",
        "id int, amount decimal(10,2), tags ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>",
        "`odd, name` STRING, b: bigint NOT NULL COMMENT 'a, b'",
    ],
)
def test_schemas_that_spark_takes(schema) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("id", '"id" has no type; write "id STRING"'),
        ("id INTT", "id has the unknown type INTT; did you mean INT?"),
        (
            "id XYZZY",
            "id has the unknown type XYZZY; use one of Spark's types, such as STRING, INT, DOUBLE or TIMESTAMP",
        ),
        ("id INT,", 'There is an extra comma; write "id INT, amount DOUBLE"'),
        (
            "id INT, at DATE, `ID` STRING",
            "`ID` appears twice; name each field once (upper and lower case are the same)",
        ),
        ("id INT, _corrupt STRING", "_corrupt is added automatically and contains values that do not match; remove it"),
        ("id INT, _Offset BIGINT", "_offset is a column of every record and added automatically; remove it"),
        ("id varchar(3)", "id has the type varchar, which Spark does not read from JSON; write id STRING"),
        ("m ARRAY<MAP<INT, INT>>", "m is a map with INT keys, but keys in JSON are strings; write MAP<STRING, ...>"),
        ("tags ARRAY<INT", "The brackets do not match in 'tags ARRAY<INT'"),
    ],
)
def test_a_slip_in_a_schema_says_what_to_write(schema, text) -> None:
    with pytest.raises(ValueError) as caught:
        check_schema(schema)
    assert str(caught.value) == text
