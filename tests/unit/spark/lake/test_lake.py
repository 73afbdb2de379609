"""Every batch is in the lake once, whatever is interrupted and however often it is tried: the same for all formats."""

import logging
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Never

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.lake import iceberg
from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.lake import ORPHAN_MS, open_lake
from penstock.spark.lake.layout import layout_for, records_layout
from penstock.spark.lake.manifests import Manifest, Manifests
from penstock.spark.lake.reading import find_time, plan_splits, read_split
from penstock.spark.lake.source import FilePart, _read
from penstock.spark.lake.store import Store
from penstock.spark.lake.task_files import task_files
from tests.unit.spark.lake.kit import DAY_MS, NEW_YEAR_MS, NOW_MS, Archive, expected, records


def test_committed_rows_are_there_for_the_formats_own_reader_by_topic_and_day(archive) -> None:
    late = [NEW_YEAR_MS + n * DAY_MS for n in range(3)]
    done = archive.run(0, records(offsets=range(3), timestamps_ms=late), records("other", 1, [7]))
    assert (done.already, done.rows, done.ends) == (False, 4, {"orders": {0: 3}, "other": {1: 8}})
    assert archive.rows() == expected("orders", 0, range(3)) + expected("other", 1, [7])
    folders = {
        path.parent.relative_to(archive.folder).as_posix().removeprefix("data/") for path in archive.data_files()
    }
    assert folders == {f"topic=orders/day=2026-01-0{n}" for n in (1, 2, 3)} | {"topic=other/day=2026-01-01"}


def test_a_batch_that_comes_again_adds_nothing_and_leaves_nothing(archive) -> None:
    archive.run(0, records(offsets=range(5)))
    files = archive.data_files()
    again = archive.run(0, records(offsets=range(5)))
    assert (again.already, again.ends) == (True, {"orders": {0: 5}})
    assert (archive.rows(), archive.data_files(), archive.staged()) == (expected("orders", 0, range(5)), files, [])
    assert archive.run(1, records(offsets=range(5, 9))).ends == {"orders": {0: 9}}
    assert archive.rows() == expected("orders", 0, range(9))
    assert archive.open()._table.last_batch("q") == 1


def test_what_is_staged_is_not_seen_and_an_empty_batch_changes_nothing(archive) -> None:
    archive.run(0, records(offsets=[0]))
    archive.stage(1, records(offsets=[1]))
    assert archive.rows() == expected("orders", 0, [0])
    assert not archive.commit(1, []).already
    assert archive.rows() == expected("orders", 0, [0])


class Crash(Exception):
    """The process ends here."""


@contextmanager
def crash_after(moves_max):
    """The process ends after so many files were moved."""
    move = Store.move

    def crashing(store, moves) -> Never:
        move(store, list(moves)[:moves_max])
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "move", crashing)
        yield


@pytest.mark.parametrize("after_moves", [0, 1, 3])
def test_a_crash_inside_a_commit_is_finished_or_cleaned_up_when_the_batch_comes_again(
    archive, monkeypatch, after_moves
) -> None:
    archive.run(0, records(offsets=range(3)))
    days = [NEW_YEAR_MS + n * DAY_MS for n in range(3)]
    second = records(offsets=range(3, 6), timestamps_ms=days)
    files = archive.stage(1, second)
    with crash_after(after_moves), pytest.raises(Crash):
        archive.commit(1, files)
    seen = archive.rows()
    assert set(seen) <= set(expected("orders", 0, range(6)))
    assert set(seen) >= set(expected("orders", 0, range(3)))
    archive.run(1, second)
    assert archive.rows() == expected("orders", 0, range(6))
    assert (len(archive.data_files()), archive.staged()) == (4, [])


def test_a_crash_after_the_commit_does_not_repeat_the_batch(archive, monkeypatch) -> None:
    files = archive.stage(0, records(offsets=range(3)))

    def crash(*_) -> Never:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("penstock.spark.lake.lake.Lake._clean", crash)
        with pytest.raises(Crash):
            archive.commit(0, files)
    archive.open().abort("q", 0, files)
    assert archive.run(0, records(offsets=range(3))).already
    assert archive.rows() == expected("orders", 0, range(3))


def test_another_archive_finishes_what_one_that_is_gone_left_of_its_topics(archive) -> None:
    files = archive.stage(0, records(offsets=range(3)))
    with crash_after(0), pytest.raises(Crash):
        archive.commit(0, files)
    archive.open().recover({"another"}, NOW_MS)
    assert archive.data_files() == []
    archive.open().recover({"orders"}, NOW_MS)
    # In a plain lake the manifest was the commit; in the others the table's own never came.
    kept = range(3) if archive.format is LakeFormat.PARQUET else []
    assert (archive.rows() if kept else []) == expected("orders", 0, kept)
    assert archive.open().ends("orders") == ({0: 3} if kept else {})


@pytest.mark.parametrize("moment_ms", [9 * 10**15, 253_402_300_800_000, -62_135_596_800_001])
def test_a_timestamp_that_is_not_a_date_is_unchanged(archive, moment_ms) -> None:
    archive.run(0, records(offsets=[0, 1], timestamps_ms=[NEW_YEAR_MS, moment_ms]))
    archive.run(1, records(offsets=[2]))
    assert archive.rows() == expected("orders", 0, range(3))
    files = archive.open().files("orders")
    assert [(file.first_offset, file.last_offset) for file in files] == [(0, 0), (1, 1), (2, 2)]
    (split,) = plan_splits(files, 0, 3)
    found = pa.Table.from_batches(read_split(split, ["value", "timestamp"]))
    assert found["value"].to_pylist() == [b"orders/0/0", b"orders/0/1", b"orders/0/2"]
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [
        each * 1000 for each in (NEW_YEAR_MS, moment_ms, NEW_YEAR_MS)
    ]
    assert find_time(files, NEW_YEAR_MS + 1) == (1 if moment_ms > NEW_YEAR_MS else None)


def test_rows_with_a_time_that_is_no_date_are_refused_by_iceberg_with_what_to_do(tmp_path) -> None:
    def written(batch, moment_us):
        rows = pa.record_batch({"a": [1], "at": pa.array([moment_us], schema.field("at").type)}, schema=schema)
        files = task_files(lake.location, lake.format, layout, "q", batch).write([rows])
        return lake.commit(layout, "q", batch, files, NOW_MS).rows

    schema = pa.schema({"a": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
    layout = layout_for(schema, [])
    lake = open_lake(str(tmp_path / "lake"), LakeFormat.ICEBERG)
    lake.prepare(layout)
    with pytest.raises(LakeError, match=r"outside the years 1 to 9999, .* remove them"):
        written(0, 9 * 10**17)
    # The batch comes again, without them.
    assert written(0, NEW_YEAR_MS * 1000) == 1
    assert len(lake.uris()) == len(list(tmp_path.rglob("*.parquet"))) == 1


def test_an_abort_removes_what_was_staged_unless_the_batch_was_committed(archive) -> None:
    files = archive.stage(0, records(offsets=range(3)))
    archive.open().abort("q", 0, files)
    assert archive.staged() == []
    archive.run(0, records(offsets=range(3)))
    archive.open().abort("q", 0, files)
    assert archive.rows() == expected("orders", 0, range(3))


def test_what_dead_attempts_left_goes_with_the_next_commit_and_that_of_other_queries_when_it_is_old(archive) -> None:
    archive.stage(0, records(offsets=range(3)))
    other = Archive(archive.folder, archive.format, "other")
    other.stage(0, records("another", offsets=range(3)))
    (theirs,) = archive.folder.glob("_penstock/staging/other/0/*")
    os.utime(theirs, (NOW_MS / 1000, NOW_MS / 1000))
    archive.run(0, records(offsets=range(3)))
    assert archive.staged() == [theirs]
    files = archive.stage(1, records(offsets=range(3, 6)))
    archive.commit(1, files, NOW_MS + ORPHAN_MS + 1)
    assert archive.staged() == []


def test_offsets_that_the_lake_has_are_refused_from_another_query(archive) -> None:
    archive.run(0, records(offsets=range(5)), records(partition=1, offsets=range(9)))
    other = Archive(archive.folder, archive.format, "other")
    with pytest.raises(LakeError, match="orders/0 up to offset 5 already, from another query"):
        other.run(0, records(offsets=range(4, 8)))
    assert other.run(0, records(offsets=range(5, 8))).rows == 3
    assert archive.rows() == expected("orders", 0, range(8)) + expected("orders", 1, range(9))


def test_offsets_are_found_again_as_ranges(archive) -> None:
    archive.run(0, records(offsets=range(5)))
    archive.run(1, records(offsets=range(5, 8)))
    archive.run(2, records(offsets=[20, 21]))
    lake = archive.open()
    found = [(file.partition, file.first_offset, file.last_offset, file.rows) for file in lake.files("orders")]
    assert found == [(0, 0, 4, 5), (0, 5, 7, 3), (0, 20, 21, 2)]
    assert lake.files("nothing") == []
    assert lake.ends("orders") == {0: 22}


def test_a_lake_stays_of_one_format_and_one_layout(archive) -> None:
    archive.run(0, records(offsets=[0]))
    another = LakeFormat.DELTA if archive.format is LakeFormat.PARQUET else LakeFormat.PARQUET
    with pytest.raises(LakeError, match=f"lake of format {archive.format}, not {another}"):
        open_lake(str(archive.folder), another).prepare(archive.layout)
    rows = layout_for(archive.layout.schema, ["partition"])
    with pytest.raises(LakeError, match="contains records of topics"):
        archive.open().prepare(rows)


def test_looking_at_a_lake_that_is_not_there_makes_none(archive) -> None:
    lake = open_lake(str(archive.folder), archive.format)
    assert (lake.files("orders"), lake.schema(), lake.uris(), lake.is_records()) == ([], None, [], False)
    assert not archive.folder.exists()


def test_files_that_something_else_wrote_are_opened_to_find_their_offsets(archive) -> None:
    archive.run(0, records(offsets=range(3)), records(partition=1, offsets=range(4)))
    archive.run(1, records(offsets=range(3, 6)))
    if archive.format is LakeFormat.DELTA:
        from deltalake import DeltaTable

        DeltaTable(str(archive.folder)).optimize.compact()
        assert len(archive.open().uris()) == 1
    elif archive.format is LakeFormat.PARQUET:
        for number, path in enumerate(archive.data_files()):
            path.rename(path.with_name(f"renamed-{number}.parquet"))
    assert archive.open().ends("orders") == {0: 6, 1: 4}
    offsets = [
        n
        for each in archive.open().files("orders")
        if each.partition == 0
        for n in range(each.first_offset, each.last_offset + 1)
    ]
    assert offsets == list(range(6))


def test_an_archive_that_starts_takes_nothing_from_one_that_is_in_the_midst_of_a_commit(archive, monkeypatch) -> None:
    archive.run(0, records(offsets=range(3)))
    files = archive.stage(1, records(offsets=range(3, 6)))
    move = Store.move

    def start_another(store, moves) -> None:
        moves = list(moves)
        monkeypatch.setattr(Store, "move", move)
        archive.open().recover({"orders"}, NOW_MS)
        move(store, moves)
        archive.open().recover({"orders"}, NOW_MS)

    monkeypatch.setattr(Store, "move", start_another)
    archive.commit(1, files)
    assert archive.rows() == expected("orders", 0, range(6))


def test_what_a_query_that_is_long_gone_never_committed_goes(archive) -> None:
    files = archive.stage(0, records(offsets=range(3)))
    with crash_after(1), pytest.raises(Crash):
        archive.commit(0, files)
    (manifest,) = archive.folder.glob("_penstock/commits/*")
    os.utime(manifest, (NOW_MS / 1000, NOW_MS / 1000))
    archive.open().recover({"orders"}, NOW_MS)
    assert len(archive.data_files()) == 1
    archive.open().recover({"orders"}, NOW_MS + ORPHAN_MS + 1)
    assert len(archive.data_files()) == (1 if archive.format is LakeFormat.PARQUET else 0)


def test_a_lake_knows_a_query_that_has_found_nothing_yet(archive) -> None:
    assert not archive.open().knows("q")
    archive.run(0)
    assert archive.open().knows("q")
    assert archive.run(1, records(offsets=range(3))).ends == {"orders": {0: 3}}


def test_a_topic_that_was_created_again_is_not_mixed_with_the_one_before(archive) -> None:
    archive.open().claim("orders", "one")
    archive.open().claim("orders", "two")
    archive.run(0, records(offsets=range(3)))
    archive.open().claim("orders", "two")
    with pytest.raises(LakeError, match="contains records of another topic orders"):
        archive.open().claim("orders", "three")


@pytest.mark.parametrize("place", ["my lake", "naïve", "a'b", "a+b=c"])
def test_a_lake_may_be_in_a_folder_of_any_name(tmp_path, archive, place) -> None:
    archive.folder = tmp_path / place
    archive.run(0, records(offsets=range(3)))
    assert archive.open().ends("orders") == {0: 3}
    assert rows_of(archive.open(), ["offset"]) == [{"offset": n} for n in range(3)]


def test_a_place_that_a_format_would_read_otherwise_is_refused(tmp_path) -> None:
    open_lake(str(tmp_path / "a%20b"), LakeFormat.PARQUET)
    for lake_format, place in ((LakeFormat.DELTA, "a%20b"), (LakeFormat.ICEBERG, "a%20b"), (LakeFormat.ICEBERG, "a#b")):
        with pytest.raises(LakeError, match="choose another place"):
            open_lake(str(tmp_path / place), lake_format)


def rows_of(lake, names=None):
    """As ``format("penstock-lake")`` reads them."""
    schema = lake.schema() if names is None else pa.schema([lake.schema().field(name) for name in names])
    batches = (_read(FilePart(uri), from_arrow_schema(schema)) for uri in lake.uris())
    return [row for each in batches for batch in each for row in batch.to_pylist()]


def write_rows(archive, table, folders=(), batch=0, query="q"):
    lake = open_lake(str(archive.folder), archive.format)
    layout = layout_for(table.schema, folders)
    lake.prepare(layout)
    files = task_files(lake.location, lake.format, layout, query, batch).write(table.to_batches())
    lake.commit(layout, query, batch, files, NOW_MS)
    return lake


def test_folders_of_any_value_and_any_name_are_read_back(archive) -> None:
    values = ["é", "a/b", "x y", "100%", "%41", "a=b", "..", "it's", "a:b", "日本", None]
    lake = write_rows(archive, pa.table({"_of": values, "n": range(len(values))}), ["_of"])
    found = {row["n"]: row["_of"] for row in rows_of(lake)}
    assert [found[n] for n in range(len(values))] == values


def test_an_empty_text_is_a_null_in_a_folder_as_spark_has_it(archive) -> None:
    schema = pa.schema([pa.field("of", pa.string(), nullable=False), pa.field("n", pa.int64())])
    lake = write_rows(archive, pa.table({"of": ["a", "", "a"], "n": [0, 1, 2]}, schema=schema), ["of"])
    assert {row["n"]: row["of"] for row in rows_of(lake)} == {0: "a", 1: None, 2: "a"}
    assert {path.parent.name for path in archive.data_files()} == {"of=a", "of=__HIVE_DEFAULT_PARTITION__"}


@pytest.fixture
def asked(archive, monkeypatch):
    """Which manifests were read, and how often the table was opened."""
    seen = {"manifests": 0, "tables": 0}

    def counting(owner, name, what) -> None:
        call = getattr(owner, name)

        def counted(*given):
            seen[what] += 1
            return call(*given)

        monkeypatch.setattr(owner, name, counted)

    table = type(open_lake(str(archive.folder), archive.format)._table)
    counting(Manifests, "_read", "manifests")
    if archive.format is not LakeFormat.PARQUET:
        counting(table, "_table", "tables")
    return seen


def test_a_write_of_rows_costs_the_same_however_many_were_before(archive, asked) -> None:
    costs = []
    for number in range(4):
        asked |= {"manifests": 0, "tables": 0}
        write_rows(archive, pa.table({"a": [number]}), query=f"write-{number}")
        costs.append(dict(asked))
    assert costs[3] == costs[1]


def test_a_commit_of_records_opens_the_table_no_more_often_for_many_queries(archive, asked) -> None:
    opened = []
    for number in range(4):
        asked["tables"] = 0
        Archive(archive.folder, archive.format, f"q{number}").run(0, records(offsets=[number]))
        opened.append(asked["tables"])
    assert opened[3] == opened[1]


def test_a_single_write_that_is_done_leaves_no_manifest_where_the_table_knows_it(archive) -> None:
    lake = write_rows(archive, pa.table({"a": [1]}), query="write-1")
    write_rows(archive, pa.table({"a": [2]}), query="a-stream")
    # In a plain lake the manifest is the commit.
    kept = {"a-stream.json"} | ({"write-1.json"} if archive.format is LakeFormat.PARQUET else set())
    assert {path.name for path in archive.folder.glob("_penstock/commits/*")} == kept
    # Tried again it is no second write.
    write_rows(archive, pa.table({"a": [1]}), query="write-1")
    assert sorted(row["a"] for row in rows_of(lake)) == [1, 2]
    assert {path.name for path in archive.folder.glob("_penstock/commits/*")} == kept


def test_a_crash_before_the_manifest_of_a_single_write_goes_is_no_second_write(archive, monkeypatch) -> None:
    def crash(*_) -> Never:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("penstock.spark.lake.lake.Lake._forget", crash)
        with pytest.raises(Crash):
            write_rows(archive, pa.table({"a": [1]}), query="write-1")
    write_rows(archive, pa.table({"a": [1]}), query="write-1")
    lake = write_rows(archive, pa.table({"a": [2]}), query="write-2")
    assert sorted(row["a"] for row in rows_of(lake)) == [1, 2]


def test_records_of_a_single_write_are_refused_a_second_time(archive) -> None:
    Archive(archive.folder, archive.format, "write-1").run(0, records(offsets=range(3)))
    with pytest.raises(LakeError, match="from another query"):
        Archive(archive.folder, archive.format, "write-2").run(0, records(offsets=range(3)))


def test_iceberg_does_not_warn_of_timestamps_that_are_no_dates_and_does_of_other_columns(tmp_path, caplog) -> None:
    archive = Archive(tmp_path / "lake", LakeFormat.ICEBERG)
    archive.run(0, records(offsets=[0, 1], timestamps_ms=[NEW_YEAR_MS, 9 * 10**15]))
    assert "statistics missing" not in caplog.text
    log, text = logging.getLogger("pyiceberg.io.pyarrow"), "PyArrow statistics missing for column %d when writing file"
    odd = archive.stage(1, records(offsets=[2], timestamps_ms=[9 * 10**15]))
    with iceberg._quiet_about_no_dates(Manifest("q", 1, odd)):
        log.warning(text, 4)
        log.warning(text, 3)
    assert [record.args for record in caplog.records] == [(3,)]
    # Afterwards, and with usual records, no warning is suppressed.
    with iceberg._quiet_about_no_dates(Manifest("q", 1, archive.stage(1, records(offsets=[2])))):
        log.warning(text, 4)
    assert [record.args for record in caplog.records] == [(3,), (4,)]


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ({"a": [3], "b": ["x"]}, "also writes b"),
        ({"a": ["text"]}, "The column a of .* is int64, and this query writes"),
    ],
)
def test_rows_that_the_table_has_no_column_for_are_refused_and_not_dropped(archive, later, told) -> None:
    write_rows(archive, pa.table({"a": [1, 2]}))
    with pytest.raises(LakeError, match=told):
        write_rows(archive, pa.table(later), batch=1)
    lake = write_rows(archive, pa.table({"a": pa.array([3], pa.int32())}), batch=1)
    assert sorted(row["a"] for row in rows_of(lake)) == [1, 2, 3]


def test_a_table_of_another_program_is_unchanged(tmp_path) -> None:
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(str(tmp_path / "lake"), pa.table({"x": [1]}))
    with pytest.raises(LakeError, match="has the columns x"):
        Archive(tmp_path / "lake", LakeFormat.DELTA).run(0, records(offsets=[0]))
    assert DeltaTable(str(tmp_path / "lake")).version() == 0


def test_lakes_of_one_name_in_one_catalog_are_not_mixed(tmp_path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.sqlite'}", "warehouse": f"file://{tmp_path}"}
    layout = records_layout()
    first = open_lake(str(tmp_path / "a" / "lake"), LakeFormat.ICEBERG, catalog)
    first.prepare(layout)
    files = task_files(first.location, first.format, layout, "q", 0).write([records(offsets=[0])])
    first.commit(layout, "q", 0, files, NOW_MS)
    assert first.ends("orders") == {0: 1}
    with pytest.raises(LakeError, match="rename its folder"):
        open_lake(str(tmp_path / "b" / "lake"), LakeFormat.ICEBERG, catalog).prepare(layout)


def test_of_two_archives_that_commit_the_same_offsets_at_once_one_is_refused(archive) -> None:
    archive.run(0, records(offsets=range(3)))
    other = Archive(archive.folder, archive.format, "other")
    ready = Barrier(2)

    def commit(whose, batch):
        files = whose.stage(batch, records(offsets=range(3, 6)))
        ready.wait()
        try:
            return whose.commit(batch, files).rows
        except LakeError:
            return 0

    with ThreadPoolExecutor() as pool:
        rows = [pool.submit(commit, whose, batch) for whose, batch in ((archive, 1), (other, 0))]
        assert sorted(each.result() for each in rows) == [0, 3]
    assert archive.rows() == expected("orders", 0, range(6))


def test_a_library_that_is_not_there_is_named_with_the_python_that_lacks_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "penstock.spark.lake.delta", raising=False)
    with pytest.raises(LakeError, match=rf"needs the library deltalake.*{re.escape(sys.executable)}.*pip install"):
        open_lake(str(tmp_path), LakeFormat.DELTA)
