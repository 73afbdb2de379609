"""Failure: backoff, attempts, dead letters, deadlines, delays."""

import time

from tests.support.waiting import eventually, growing


def test_a_nacked_record_comes_again_with_the_reason(driftq, topic) -> None:
    with driftq.consume(topic, "a") as stream:
        driftq.produce(topic, "work")
        driftq.nack(topic, "a", stream.next(), "no database")
        again = stream.next()
        assert (again["attempts"], again["last_error"]) == (2, "no database")


def test_error_is_another_name_for_reason(driftq, topic) -> None:
    with driftq.consume(topic, "a") as stream:
        driftq.produce(topic, "work")
        line = stream.next()
        place = f"topic={topic}&group=g&owner=a&partition=0&offset={line['offset']}"
        assert driftq.curl("-X", "POST", f"/v1/nack?{place}&error=no%20disk").status == 204
        assert stream.next()["last_error"] == "no disk"


def test_backoff_doubles_from_attempt_to_attempt_up_to_its_cap(driftq, topic) -> None:
    """The broker's own clock says when: each wait is read, and shortened by nothing."""
    policy = {"max_attempts": 9, "backoff_ms": 100, "max_backoff_ms": 300}
    driftq.produce(topic, "work", retry_policy=policy)
    with driftq.consume(topic, "a") as stream:
        for expected_ms in (100, 200, 300, 300):
            line = stream.next()
            before_ms = time.time() * 1000
            driftq.nack(topic, "a", line, "again")
            why = driftq.why(topic, 0, 0)
            if why["state"] == "backing_off":
                assert before_ms + expected_ms - 1 <= why["until_ms"] <= time.time() * 1000 + expected_ms
                assert why["last_error"] == "again"
        assert stream.next()["attempts"] == 5


def test_too_many_attempts_make_a_dead_letter_with_everything_it_had(driftq, topic) -> None:
    envelope = {"run_id": "r1", "tenant_id": "acme", "retry_policy": {"max_attempts": 2}}
    driftq.produce(topic, "poison", "k", **envelope)
    with driftq.consume(topic, "a") as stream:
        for _ in range(2):
            driftq.nack(topic, "a", stream.next(), "cannot parse")
        driftq.produce(topic, "sentinel")
        # The record is finished for its own queue.
        assert stream.next()["value"] == "sentinel"
    dead = f"dlq.{topic}"
    eventually(lambda: dead in driftq.http.get("/v1/topics").json()["topics"])
    with driftq.consume(dead, "operator") as stream:
        line = stream.next()
    routed_at_ms = line.pop("routed_at_ms")
    assert abs(routed_at_ms - time.time() * 1000) < 60_000
    line.pop("timestamp")
    assert line == {
        "topic": dead,
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": "poison",
        "attempts": 2,
        "last_error": "cannot parse",
        "deliveries": 1,
        "envelope": envelope,
        "original_topic": topic,
        "original_partition": 0,
        "original_offset": 0,
        "original_group": "g",
    }


def test_the_dead_letter_has_its_facts_as_headers_for_any_other_api(driftq, topic) -> None:
    driftq.produce(topic, "poison", retry_policy={"max_attempts": 1})
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    driftq.nack(topic, "a", record, "boom")

    def messages():
        answer = driftq.http.get(f"/topics/dlq.{topic}/partitions/0/messages")
        return answer.json()["messages"] if answer.status_code == 200 else []

    (message,) = eventually(messages)
    headers = message["headers"]
    assert headers["original_topic"] == topic
    assert headers["original_partition"] == "0"
    assert headers["original_offset"] == "0"
    assert headers["attempts"] == "1"
    assert headers["last_error"] == "boom"
    assert int(headers["routed_at_ms"]) > 0


def test_dead_letters_have_as_many_partitions_and_stay_in_theirs(driftq) -> None:
    topic = driftq.create("dead-places", 3)
    driftq.produce(topic, "poison", partition_override=2, retry_policy={"max_attempts": 1})
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    assert record["partition"] == 2
    driftq.nack(topic, "a", record, "boom")
    eventually(lambda: f"dlq.{topic}" in driftq.http.get("/v1/topics").json()["topics"])
    with driftq.consume(f"dlq.{topic}", "operator") as stream:
        line = stream.next()
    assert (line["partition"], line["original_partition"]) == (2, 2)
    assert driftq.http.get(f"/topics/dlq.{topic}").json()["topic"]["partitions"] == 3


def test_an_expired_last_attempt_makes_a_dead_letter_with_nobody_connected(driftq, topic) -> None:
    driftq.produce(topic, "poison", retry_policy={"max_attempts": 1})
    driftq.lease(topic, "a", lease_ms=100, wait_ms=30_000)
    eventually(lambda: f"dlq.{topic}" in driftq.http.get("/v1/topics").json()["topics"])
    with driftq.consume(f"dlq.{topic}", "operator") as stream:
        assert stream.next()["last_error"] == "ack_timeout"


def test_a_record_past_its_deadline_is_finished_and_not_delivered(driftq, topic) -> None:
    # The queue exists, so the clock looks after it; nobody is connected.
    assert driftq.lease(topic, "a") == []
    driftq.produce(topic, "stale", deadline=_in_ms(300), delay_ms=600_000)
    eventually(lambda: driftq.status(topic)["partitions"][0]["floor"] == 1, what="the stale record to be finished")
    driftq.produce(topic, "fresh")
    with driftq.consume(topic, "a") as stream:
        assert stream.next()["value"] == "fresh"
    assert f"dlq.{topic}" not in driftq.http.get("/v1/topics").json()["topics"]


def test_a_delayed_record_waits_while_others_pass_it(driftq, topic) -> None:
    for seconds in growing(0.3):
        with driftq.consume(topic, "a") as stream:
            begun = time.monotonic()
            driftq.produce(topic, "later", delay_ms=round(seconds * 1000))
            driftq.produce(topic, "now")
            lines = stream.take(1)
            is_early = time.monotonic() - begun < seconds
            lines += stream.take(1)
            for line in lines:
                driftq.ack(topic, "a", line)
        if is_early:
            break
    assert is_early
    assert [line["value"] for line in lines] == ["now", "later"]


def test_not_before_is_a_moment(driftq, topic) -> None:
    moment = int(time.time() * 1000) + 600_000
    answer = driftq.curl("-X", "POST", f"/v1/produce?topic={topic}&value=v&not_before_ms={moment}")
    assert answer.status == 200
    assert driftq.lease(topic, "a") == []
    why = driftq.why(topic, 0, 0)
    assert (why["state"], why["until_ms"]) == ("delayed", moment)


def _in_ms(milliseconds: int) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) + timedelta(milliseconds=milliseconds)).isoformat().replace("+00:00", "Z")
