"""Columns of a DataFrame to columns of records, and the errors for invalid columns."""

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock.spark.errors import OptionError
from penstock.spark.sink.rows import RowLayout, layout_of, rows_of

HEADERS = "array<struct<key: string, value: binary>>"


def schema(ddl):
    kinds = {
        "string": "string",
        "binary": "binary",
        "int": "integer",
        "long": "long",
        "timestamp": "timestamp",
        "timestamp_ntz": "timestamp_ntz",
        HEADERS: {
            "type": "array",
            "containsNull": True,
            "elementType": {
                "type": "struct",
                "fields": [
                    {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                    {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
                ],
            },
        },
    }
    fields = [
        {"name": name, "type": kinds.get(kind, kind), "nullable": True, "metadata": {}} for name, kind in ddl.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def layout(ddl, *, topic_given=True, keep_timestamp=False):
    return layout_of(schema(ddl), topic_given=topic_given, keep_timestamp=keep_timestamp)


def test_every_column_is_found_by_its_name_in_any_position() -> None:
    found = layout(
        {
            "partition": "int",
            "other": "long",
            "key": "binary",
            "headers": HEADERS,
            "topic": "string",
            "value": "string",
        },
        topic_given=False,
    )
    assert found == RowLayout(value=5, key=2, headers=3, topic=4, partition=0, timestamp=None)


def test_value_alone_is_enough_when_the_topic_is_named() -> None:
    assert layout({"value": "binary"}) == RowLayout(
        value=0, key=None, headers=None, topic=None, partition=None, timestamp=None
    )


def test_the_option_wins_over_the_column_whatever_its_type() -> None:
    assert layout({"value": "binary", "topic": "long"}).topic is None


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": "string"}, "required column 'value' is missing"),
        ({"value": "long"}, "'value' has type bigint, but must be string or binary"),
        ({"value": "string", "key": "int"}, "'key' has type int, but must be string or binary"),
        ({"value": "string", "partition": "long"}, "'partition' has type bigint, but must be int"),
        ({"value": "string", "headers": "string"}, "'headers' has type string, but must be array<struct<"),
        ({"VALUE": "string"}, "there are: VALUE"),
    ],
)
def test_an_invalid_column_is_reported_with_its_type(columns, said) -> None:
    with pytest.raises(OptionError, match=said.replace("(", r"\(")):
        layout(columns)


def test_without_a_topic_the_error_explains_how_to_name_one() -> None:
    with pytest.raises(OptionError, match="option 'topic'"):
        layout({"value": "string"}, topic_given=False)


def test_a_topic_column_must_be_text() -> None:
    with pytest.raises(OptionError, match="'topic' has type bigint, but must be string"):
        layout({"value": "string", "topic": "long"}, topic_given=False)


def test_a_timestamp_counts_only_when_asked_for() -> None:
    columns = {"value": "string", "timestamp": "timestamp"}
    assert layout(columns).timestamp is None
    assert layout({"value": "string", "timestamp": "long"}).timestamp is None
    assert layout(columns, keep_timestamp=True).timestamp == 1
    assert layout({"value": "string", "timestamp": "timestamp_ntz"}, keep_timestamp=True).timestamp == 1
    with pytest.raises(OptionError, match="no column 'timestamp'"):
        layout({"value": "string"}, keep_timestamp=True)
    with pytest.raises(OptionError, match="'timestamp' has type bigint"):
        layout({"value": "string", "timestamp": "long"}, keep_timestamp=True)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_and_bytes_become_bytes(kind) -> None:
    batch = pa.record_batch({"value": pa.array(["ä", None, ""]).cast(pa.binary()).cast(kind)})
    rows = rows_of(batch, layout({"value": "string"}), 0)
    assert rows.records.column("value").to_pylist() == ["ä".encode(), None, b""]
    assert rows.records.schema.names == ["value"]


def test_kept_timestamps_are_whole_milliseconds_and_now_where_there_is_none() -> None:
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, 123_999, tzinfo=dt.UTC)
    kinds = [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.timestamp("us", tz="Europe/Berlin")]
    for kind in kinds:
        stamps = (
            pa.array([moment, None], pa.timestamp("us", tz="UTC")).cast(pa.int64()).cast(pa.timestamp("us")).view(kind)
        )
        batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": stamps})
        rows = rows_of(batch, layout({"value": "binary", "timestamp": "timestamp"}, keep_timestamp=True), 77)
        assert rows.records.column("timestamp").to_pylist() == [int(moment.timestamp() * 1000), 77]


def test_a_time_before_1970_keeps_the_millisecond_that_it_is_in() -> None:
    stamps = pa.array([-1, -1500, 1500], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch({"value": pa.array([b"a"] * 3), "timestamp": stamps})
    kept = layout({"value": "binary", "timestamp": "timestamp"}, keep_timestamp=True)
    assert rows_of(batch, kept, 7).records.column("timestamp").to_pylist() == [-1, -2, 1]
