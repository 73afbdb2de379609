"""What a condition needs to be read, and moments as everybody writes them."""

import pytest

from penstock.spark.pipelines.builtin.dead_letters import mentioned, moment
from penstock.spark.tables.dead_letters import DeadLettersTable


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("", set()),
        ("reason LIKE '%timeout%' AND died_at > now() - interval 1 day", {"reason", "died_at"}),
        ("CAST(`Value` AS STRING) = 'x' OR attempts>3", {"value", "attempts"}),
        ("exists(headers, h -> h.key = 'tenant')", {"headers", "key"}),
        ("reasonable = 1", set()),
    ],
)
def test_a_column_that_a_condition_mentions_is_read(where, columns) -> None:
    assert mentioned(where, DeadLettersTable.columns.names) == columns


def test_a_moment_is_in_utc() -> None:
    assert moment(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert moment(None) is None
