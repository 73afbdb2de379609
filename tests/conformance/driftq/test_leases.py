"""What a lease promises: a record is one owner's, until it is acked, nacked, given up or too late."""

import json
import socket
import subprocess
from contextlib import ExitStack

import pytest

from tests.support.waiting import eventually

SHORT_MS = 150


def values(lines) -> list[str]:
    return [line["value"] for line in lines]


def test_an_expired_lease_is_redelivered_to_another_stream_with_its_attempts_and_why(driftq, topic) -> None:
    with driftq.consume(topic, "slow") as slow:
        driftq.produce(topic, "work")
        first = slow.next()
        assert (first["attempts"], first["last_error"]) == (1, "")
        with driftq.consume(topic, "quick") as quick:
            # Only now does the lease become short: alone, the slow one would get its own record again.
            assert driftq.settle("extend", topic, "slow", first, lease_ms=SHORT_MS).status_code == 204
            again = quick.next()
            assert (again["offset"], again["attempts"], again["last_error"]) == (0, 2, "ack_timeout")
            late = driftq.settle("ack", topic, "slow", first)
            assert (late.status_code, late.json()) == (
                409,
                {"error": "FAILED_PRECONDITION", "message": "not owner"},
            )
            driftq.ack(topic, "quick", again)


def first_line(driftq, topic, owner) -> dict:
    """The first line that curl prints of a stream; then curl is ended, and the connection with it."""
    url = f"{driftq.url}/v1/consume?topic={topic}&group=g&owner={owner}&lease_ms=60000"
    with subprocess.Popen(["curl", "-sN", "--max-time", "60", url], stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        line = json.loads(curl.stdout.readline())
        curl.kill()
    return line


def no_streams(driftq, topic) -> None:
    """Wait until the broker has noticed that every stream has ended."""
    eventually(
        lambda: not any(owner["workers"] for owner in driftq.status(topic)["owners"]),
        what="the broker to notice that the streams have ended",
    )


def test_the_first_line_of_a_stream_is_acked_after_the_stream_has_ended(driftq, topic) -> None:
    driftq.produce(topic, "work")
    line = first_line(driftq, topic, "a")
    no_streams(driftq, topic)
    driftq.ack(topic, "a", line)
    assert driftq.status(topic)["lag"] == 0


def test_short_connections_make_no_dead_letter(driftq, topic) -> None:
    driftq.produce(topic, "work", retry_policy={"max_attempts": 2})
    for _ in range(3):
        line = first_line(driftq, topic, "a")
        assert (line["offset"], line["attempts"], line["last_error"]) == (0, 1, "")
        no_streams(driftq, topic)
    driftq.ack(topic, "a", line)
    assert f"dlq.{topic}" not in driftq.http.get("/v1/topics").json()["topics"]


def test_an_owner_that_comes_back_gets_its_records_first_with_the_same_attempt(driftq, topic) -> None:
    for number in range(3):
        driftq.produce(topic, f"work {number}")
    with driftq.consume(topic, "a", max_in_flight=2) as stream:
        assert values(stream.take(2)) == ["work 0", "work 1"]
    no_streams(driftq, topic)
    until_ms = driftq.why(topic, 0, 0)["until_ms"]
    with driftq.consume(topic, "a", lease_ms=120_000) as stream:
        lines = stream.take(3)
        assert [(line["value"], line["attempts"]) for line in lines] == [("work 0", 1), ("work 1", 1), ("work 2", 1)]
        assert driftq.why(topic, 0, 0)["until_ms"] == until_ms


def test_a_record_that_an_open_stream_holds_is_not_sent_to_a_second_stream_of_its_owner(driftq, topic) -> None:
    driftq.produce(topic, "first")
    with driftq.consume(topic, "a") as second_to_close:
        with driftq.consume(topic, "a", max_in_flight=1):
            pass
        assert second_to_close.next()["value"] == "first"
        with driftq.consume(topic, "a") as late:
            driftq.produce(topic, "second")
            driftq.produce(topic, "third")
            got = [late.next()["value"], second_to_close.next()["value"]]
            assert sorted(got) == ["second", "third"]


def test_another_owner_waits_for_the_end_of_the_lease(driftq, topic) -> None:
    driftq.produce(topic, "work")
    line = first_line(driftq, topic, "leaver")
    no_streams(driftq, topic)
    with driftq.consume(topic, "stayer") as stayer:
        driftq.produce(topic, "sentinel")
        assert stayer.next()["value"] == "sentinel"
        assert driftq.settle("extend", topic, "leaver", line, lease_ms=SHORT_MS).status_code == 204
        again = stayer.next()
        assert (again["value"], again["attempts"], again["last_error"]) == ("work", 2, "ack_timeout")


def test_a_stream_that_releases_hands_its_records_over_at_once_without_counting_the_attempt(driftq, topic) -> None:
    for number in range(3):
        driftq.produce(topic, f"work {number}", retry_policy={"max_attempts": 1})
    with driftq.consume(topic, "leaver", release_on_disconnect="true") as leaver:
        taken = leaver.take(3)
        assert values(taken) == ["work 0", "work 1", "work 2"]
    # The lease is a minute; the stream waits for seconds.
    with driftq.consume(topic, "stayer") as stayer:
        lines = stayer.take(3)
        assert values(lines) == ["work 0", "work 1", "work 2"]
        assert {(line["attempts"], line["last_error"]) for line in lines} == {(1, "owner_disconnected")}
        assert driftq.settle("ack", topic, "leaver", taken[0]).status_code == 409


def test_release_on_disconnect_is_true_or_false(driftq, topic) -> None:
    fields = {"topic": topic, "group": "g", "owner": "a", "release_on_disconnect": "yes"}
    answer = driftq.http.get("/v1/consume", params=fields)
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "invalid release_on_disconnect: give true or false",
    )


def test_an_acked_record_is_not_delivered_again(driftq, topic) -> None:
    with driftq.consume(topic, "a") as stream:
        for number in range(3):
            driftq.produce(topic, f"work {number}")
        lines = stream.take(3)
        driftq.ack(topic, "a", lines[0])
        driftq.ack(topic, "a", lines[2])
    with driftq.consume(topic, "a") as stream:
        driftq.produce(topic, "sentinel")
        assert values(stream.take(2)) == ["work 1", "sentinel"]


def test_several_offsets_are_acked_all_or_none(driftq, topic) -> None:
    for number in range(3):
        driftq.produce(topic, f"work {number}")
    with driftq.consume(topic, "a") as stream:
        stream.take(3)
        names = {"topic": topic, "group": "g", "owner": "a", "partition": 0}
        wrong = driftq.http.post("/v1/ack", json={**names, "offsets": [0, 1, 7]})
        assert (wrong.status_code, wrong.json()["error"]) == (400, "INVALID_ARGUMENT")
        assert driftq.status(topic)["in_flight"] == 3
        right = driftq.http.post("/v1/ack", params={**names, "offsets": "0,1"})
        assert right.status_code == 204
        assert driftq.status(topic)["in_flight"] == 1


def test_several_offsets_are_nacked_all_or_none(driftq, topic) -> None:
    for number in range(2):
        driftq.produce(topic, f"work {number}", retry_policy={"backoff_ms": 600_000})
    names = {"topic": topic, "group": "g", "owner": "a", "partition": 0}
    driftq.lease(topic, "a", max_records=2, wait_ms=30_000)
    wrong = driftq.http.post("/v1/nack", json={**names, "offsets": [0, 7], "reason": "x"})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "INVALID_ARGUMENT")
    assert driftq.status(topic)["in_flight"] == 2
    right = driftq.http.post("/v1/nack", json={**names, "offsets": [0, 1], "reason": "x"})
    assert right.status_code == 204
    assert driftq.status(topic)["in_flight"] == 0


def test_a_cumulative_ack_finishes_all_up_to_it_that_the_owner_holds(driftq, topic) -> None:
    for number in range(4):
        driftq.produce(topic, f"work {number}")
    with driftq.consume(topic, "a") as stream:
        lines = stream.take(4)
        assert driftq.settle("ack-cumulative", topic, "a", lines[2]).status_code == 204
        assert driftq.status(topic)["partitions"][0]["floor"] == 3
    with driftq.consume(topic, "a") as stream:
        assert stream.next()["value"] == "work 3"


def test_a_worker_keeps_its_lease_by_extending_it(driftq, topic) -> None:
    driftq.produce(topic, "long work")
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    answer = driftq.settle("extend", topic, "a", record, lease_ms=600_000)
    assert (answer.status_code, answer.content) == (204, b"")
    why = driftq.why(topic, 0, 0)
    assert why["state"] == "leased"
    assert why["until_ms"] > record["lease_until_ms"] + 300_000
    driftq.ack(topic, "a", record)


def test_a_lease_that_was_shortened_ends_sooner(driftq, topic) -> None:
    driftq.produce(topic, "work")
    (record,) = driftq.lease(topic, "a", lease_ms=600_000)
    assert driftq.settle("extend", topic, "a", record, lease_ms=SHORT_MS).status_code == 204
    with driftq.consume(topic, "b") as stream:
        assert (stream.next()["attempts"]) == 2


def test_groups_each_get_everything(driftq, topic) -> None:
    driftq.produce(topic, "for all")
    for group in ("g1", "g2"):
        with driftq.consume(topic, "o", group) as stream:
            line = stream.next()
            assert line["value"] == "for all"
            driftq.ack(topic, "o", line, group)


def test_the_owners_of_a_group_share_the_records(driftq, topic) -> None:
    with driftq.consume(topic, "a") as a, driftq.consume(topic, "b") as b:
        for number in range(10):
            driftq.produce(topic, str(number))
        got = {"a": a.take(5), "b": b.take(5)}
    assert sorted(values(got["a"]) + values(got["b"]), key=int) == [str(number) for number in range(10)]


def test_many_streams_at_once_each_get_what_is_theirs(driftq, topic) -> None:
    groups = [f"g{number}" for number in range(60)]
    with ExitStack() as open_streams:
        streams = {group: open_streams.enter_context(driftq.consume(topic, "o", group)) for group in groups}
        driftq.produce(topic, "for all")
        for group, stream in streams.items():
            line = stream.next()
            assert (line["value"], line["attempts"]) == ("for all", 1)
            driftq.ack(topic, "o", line, group)


def test_lease_gives_records_once_and_says_until_when(driftq, topic) -> None:
    assert driftq.lease(topic, "a") == []
    for number in range(3):
        driftq.produce(topic, f"work {number}")
    first = driftq.lease(topic, "a", max_records=2, wait_ms=30_000)
    assert values(first) == ["work 0", "work 1"]
    assert first[0]["lease_until_ms"] >= first[0]["timestamp"] + 60_000
    assert values(driftq.lease(topic, "b", max_records=9, wait_ms=30_000)) == ["work 2"]
    # The connection is not the lease's: another one may ack.
    driftq.ack(topic, "a", first[0])


def test_lease_waits_for_the_first_record(driftq, topic) -> None:
    import threading

    got: list[dict] = []
    waiter = threading.Thread(target=lambda: got.extend(driftq.lease(topic, "a", wait_ms=30_000)))
    waiter.start()
    eventually(lambda: driftq.http.get("/v1/queues").json()["queues"], what="the queue that is waited on")
    driftq.produce(topic, "at last")
    waiter.join()
    assert values(got) == ["at last"]


def test_a_stream_ends_when_its_topic_is_deleted(driftq, topic) -> None:
    with driftq.consume(topic, "a") as stream:
        assert driftq.http.delete(f"/topics/{topic}").status_code == 200
        assert list(stream.lines) == []


def test_a_reader_that_stops_reading_is_leased_no_more_than_its_socket_takes(driftq, topic) -> None:
    """A stream that is never read fills its socket, and the group's other worker gets the rest."""
    value = "x" * 100_000
    with driftq.consume(topic, "asleep") as asleep:
        for _ in range(200):
            driftq.produce(topic, value)
        eventually(lambda: driftq.status(topic)["in_flight"] > 0)
        with driftq.consume(topic, "awake") as awake:
            line = awake.next()
            assert line["value"] == value
        assert asleep.next()["offset"] == 0


@pytest.mark.parametrize("through", ["lane", "asgi"])
def test_a_waiting_client_that_leaves_is_leased_nothing(driftq, topic, through) -> None:
    def waiting() -> list[str]:
        answer = driftq.http.get(f"/v1/queues/{topic}/g")
        return [owner["owner"] for owner in answer.json()["owners"]] if answer.status_code == 200 else []

    close = "Connection: close\r\n" if through == "asgi" else ""
    path = f"/v1/lease?topic={topic}&group=g&owner=leaver&wait_ms=30000"
    host, _, port = driftq.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as leaver:
        leaver.sendall(f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{close}Content-Length: 0\r\n\r\n".encode())
        eventually(lambda: waiting() == ["leaver"], what="the client to wait")
    eventually(lambda: waiting() == [], what="the broker to notice that the client left")
    driftq.produce(topic, "work")
    (record,) = driftq.lease(topic, "stayer", wait_ms=30_000)
    assert record["attempts"] == 1
