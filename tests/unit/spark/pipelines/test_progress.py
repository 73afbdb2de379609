"""Spark's report of a batch, as a few numbers."""

import pytest

from penstock.spark.pipelines.progress import lag_of, status_of


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
def test_lag_is_what_is_there_and_not_read(done, latest, lag):
    assert lag_of(done, latest) == lag


def test_the_numbers_of_a_batch():
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
