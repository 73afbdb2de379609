"""Which columns and folders a lake has."""

from datetime import date

import pyarrow as pa
import pytest

from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.layout import RECORDS, _days, folder_path, folder_values, layout_for, records_layout
from tests.unit.spark.lake.kit import NEW_YEAR_MS, records


def test_the_columns_of_the_source_make_a_lake_of_records_with_or_without_headers() -> None:
    for dropped in ([], ["headers"], ["headers", "key", "timestampType"]):
        layout = layout_for(records(offsets=[0]).drop_columns(dropped).schema, [])
        assert (layout.is_records, layout.folders, layout.schema) == (True, ("topic", "day"), RECORDS)
    ((folders, partition, part),) = layout.split(records(offsets=[1]).drop_columns(["headers", "key"]))
    assert (folders, partition) == (("orders", "2026-01-01"), 0)
    assert (part["key"].to_pylist(), part["headers"].to_pylist()) == ([None], [None])


def test_other_columns_make_a_lake_of_rows_with_the_folders_asked_for() -> None:
    schema = pa.schema({"word": pa.string(), "count": pa.int64(), "good": pa.bool_()})
    layout = layout_for(schema, ["good", "word"])
    assert (layout.is_records, layout.file_schema(with_folders=False).names) == (False, ["count"])
    batch = pa.record_batch({"word": ["a", None, "a"], "count": [1, 2, 3], "good": [True, False, True]})
    split = {folders: part["count"].to_pylist() for folders, _, part in layout.split(batch)}
    assert split == {("true", "a"): [1, 3], ("false", None): [2]}


def test_folders_that_cannot_be_are_refused() -> None:
    schema = pa.schema({"a": pa.string()})
    with pytest.raises(LakeError, match="partitionBy names 'b'"):
        layout_for(schema, ["b"])
    with pytest.raises(LakeError, match="every column"):
        layout_for(schema, ["a"])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.binary(), "bytes"),
        (pa.list_(pa.string()), "a list"),
        (pa.struct({"a": pa.int64()}), "a struct"),
        (pa.map_(pa.string(), pa.string()), "a map"),
    ],
)
def test_a_column_without_simple_values_cannot_be_a_folder(kind, told) -> None:
    schema = pa.schema({"key": kind, "n": pa.int64()})
    with pytest.raises(LakeError, match=rf"'key', which is {told}, .*CAST\(key AS STRING\) AS key"):
        layout_for(schema, ["key"])
    assert layout_for(schema, []).folders == ()


def test_an_empty_text_is_in_the_folder_of_nulls() -> None:
    layout = layout_for(pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.string())]), ["a"])
    batch = pa.record_batch({"a": ["x", "", "x", ""], "b": ["", "", None, "y"]})
    split = {folders: part["b"].to_pylist() for folders, _, part in layout.split(batch)}
    assert split == {("x",): ["", None], (None,): ["", "y"]}


def test_a_folder_is_named_as_hive_names_it_and_read_back() -> None:
    path = folder_path(["a", "b", "c"], ["x/y=z", None, "plain"])
    assert path == "a=x%2Fy%3Dz/b=__HIVE_DEFAULT_PARTITION__/c=plain/"
    assert folder_values(f"file:///lake/{path}1.parquet") == {"a": "x/y=z", "b": None, "c": "plain"}


@pytest.mark.parametrize(
    ("moment_ms", "day"),
    [(NEW_YEAR_MS, date(2026, 1, 1)), (NEW_YEAR_MS - 1, date(2025, 12, 31)), (-1, date(1969, 12, 31))],
)
def test_the_day_is_that_of_utc(moment_ms, day) -> None:
    timestamps = pa.array([moment_ms * 1000], pa.timestamp("us", tz="UTC"))
    assert _days(timestamps).to_pylist() == [day]


@pytest.mark.parametrize(("moment_ms", "day"), [(-1, date(1969, 12, 31)), (10**15, date.max), (-(10**14), date.min)])
def test_a_timestamp_that_is_not_a_date_is_in_the_folder_of_the_nearest_day(moment_ms, day) -> None:
    ((folders, _, _),) = records_layout().split(records(offsets=[0], timestamps_ms=[moment_ms]))
    assert folders == ("orders", str(day))
