"""Spark's report of a batch, as a few numbers."""

import json

import pytest

from penstock.spark.pipelines.progress import QueryProgress, lag_of, status_of


@pytest.mark.parametrize(
    ("done", "latest", "lag"),
    [
        ({"a": {"0": 5, "1": 7}}, {"a": {"0": 8, "1": 7}}, 3),
        ('{"a": {"0": 5}}', '{"a": {"0": 9}, "b": {"0": 2}}', 6),
        ({"a": {"0": 5}}, {"a": {"0": 3}}, 0),
        (None, {"a": {"0": 3}}, None),
        ({"a": {"0": 3}}, None, None),
        (4, 5, None),
        ("offset", "offset", None),
    ],
)
def test_lag_is_what_is_there_and_not_read(done, latest, lag) -> None:
    assert lag_of(done, latest) == lag


def test_the_numbers_of_a_batch() -> None:
    report = {
        "id": "q",
        "batchId": 4,
        "timestamp": "2026-03-01T12:00:00.250Z",
        "numInputRows": 50,
        "processedRowsPerSecond": 260.4,
        "durationMs": {"triggerExecution": 192},
        "sources": [
            {"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 3}}},
            {"endOffset": {"b": {"0": 1}}, "latestOffset": {"b": {"0": 2}}},
            {"endOffset": 4, "latestOffset": 5},
        ],
    }
    status = status_of("sink", report, 120)
    assert (status.batch_id, status.rows, status.rows_per_second, status.lag) == (4, 120, 260.4, 3)
    assert (status.batch_rows, status.batch_ms, status.batch_at_ms) == (50, 192, 1772366400250)


class Report:
    """One of Spark's, as far as it is asked."""

    def __init__(self, batch, rows, second) -> None:
        self.batchId, self.numInputRows, self.timestamp = batch, rows, f"2026-03-01T12:00:{second:02}.000Z"
        self.json = json.dumps({"id": "q", "batchId": batch, "timestamp": self.timestamp, "numInputRows": rows})


class Query:
    """One that has reported."""

    def __init__(self) -> None:
        self.id, self.recentProgress = "q", []

    @property
    def lastProgress(self):  # noqa: N802  Spark's name
        return self.recentProgress[-1] if self.recentProgress else None


def test_rows_of_every_batch_are_counted_once_however_seldom_it_is_asked() -> None:
    query = Query()
    follower = QueryProgress("sink", query)
    assert not follower.ask()
    assert follower.status.batch_id is None
    query.recentProgress += [Report(0, 5, 0), Report(1, 7, 1)]
    assert follower.ask()
    assert not follower.ask(), "nothing new"
    assert (follower.status.rows, follower.status.batch_id) == (12, 1)
    query.recentProgress += [Report(2, 1, 2)]
    assert follower.ask()
    assert follower.status.rows == 13
    # Nothing to do, then three batches between two questions.
    query.recentProgress += [Report(3, 0, 12)]
    assert follower.ask()
    query.recentProgress += [Report(3, 2, 13), Report(4, None, 14), Report(5, 4, 15)]
    assert follower.ask()
    assert (follower.status.rows, follower.status.batch_id) == (19, 5)
