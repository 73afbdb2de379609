"""The client of sinks asks again where that may help, and only there."""

import json
from uuid import UUID

import pytest

from penstock.client import Aborted, CannotConnect, Committed, Opened, RequestRefused, SinkClient, StagedPart
from tests.unit.client.test_http import server


def answer(body: object, status: str = "200 OK") -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(data), data)


COMMITTED = {"committed": True, "already": False, "records": 3, "dropped": 0}
STAGING_ID = "00000000-0000-0000-0000-000000000005"
LATE = answer({"error": "DEADLINE_EXCEEDED", "message": "it goes on"}, "504 Gateway Timeout")


def body_of(request: bytes) -> object:
    return json.loads(request.partition(b"\r\n\r\n")[2])


def test_a_commit_is_sent_as_the_broker_reads_it() -> None:
    with server(answer(COMMITTED)) as (address, requests), SinkClient(address) as sinks:
        told = sinks.commit("q/1", 4, [StagedPart("out", 1, [(0, 5, 3)])], staging_id=STAGING_ID)
    assert told == Committed(True, False, 3, 0)
    assert requests[0].startswith(b"POST /v1/sinks/q%2F1/commit ")
    assert body_of(requests[0]) == {
        "batch_id": 4,
        "parts": [{"topic": "out", "partition": 1, "staged": [[0, 5, 3]]}],
        "staging_id": STAGING_ID,
    }


def test_a_sink_is_opened_with_what_the_opener_wants() -> None:
    opened = answer({"sink": "q", "staging_topic": "s", "staging_id": STAGING_ID, "partitions": 1, "last_batch_id": 3})
    with server(opened, opened) as (address, requests), SinkClient(address) as sinks:
        assert sinks.open("q") == sinks.open("q", remember_ms=5) == Opened("q", "s", UUID(STAGING_ID), 1, 3)
    assert [body_of(request) for request in requests] == [{}, {"remember_ms": 5}]


def test_a_bound_is_told_at_once() -> None:
    refusal = answer({"error": "RESOURCE_EXHAUSTED", "message": "there are 10000 sinks"}, "429 Too Many Requests")
    with (
        server(refusal) as (address, requests),
        SinkClient(address) as sinks,
        pytest.raises(RequestRefused, match="10000 sinks"),
    ):
        sinks.open("q")
    assert len(requests) == 1


def test_whoever_waits_for_nobody_is_told_at_once_that_nobody_is_there(monkeypatch) -> None:
    monkeypatch.setattr("penstock.client.sinks.sleep", lambda _: pytest.fail("it waits"))
    with server() as (address, _):
        pass
    with SinkClient(address, away_ms=0) as sinks, pytest.raises(CannotConnect):
        sinks.list()


def test_what_takes_too_long_is_asked_again() -> None:
    with server(LATE, answer({**COMMITTED, "already": True})) as (address, requests), SinkClient(address) as sinks:
        assert sinks.commit("q", 4, [], staging_id=STAGING_ID).already
    assert body_of(requests[0]) == body_of(requests[1])


def test_a_lost_connection_is_no_reason_to_give_up() -> None:
    answers = b"", answer({"aborted": True, "why": ""})
    with server(*answers, close_after=True) as (address, requests), SinkClient(address) as sinks:
        assert sinks.abort("q", 1) == Aborted(True, "")
    assert len(requests) == 2


def test_a_refusal_is_final() -> None:
    refusal = answer({"error": "INVALID_ARGUMENT", "message": "offsets 0 to 1 are not staged"}, "400 Bad Request")
    with (
        server(refusal) as (address, requests),
        SinkClient(address) as sinks,
        pytest.raises(RequestRefused, match="not staged"),
    ):
        sinks.commit("q", 4, [], staging_id=STAGING_ID)
    assert len(requests) == 1


def test_in_the_end_it_gives_up(pauses) -> None:
    with (
        server(*[LATE] * 100) as (address, requests),
        SinkClient(address, timeout_ms=10_000) as sinks,
        pytest.raises(RequestRefused, match="it goes on"),
    ):
        sinks.commit("q", 4, [], staging_id=STAGING_ID)
    assert len(requests) > 1
    with SinkClient(address, timeout_ms=10_000) as sinks, pytest.raises(CannotConnect):
        sinks.open("q")


def test_what_is_not_penstock_is_not_asked_again() -> None:
    other = b"HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\n\r\n<html>"
    with server(other) as (address, requests), SinkClient(address) as sinks, pytest.raises(CannotConnect, match="404"):
        sinks.open("q")
    assert len(requests) == 1


def test_what_stands_before_a_broker_that_is_away_is_asked_again() -> None:
    away = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>"
    with server(away, answer(COMMITTED), close_after=True) as (address, requests), SinkClient(address) as sinks:
        assert sinks.commit("q", 4, [], staging_id=STAGING_ID).committed
    assert len(requests) == 2


def test_an_address_where_nobody_is_is_told_before_the_time_of_a_commit_is_over(monkeypatch) -> None:
    monkeypatch.setattr("penstock.client.sinks.OPEN_TIMEOUT_MS", 200)
    with server() as (address, _):
        pass
    with SinkClient(address) as sinks, pytest.raises(CannotConnect):
        sinks.open("q")


def test_sinks_are_listed_told_and_deleted() -> None:
    status = {
        "sink": "q",
        "staging_topic": "__staging.q",
        "last_batch_id": None,
        "committed_ms": None,
        "since_ms": 5,
        "staged_bytes": 0,
        "used_ms": 6,
        "remember_ms": 7,
        "committing": None,
        "problem": None,
        "a field of later": 1,
    }
    answers = answer({"sinks": [status]}), answer(status), b"HTTP/1.1 204 No Content\r\n\r\n"
    with server(*answers) as (address, requests), SinkClient(address) as sinks:
        assert sinks.list() == [sinks.status("q")]
        sinks.delete("q")
    assert requests[2].startswith(b"DELETE /v1/sinks/q ")
