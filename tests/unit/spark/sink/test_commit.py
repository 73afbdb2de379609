"""What the driver makes of what the tasks told."""

import pytest

from penstock.address import parse_address
from penstock.client.errors import CannotConnect
from penstock.client.sinks import StagedPart
from penstock.spark.sink.commit import merged, open_sink, staged_by
from penstock.spark.sink.staging import Delivered, Staged


def test_a_partition_gets_what_the_tasks_staged_task_by_task():
    first = Staged("s", 1, (StagedPart("t", 0, [(0, 0, 5), (0, 9, 1)]), StagedPart("u", 1, [(0, 5, 4)])))
    second = Staged("s", 1, (StagedPart("u", 1, [(0, 10, 2)]), StagedPart("t", 0, [(0, 12, 3)])))
    assert merged([first, Staged("s", 1), second]) == [
        StagedPart("t", 0, [(0, 0, 5), (0, 9, 1), (0, 12, 3)]),
        StagedPart("u", 1, [(0, 5, 4), (0, 10, 2)]),
    ]


def test_a_task_that_failed_or_produced_by_itself_staged_nothing():
    assert staged_by([None, Delivered(3), Staged("s", 1)]) == [Staged("s", 1)]


def test_an_http_listener_that_cannot_be_reached_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr("penstock.client.sinks.OPEN_TIMEOUT_MS", 0)
    with pytest.raises(CannotConnect, match=r"exactly-once writes at 127\.0\.0\.1:1 .* start it with --http"):
        open_sink(parse_address("127.0.0.1:1"), "s")
