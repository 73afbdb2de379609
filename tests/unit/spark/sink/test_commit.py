"""What the driver makes of what the tasks told."""

import pytest
from pyspark.sql.datasource import WriterCommitMessage

from penstock.client.errors import CannotConnect, ClientError
from penstock.operations.sinks import SinkPart
from penstock.spark.sink.commit import SinkPlace, commit, merged, not_committed, open_sink, staged_by
from penstock.spark.sink.staging import Staged
from tests.unit.client.test_http import server
from tests.unit.client.test_sinks import COMMITTED, LATE, answer, body_of

LIFE = "00000000-0000-0000-0000-000000000007"


def test_a_partition_gets_what_the_tasks_staged_task_by_task() -> None:
    first = Staged("s", 1, LIFE, (SinkPart("t", 0, [(0, 0, 5), (0, 9, 1)]), SinkPart("u", 1, [(0, 5, 4)])))
    second = Staged("s", 1, LIFE, (SinkPart("u", 1, [(0, 10, 2)]), SinkPart("t", 0, [(0, 12, 3)])))
    assert merged([first, Staged("s", 1, LIFE), second]) == [
        SinkPart("t", 0, [(0, 0, 5), (0, 9, 1), (0, 12, 3)]),
        SinkPart("u", 1, [(0, 5, 4), (0, 10, 2)]),
    ]


def test_a_task_that_failed_or_produced_by_itself_staged_nothing() -> None:
    assert staged_by([None, WriterCommitMessage(), Staged("s", 1, LIFE)]) == [Staged("s", 1, LIFE)]


def test_an_http_listener_that_cannot_be_reached_is_named_with_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr("penstock.client.sinks.OPEN_TIMEOUT_MS", 0)
    with pytest.raises(CannotConnect, match=r"127\.0\.0\.1:1, .* start the broker with --http"):
        open_sink(SinkPlace("127.0.0.1:1"), "s")


def test_a_commit_includes_the_id_of_the_staging_topic() -> None:
    done = Staged("s", 1, "another, of a task with nothing to write")
    with server(answer(COMMITTED)) as (address, requests):
        commit(SinkPlace(address), [done, Staged("s", 1, LIFE, (SinkPart("t", 0, [(0, 0, 3)]),))][::-1])
    assert body_of(requests[0])["staging_id"] == LIFE


def test_rows_that_were_staged_in_two_lives_are_not_committed() -> None:
    staged = [Staged("s", 1, life, (SinkPart("t", 0, [(0, 0, 3)]),)) for life in (LIFE, "other")]
    with server() as (address, requests), pytest.raises(ClientError, match="Run the batch again"):
        commit(SinkPlace(address), staged)
    assert requests == []


def test_the_reason_of_a_waiting_commit_is_logged_once(caplog) -> None:
    staged = [Staged("s", 1, LIFE, (SinkPart("t", 0, [(0, 0, 3)]),))]
    with server(LATE, LATE, answer(COMMITTED)) as (address, requests):
        commit(SinkPlace(address), staged)
    assert len(requests) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "batch 1 is staged and waits for its commit by the sink s: it goes on (DEADLINE_EXCEEDED)"
    ]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (answer({"aborted": True, "why": ""}), "the disk is full"),
        (answer({"error": "NOT_FOUND", "message": "no such sink"}, "404 Not Found"), "the disk is full"),
        (
            answer({"aborted": False, "why": "it is about to be committed"}),
            (
                "the disk is full. The broker has the rows and will append them when it can: running this again would append them twice. "
                "To see the result, run penstock sink show batch-1"
            ),
        ),
        (
            answer({"error": "INTERNAL", "message": "no"}, "500 Internal Server Error"),
            "the disk is full. It is unknown whether its rows are in the topic or will be appended later. To see the result, run penstock sink show batch-1",
        ),
    ],
    ids=["taken back", "gone", "goes on", "no answer"],
)
def test_a_write_that_was_not_committed_says_whether_it_may_be_run_again(told, text) -> None:
    with server(told) as (address, _):
        assert str(not_committed(SinkPlace(address), "batch-1", 0, ClientError("the disk is full"))) == text
