"""What the driver makes of what the tasks told."""

import pytest

from penstock.address import parse_address
from penstock.client.errors import CannotConnect, ClientError
from penstock.client.sinks import StagedPart
from penstock.spark.sink.commit import commit, merged, open_sink, staged_by
from penstock.spark.sink.staging import Delivered, Staged
from tests.unit.client.test_http import server
from tests.unit.client.test_sinks import COMMITTED, answer, body_of

LIFE = "00000000-0000-0000-0000-000000000007"


def test_a_partition_gets_what_the_tasks_staged_task_by_task():
    first = Staged("s", 1, LIFE, (StagedPart("t", 0, [(0, 0, 5), (0, 9, 1)]), StagedPart("u", 1, [(0, 5, 4)])))
    second = Staged("s", 1, LIFE, (StagedPart("u", 1, [(0, 10, 2)]), StagedPart("t", 0, [(0, 12, 3)])))
    assert merged([first, Staged("s", 1, LIFE), second]) == [
        StagedPart("t", 0, [(0, 0, 5), (0, 9, 1), (0, 12, 3)]),
        StagedPart("u", 1, [(0, 5, 4), (0, 10, 2)]),
    ]


def test_a_task_that_failed_or_produced_by_itself_staged_nothing():
    assert staged_by([None, Delivered(3), Staged("s", 1, LIFE)]) == [Staged("s", 1, LIFE)]


def test_an_http_listener_that_cannot_be_reached_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr("penstock.client.sinks.OPEN_TIMEOUT_MS", 0)
    with pytest.raises(CannotConnect, match=r"exactly-once writes at 127\.0\.0\.1:1 .* start it with --http"):
        open_sink(parse_address("127.0.0.1:1"), "s")


def test_a_commit_says_in_which_life_of_the_staging_topic_its_parts_lie():
    done = Staged("s", 1, "another, of a task with nothing to write")
    with server(answer(COMMITTED)) as (address, requests):
        commit(parse_address(address), [done, Staged("s", 1, LIFE, (StagedPart("t", 0, [(0, 0, 3)]),))][::-1])
    assert body_of(requests[0])["staging_id"] == LIFE


def test_rows_that_were_staged_in_two_lives_are_not_committed():
    staged = [Staged("s", 1, life, (StagedPart("t", 0, [(0, 0, 3)]),)) for life in (LIFE, "other")]
    with server() as (address, requests), pytest.raises(ClientError, match="Run the batch again"):
        commit(parse_address(address), staged)
    assert requests == []
