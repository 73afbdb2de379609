"""What a task writes: sizes, bounds, and nothing left behind."""

import pyarrow.parquet as pq
import pytest

from penstock.spark.lake.layout import records_layout
from penstock.spark.lake.store import Store
from penstock.spark.lake.task_files import TaskFiles, WriteBounds
from tests.unit.spark.lake.kit import DAY_MS, NEW_YEAR_MS, records


@pytest.fixture
def files(tmp_path):
    def make(**bounds):
        return TaskFiles(
            Store(str(tmp_path)), records_layout(), "s", "abc", with_folders=False, bounds=WriteBounds(**bounds)
        )

    return make


def test_rows_are_buffered_into_row_groups_of_the_configured_size(files, tmp_path) -> None:
    (file,) = files(group_rows_max=100).write(records(offsets=range(n, n + 30)) for n in range(0, 300, 30))
    metadata = pq.read_metadata(tmp_path / file.staged)
    # A group is closed by the batch that fills it.
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [100, 20, 100, 20, 60]
    assert (file.rows, file.first_offset, file.last_offset) == (300, 0, 299)
    assert file.size_bytes == (tmp_path / file.staged).stat().st_size


def test_a_file_that_is_large_enough_is_closed_and_another_begun(files) -> None:
    written = files(group_bytes=1, file_bytes_max=1).write(records(offsets=[n]) for n in range(4))
    assert [(file.first_offset, file.last_offset) for file in written] == [(n, n) for n in range(4)]
    assert len({file.path for file in written}) == 4


def test_rows_that_wait_in_many_files_are_bounded_together(files) -> None:
    task = files(waiting_bytes_max=3_000, open_max=100)
    most = 0

    def batches():
        nonlocal most
        for n in range(400):
            yield records(partition=n % 40, offsets=[n])
            most = max(most, task._waiting_bytes)

    written = task.write(batches())
    assert (len(written), sum(file.rows for file in written)) == (40, 400)
    assert most <= 3_000


def test_the_number_of_open_files_is_limited_and_every_row_is_written(files) -> None:
    task = files(open_max=3)
    most = 0

    def batches():
        nonlocal most
        for n in range(50):
            yield records(partition=n % 5, offsets=[n])
            most = max(most, len(task._open))

    written = task.write(batches())
    assert most == 3
    assert sorted(n for file in written for n in range(file.first_offset, file.last_offset + 1, 5)) == list(range(50))


def test_one_batch_of_many_topics_partitions_and_days_is_split_in_its_order(files, tmp_path) -> None:
    days = [NEW_YEAR_MS + (n % 2) * DAY_MS for n in range(6)]
    written = files().write([records(offsets=range(6), timestamps_ms=days), records("b", 3, [5, 4])])
    found = {
        file.path.rsplit("/", 1)[0]: pq.read_table(tmp_path / file.staged)["offset"].to_pylist() for file in written
    }
    assert found == {
        "topic=orders/day=2026-01-01": [0, 2, 4],
        "topic=orders/day=2026-01-02": [1, 3, 5],
        "topic=b/day=2026-01-01": [5, 4],
    }
    assert (written[-1].first_offset, written[-1].last_offset) == (4, 5)


def test_records_without_a_timestamp_have_the_day_before_1970(files) -> None:
    (file,) = files().write([records(offsets=[0], timestamps_ms=[-1])])
    assert file.values == ("orders", "1969-12-31")


def test_a_task_that_fails_leaves_nothing_behind(files, tmp_path) -> None:
    def failing():
        yield records(offsets=range(10))
        yield records(partition=1, offsets=range(10))
        raise OSError("the broker is away")

    with pytest.raises(OSError, match="away"):
        files(open_max=1).write(failing())
    assert list(tmp_path.rglob("*.staged")) == []
