"""What stands beside the original API: how queues stand, why a record is not delivered, dead letters, numbers."""

import json

import httpx

from tests.support.waiting import eventually


def die(driftq, topic: str, value: str, reason: str) -> None:
    """Make a dead letter."""
    driftq.produce(topic, value, retry_policy={"max_attempts": 1})
    (record,) = driftq.lease(topic, "killer", wait_ms=30_000)
    assert record["value"] == value
    driftq.nack(topic, "killer", record, reason)


def open_letters(driftq, topic: str) -> int:
    found = driftq.http.get("/v1/dlq").json()["topics"]
    return next((each["open"] for each in found if each["topic"] == topic), 0)


def lines_of(answer: httpx.Response) -> list[dict]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_queue_says_how_it_stands(driftq, topic) -> None:
    for number in range(4):
        driftq.produce(topic, f"work {number}", **({"delay_ms": 600_000} if number == 3 else {}))
    records = driftq.lease(topic, "a", max_records=3, wait_ms=30_000)
    driftq.ack(topic, "a", records[1])
    status = driftq.status(topic)
    assert (status["topic"], status["group"], status["in_flight"], status["lag"]) == (topic, "g", 2, 3)
    (partition,) = status["partitions"]
    assert (partition["floor"], partition["end"], partition["leased"]) == (0, 4, 2)
    assert partition["finished_above_floor"] == 1
    assert [(owner["owner"], owner["leased"]) for owner in status["owners"]] == [("a", 2)]
    listed = driftq.http.get("/v1/queues").json()["queues"]
    assert status in listed


def test_peek_shows_what_is_not_finished_and_changes_nothing(driftq, topic) -> None:
    for number in range(3):
        driftq.produce(topic, f"work {number}", f"k{number}", run_id=f"r{number}")
    records = driftq.lease(topic, "a", max_records=2, wait_ms=30_000)
    driftq.ack(topic, "a", records[0])
    for _ in range(2):
        peeked = driftq.http.get(f"/v1/queues/{topic}/g/peek").json()["records"]
        assert [(each["offset"], each["state"], each.get("owner")) for each in peeked] == [
            (1, "leased", "a"),
            (2, "untouched", None),
        ]
        assert peeked[0]["until_ms"] == records[1]["lease_until_ms"]
        assert (peeked[1]["key"], peeked[1]["value"]) == ("k2", "work 2")
        assert peeked[1]["envelope"] == {"run_id": "r2"}
    assert len(driftq.http.get(f"/v1/queues/{topic}/g/peek?max_records=1").json()["records"]) == 1


def test_states_say_how_records_stand_without_the_records(driftq, topic) -> None:
    for number in range(5):
        driftq.produce(topic, f"work {number}")
    records = driftq.lease(topic, "a", max_records=4, wait_ms=30_000)
    for record in (records[0], records[2]):
        driftq.ack(topic, "a", record)
    states = driftq.http.get(f"/v1/queues/{topic}/g/states?partition=0").json()
    assert (states["floor"], states["end"], states["finished"], states["next_offset"]) == (1, 5, [[2, 3]], None)
    assert [(each["offset"], each["state"], each["owner"], each["attempts"]) for each in states["records"]] == [
        (1, "leased", "a", 1),
        (3, "leased", "a", 1),
    ]
    assert states["records"][0]["until_ms"] == records[1]["lease_until_ms"]
    later = driftq.http.get(f"/v1/queues/{topic}/g/states?partition=0&offset=2").json()
    assert [each["offset"] for each in later["records"]] == [3]


def test_why_says_it_in_a_word_and_a_sentence(driftq, topic) -> None:
    for number in range(3):
        driftq.produce(topic, f"work {number}", **({"delay_ms": 600_000} if number == 2 else {}))
    records = driftq.lease(topic, "worker-7", max_records=2, wait_ms=30_000)
    driftq.ack(topic, "worker-7", records[0])
    finished, leased, delayed, beyond = (driftq.why(topic, 0, offset) for offset in range(4))
    assert finished["state"] == "finished"
    assert (leased["state"], leased["owner"], leased["attempts"]) == ("leased", "worker-7", 1)
    assert leased["id"] == f"{topic}/0@1"
    assert "worker-7" in leased["sentence"]
    assert delayed["state"] == "delayed"
    assert beyond["state"] == "beyond_end"
    assert all(each["sentence"].endswith(".") for each in (finished, leased, delayed, beyond))


def test_why_answers_for_what_is_not_there(driftq, topic) -> None:
    assert driftq.why("no-such-topic", 0, 0)["state"] == "no_such_topic"
    assert driftq.why(topic, 9, 0)["state"] == "no_such_partition"


def test_what_looking_refuses(driftq, topic) -> None:
    for path, status in (
        ("/v1/queues/no-such-topic/g", 404),
        ("/v1/why", 400),
        (f"/v1/why?topic={topic}&group=g&partition=0&offset=x", 400),
        (f"/v1/queues/{topic}/g/peek?max_records=0", 400),
        (f"/v1/queues/{topic}/g/states", 400),
        (f"/v1/queues/{topic}/no-such-group/states?partition=0", 404),
        ("/v1/dlq/no-such-topic", 404),
        ("/v1/groups/no-such-group", 404),
        ("/v1/topics/no-such-topic/stats", 404),
    ):
        answer = driftq.http.get(path)
        assert answer.status_code == status, (path, answer.text)
        body = answer.json()
        assert body["error"] == {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}[status]
        assert body["message"]


def test_dead_letters_are_chosen_by_their_places(driftq, topic) -> None:
    for value in "abc":
        die(driftq, topic, value, "boom")
    eventually(lambda: open_letters(driftq, topic) == 3)
    body = {"chosen": [{"partition": 0, "offsets": [0, 2]}]}
    assert driftq.http.post(f"/v1/dlq/{topic}/plan", json=body).json()["count"] == 2
    for finished in (2, 0):
        last = json.loads(driftq.http.post(f"/v1/dlq/{topic}/redrive", json=body).text.splitlines()[-1])
        assert (last["done"], last["finished"], last["failed"]) == (True, finished, 0)
    assert open_letters(driftq, topic) == 1
    too_many = {"chosen": [{"partition": 0, "offsets": list(range(10_001))}]}
    refused = driftq.http.post(f"/v1/dlq/{topic}/redrive", json=too_many)
    assert (refused.status_code, "10000" in refused.json()["message"]) == (400, True)


def test_dead_letters_are_listed_shown_and_counted_by_reason(driftq, topic) -> None:
    for value, reason in (("a", "boom"), ("b", "bang"), ("c", "boom")):
        die(driftq, topic, value, reason)
    eventually(lambda: open_letters(driftq, topic) == 3)
    shown = driftq.http.get(f"/v1/dlq/{topic}").json()["records"]
    assert [(each["value"], each["last_error"], each["attempts"]) for each in shown] == [
        ("a", "boom", 1),
        ("b", "bang", 1),
        ("c", "boom", 1),
    ]
    assert {each["original_group"] for each in shown} == {"g"}
    only = driftq.http.get(f"/v1/dlq/{topic}?reason=bang").json()["records"]
    assert [each["value"] for each in only] == ["b"]
    plan = driftq.http.post(f"/v1/dlq/{topic}/plan").json()
    assert (plan["topic"], plan["dead_letter_topic"], plan["count"]) == (topic, f"dlq.{topic}", 3)
    assert [(each["reason"], each["count"]) for each in plan["reasons"]] == [("boom", 2), ("bang", 1)]
    assert driftq.http.post(f"/v1/dlq/{topic}/plan", json={"reason": "b*", "max_records": 2}).json()["count"] == 2
    assert open_letters(driftq, topic) == 3


def test_redrive_sends_back_what_is_meant_and_not_twice(driftq, topic) -> None:
    for value, reason in (("a", "boom"), ("b", "bang"), ("c", "boom")):
        die(driftq, topic, value, reason)
    eventually(lambda: open_letters(driftq, topic) == 3)
    *_, last = lines_of(driftq.http.post(f"/v1/dlq/{topic}/redrive?reason=boom&rate_per_second=1000"))
    assert (last["done"], last["total"], last["finished"], last["failed"]) == (True, 2, 2, 0)
    records = driftq.lease(topic, "b", max_records=9, wait_ms=30_000)
    assert sorted(record["value"] for record in records) == ["a", "c"]
    # A new life: its attempts begin again.
    assert {record["attempts"] for record in records} == {1}
    assert open_letters(driftq, topic) == 1
    *_, again = lines_of(driftq.http.post(f"/v1/dlq/{topic}/redrive", json={"reason": "boom"}))
    assert (again["done"], again["total"]) == (True, 0)


def test_purge_gives_up_what_is_meant(driftq, topic) -> None:
    for value, reason in (("a", "boom"), ("b", "bang")):
        die(driftq, topic, value, reason)
    eventually(lambda: open_letters(driftq, topic) == 2)
    *_, last = lines_of(driftq.http.post(f"/v1/dlq/{topic}/purge?reason=boom"))
    assert (last["done"], last["finished"]) == (True, 1)
    shown = driftq.http.get(f"/v1/dlq/{topic}").json()["records"]
    assert [each["value"] for each in shown] == ["b"]


def test_a_slow_redrive_tells_how_far_it_is_and_stops_when_its_client_leaves(driftq, topic) -> None:
    for number in range(9):
        die(driftq, topic, str(number), "boom")
    eventually(lambda: open_letters(driftq, topic) == 9)
    with driftq.http.stream("POST", f"/v1/dlq/{topic}/redrive?rate_per_second=0.5") as answer:
        lines = answer.iter_lines()
        line = eventually(lambda: (found := json.loads(next(lines)))["finished"] and found)
        assert (line["done"], line["total"]) == (False, 9)
    # What is under way still ends; then nothing more happens.
    *_, rest = lines_of(driftq.http.post(f"/v1/dlq/{topic}/redrive"))
    assert rest["total"] > 0
    assert rest["finished"] + rest["skipped"] == rest["total"]
    assert open_letters(driftq, topic) == 0
    records = driftq.lease(topic, "b", max_records=99, wait_ms=30_000)
    assert sorted(record["value"] for record in records) == [str(number) for number in range(9)]


def test_a_topic_in_numbers(driftq, topic) -> None:
    for _ in range(3):
        driftq.produce(topic, "v")
    stats = driftq.http.get(f"/v1/topics/{topic}/stats").json()
    assert (stats["topic"], stats["records"]) == (topic, 3)
    (partition,) = stats["partitions"]
    assert (partition["partition"], partition["start_offset"], partition["end_offset"]) == (0, 0, 3)
    assert [(flow["gateway"], flow["records_in"]) for flow in stats["flows"]] == [("http", 3)]
    driftq.lease(topic, "a", max_records=2, wait_ms=30_000)
    (flow,) = driftq.http.get(f"/v1/topics/{topic}/stats").json()["flows"]
    assert flow["records_out"] == 2


def test_a_group_in_numbers_with_its_queue(driftq, topic) -> None:
    group = f"group-of-{topic}"
    for _ in range(3):
        driftq.produce(topic, "v")
    records = driftq.lease(topic, "a", group, max_records=2, wait_ms=30_000)
    driftq.ack(topic, "a", records[0], group)

    def committed():
        found = driftq.http.get(f"/v1/groups/{group}")
        return found.status_code == 200 and found.json()["partitions"]

    (partition,) = eventually(committed)
    assert (partition["topic"], partition["committed"], partition["lag"]) == (topic, 1, 2)
    numbers = driftq.http.get(f"/v1/groups/{group}").json()
    assert [(queue["topic"], queue["in_flight"]) for queue in numbers["queues"]] == [(topic, 1)]
    assert group in [each["group"] for each in driftq.http.get("/v1/groups").json()["groups"]]


def test_both_ways_through_the_gateway_answer_alike(driftq, topic) -> None:
    """A connection that is to be closed goes past the fast lane."""
    driftq.produce(topic, "v")
    calls = [
        ("/v1/produce", {"topic": topic}),
        ("/v1/produce", {"topic": topic, "value": "v", "x": 1}),
        ("/v1/produce", {"topic": topic, "value": "v", "envelope": {"idempotency_key": "k"}}),
        ("/v1/ack", {"topic": topic, "group": "g", "owner": "o", "partition": 0, "offset": 0}),
        ("/v1/nack", {"topic": topic, "group": "g", "owner": "o", "partition": 0}),
        ("/v1/extend", {"topic": "no-such-topic", "group": "g", "owner": "o", "partition": 0, "offset": 0}),
        ("/v1/ack-cumulative", {"topic": topic, "group": "g", "owner": "o", "partition": 7, "offset": 0}),
    ]
    # A duplicate from here on: both ways are asked for the same.
    driftq.produce(topic, "v", idempotency_key="k")
    for path, body in calls:
        lane, asgi = (
            driftq.http.post(path, json=body, headers={"X-Request-Id": "one", **more})
            for more in ({}, {"Connection": "close"})
        )
        ignored = ("date", "connection")
        headers = [{name: text for name, text in each.headers.items() if name not in ignored} for each in (lane, asgi)]
        assert (lane.status_code, lane.content, headers[0]) == (asgi.status_code, asgi.content, headers[1])
