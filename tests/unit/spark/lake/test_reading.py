"""Splits of a lake: every offset once, in order, whatever the days of its records."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.lake.formats import LakeFormat
from penstock.spark.lake.layout import RECORDS, StoredFile
from penstock.spark.lake.reading import find_time, plan_splits, read_split
from tests.unit.spark.lake.kit import DAY_MS, NEW_YEAR_MS, Archive, records

COLUMNS = ["value", "offset", "topic"]


def read(lake, from_offset, to_offset, split_rows=1_000_000, batch_rows=7, columns=COLUMNS):
    files = [file for file in lake.files("orders") if file.partition == 0]
    splits = plan_splits(files, from_offset, to_offset, split_rows)
    for before, after in pairwise(splits):
        assert before.to_offset == after.from_offset
    schema = pa.schema([RECORDS.field(name) for name in columns])
    return [pa.Table.from_batches(read_split(split, columns, batch_rows), schema) for split in splits]


def test_records_come_back_whole_with_the_columns_asked_for(archive) -> None:
    batch = records(offsets=range(20))
    archive.run(0, batch)
    columns = ["headers", "key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    (table,) = read(archive.open(), 0, 20, columns=columns)
    assert table.to_pylist() == pa.Table.from_batches([batch]).select(columns).to_pylist()


def test_days_that_interleave_are_merged_into_the_order_of_offsets(archive) -> None:
    days = [NEW_YEAR_MS + (n * 7 % 3) * DAY_MS for n in range(100)]
    archive.run(0, records(offsets=range(100), timestamps_ms=days), records(partition=1, offsets=range(100)))
    (table,) = read(archive.open(), 13, 87)
    assert table["offset"].to_pylist() == list(range(13, 87))
    assert table["value"].to_pylist() == [b"orders/0/%d" % n for n in range(13, 87)]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_range_of_any_batches_is_read_once_and_in_order(tmp_path_factory, data) -> None:
    archive = Archive(tmp_path_factory.mktemp("l") / "lake", LakeFormat.PARQUET)
    offset, every = 0, []
    for batch in range(data.draw(st.integers(1, 4))):
        gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
        offsets = []
        for gap in gaps:
            offset += gap
            offsets.append(offset)
        days = data.draw(st.lists(st.integers(0, 2), min_size=len(offsets), max_size=len(offsets)))
        archive.run(batch, records(offsets=offsets, timestamps_ms=[NEW_YEAR_MS + day * DAY_MS for day in days]))
        every += offsets
    low = data.draw(st.integers(0, offset + 2))
    high = data.draw(st.integers(low, offset + 3))
    tables = read(archive.open(), low, high, data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4)))
    assert [n for table in tables for n in table["offset"].to_pylist()] == [n for n in every if low <= n < high]


def test_a_plan_is_cut_between_files_only() -> None:
    files = [StoredFile(f"f{n}", "orders", 0, n * 10, n * 10 + 9, 10) for n in range(6)]
    files.append(StoredFile("late", "orders", 0, 25, 34, 10))
    splits = plan_splits(files, 5, 58, split_rows=20)
    assert [(s.from_offset, s.to_offset, len(s.files)) for s in splits] == [(5, 20, 2), (20, 40, 3), (40, 58, 2)]
    assert plan_splits(files, 100, 200) == []


def test_the_first_offset_at_or_after_a_time_is_found(archive) -> None:
    times = [NEW_YEAR_MS + n * DAY_MS // 2 for n in range(10)]
    archive.run(0, records(offsets=range(10), timestamps_ms=times))
    files = archive.open().files("orders")
    assert find_time(files, times[4]) == 4
    assert find_time(files, times[4] + 1) == 5
    assert find_time(files, 0) == 0
    assert find_time(files, times[9] + 1) is None


def test_the_first_offset_for_a_time_may_be_in_a_file_that_starts_later(archive) -> None:
    # Offset 1 is of the next day, and in a file of its own with offset 4; 2 and 3 are late.
    times = [NEW_YEAR_MS + hour * DAY_MS // 24 for hour in (10, 24, 22, 23, 25)]
    archive.run(0, records(offsets=range(5), timestamps_ms=times))
    files = archive.open().files("orders")
    assert find_time(files, times[2]) == 1
    assert find_time(files, times[4]) == 4
    assert find_time(files, times[0]) == 0


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_time_is_found_as_by_looking_at_every_record(tmp_path_factory, data) -> None:
    archive = Archive(tmp_path_factory.mktemp("l") / "lake", LakeFormat.PARQUET)
    hours = st.integers(-30, 30)
    times = data.draw(st.lists(hours.map(lambda hour: hour * DAY_MS // 12), min_size=1, max_size=20))
    cut = data.draw(st.integers(0, len(times)))
    for batch, offsets in enumerate((range(cut), range(cut, len(times)))):
        archive.run(batch, records(offsets=offsets, timestamps_ms=[times[n] for n in offsets]))
    moment_ms = data.draw(hours) * DAY_MS // 12 + data.draw(st.integers(-1, 1))
    first = next((n for n, time_ms in enumerate(times) if time_ms >= moment_ms), None)
    assert find_time(archive.open().files("orders"), moment_ms) == first


def test_a_file_in_another_order_is_searched_completely(tmp_path) -> None:
    path = tmp_path / "rewritten.parquet"
    table = pa.Table.from_batches([records(offsets=[6, 7, 2, 3])])
    pq.write_table(table, path, row_group_size=2)
    assert find_time([StoredFile(path.as_uri(), "orders", 0, 2, 7, 4)], NEW_YEAR_MS) == 2


def test_a_time_that_no_clock_shows_is_asked_for_too(archive) -> None:
    archive.run(0, records(offsets=[0, 1], timestamps_ms=[-5000, 9 * 10**15]))
    files = archive.open().files("orders")
    assert find_time(files, -(2**63)) == 0
    assert find_time(files, -4999) == 1
    assert find_time(files, 2**63 - 1) is None
