"""Every row of the API as a person types it: curl against a running broker, and what it prints."""

import json

import pytest

from penstock import __version__

INVALID = "INVALID_ARGUMENT"


def test_healthz(driftq) -> None:
    answer = driftq.curl("/v1/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["content-type"].startswith("application/json")


def test_version(driftq) -> None:
    answer = driftq.curl("/v1/version").json
    assert answer["version"] == __version__
    assert isinstance(answer["commit"], str)
    assert answer["wal_enabled"] is True
    assert set(answer) == {"version", "commit", "wal_enabled"}


def test_a_topic_is_made_by_query_string(driftq) -> None:
    answer = driftq.curl("-X", "POST", "/v1/topics?name=by-query&partitions=2")
    assert (answer.status, answer.json) == (201, {"status": "created", "name": "by-query", "partitions": 2})


def test_a_topic_is_made_by_body_and_has_one_partition_unless_told(driftq) -> None:
    answer = driftq.curl("-d", '{"name": "by-body"}', "/v1/topics")
    assert (answer.status, answer.json) == (201, {"status": "created", "name": "by-body", "partitions": 1})


def test_topics_are_listed_by_name(driftq) -> None:
    for name in ("list-b", "list-a", "list-c"):
        driftq.create(name)
    names = driftq.curl("/v1/topics").json["topics"]
    assert names == sorted(names)
    assert {"list-a", "list-b", "list-c"} <= set(names)
    assert not [name for name in names if name.startswith("__")]


def test_making_the_same_topic_again_changes_nothing(driftq, topic) -> None:
    driftq.produce(topic, "kept")
    answer = driftq.curl("-X", "POST", f"/v1/topics?name={topic}&partitions=1")
    assert (answer.status, answer.json) == (201, {"status": "created", "name": topic, "partitions": 1})
    assert driftq.produce(topic, "next")["offset"] == 1


def test_making_a_topic_again_with_other_partitions_is_a_conflict(driftq, topic) -> None:
    answer = driftq.curl("-X", "POST", f"/v1/topics?name={topic}&partitions=3")
    assert answer.status == 409
    assert answer.json["error"] == "FAILED_PRECONDITION"


def test_a_topic_is_deleted_with_what_is_in_it(driftq, topic) -> None:
    driftq.produce(topic, "v")
    answer = driftq.curl("-X", "DELETE", f"/v1/topics/{topic}")
    assert (answer.status, answer.body) == (204, "")
    assert topic not in driftq.http.get("/v1/topics").json()["topics"]
    again = driftq.curl("-X", "DELETE", f"/v1/topics/{topic}")
    assert (again.status, again.json["error"]) == (404, "NOT_FOUND")
    driftq.create(topic)
    assert driftq.produce(topic, "v")["offset"] == 0


def test_produce_says_where_the_record_is(driftq, topic) -> None:
    answer = driftq.curl("-X", "POST", f"/v1/produce?topic={topic}&key=k&value=hello%20there")
    assert (answer.status, answer.json) == (
        200,
        {"status": "produced", "topic": topic, "partition": 0, "offset": 0},
    )


def test_produce_by_body(driftq, topic) -> None:
    body = json.dumps({"topic": topic, "key": "k", "value": "v", "envelope": {"run_id": "r"}})
    answer = driftq.curl("-d", body, "/v1/produce")
    assert (answer.status, answer.json["offset"]) == (200, 0)


def test_a_body_wins_over_the_query_string(driftq, topic) -> None:
    answer = driftq.curl("-d", json.dumps({"topic": topic, "value": "v"}), "/v1/produce?topic=other&nonsense=1")
    assert (answer.status, answer.json["topic"]) == (200, topic)


PRODUCE_REFUSALS = [
    ("/v1/produce", "", "topic and value are required"),
    ("/v1/produce?topic=T", "", "topic and value are required"),
    ("/v1/produce?value=v", "", "topic and value are required"),
    ("/v1/produce", '{"topic": "T", "value": ""}', "topic and value are required"),
    ("/v1/produce?topic=no-such-topic&value=v", "", "topic does not exist (create it first)"),
    ("/v1/produce?topic=T&value=v&deadline=2020-01-01T00:00:00Z", "", "message deadline exceeded"),
    ("/v1/produce?topic=T&value=v&deadline_rfc3339=2020-01-01T00:00:00Z", "", "message deadline exceeded"),
    ("/v1/produce?topic=T&value=v&deadline_ms=1", "", "message deadline exceeded"),
    (
        "/v1/produce",
        '{"topic": "T", "value": "v", "envelope": {"deadline": "2020-01-01T02:00:00.5+02:00"}}',
        "message deadline exceeded",
    ),
    ("/v1/produce?topic=T&value=v&partition_override=1", "", "partition_override out of range"),
    ("/v1/produce?topic=T&value=v&partition_override=-1", "", "partition_override out of range"),
    (
        "/v1/produce",
        '{"topic": "T", "value": "v", "envelope": {"partition_override": 9}}',
        "partition_override out of range",
    ),
]


@pytest.mark.parametrize(("path", "body", "text"), PRODUCE_REFUSALS)
def test_what_produce_refuses_in_which_words(driftq, topic, path, body, text) -> None:
    arguments = ["-d", body.replace('"T"', f'"{topic}"')] if body else ["-X", "POST"]
    answer = driftq.curl(*arguments, path.replace("topic=T", f"topic={topic}"))
    assert (answer.status, answer.json) == (400, {"error": INVALID, "message": text})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/produce", '{"topic": "t", "value": "v", "tenant": "flat names are for query strings"}'),
        ("/v1/produce", '{"topic": "t", "value": "v", "envelope": {"colour": "red"}}'),
        ("/v1/produce?topic=t&value=v&colour=red", ""),
        ("/v1/topics", '{"name": "t", "replicas": 3}'),
        ("/v1/ack", '{"topic": "t", "group": "g", "owner": "o", "partition": 0, "offset": 0, "reason": "x"}'),
        ("/v1/nack?topic=t&group=g&owner=o&partition=0&offset=0&why=x", ""),
        ("/v1/extend", '{"lease": 1}'),
        ("/v1/lease", '{"count": 1}'),
    ],
)
def test_an_unknown_field_is_refused(driftq, path, body) -> None:
    answer = driftq.curl(*(["-d", body] if body else ["-X", "POST"]), path)
    assert (answer.status, answer.json["error"]) == (400, INVALID)
    assert "unknown field" in answer.json["message"]


@pytest.mark.parametrize(
    "path", ["/v1/produce", "/v1/topics", "/v1/ack", "/v1/nack", "/v1/ack-cumulative", "/v1/extend"]
)
@pytest.mark.parametrize("body", ["{", "[]", "topic=t", '{"topic": [1]}'])
def test_a_body_that_is_not_the_request_is_refused_and_the_connection_stays(driftq, path, body) -> None:
    answer = driftq.curl("-d", body, path, "--next", "-s", "-i", "/v1/healthz")
    assert answer.status == 400
    first, _, rest = answer.body.partition("HTTP/1.1 200 OK")
    assert json.loads(first)["error"] == INVALID
    assert rest.endswith('{"status":"ok"}')


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "topic, group, and owner are required"),
        ("topic=T", "topic, group, and owner are required"),
        ("topic=T&group=g", "topic, group, and owner are required"),
        ("topic=T&owner=o", "topic, group, and owner are required"),
        ("topic=no-such-topic&group=g&owner=o", "topic does not exist (create it first)"),
    ],
)
def test_what_consume_refuses_in_which_words(driftq, topic, query, text) -> None:
    answer = driftq.curl("/v1/consume?" + query.replace("topic=T", f"topic={topic}"))
    assert (answer.status, answer.json) == (400, {"error": INVALID, "message": text})


@pytest.mark.parametrize("lease_ms", ["x", "-1", "999999999999999999"])
def test_consume_refuses_a_lease_that_cannot_be(driftq, topic, lease_ms) -> None:
    answer = driftq.curl(f"/v1/consume?topic={topic}&group=g&owner=o&lease_ms={lease_ms}")
    assert (answer.status, answer.json["error"]) == (400, INVALID)
    assert answer.json["message"].startswith("invalid lease_ms")


@pytest.mark.parametrize("call", ["ack", "nack", "ack-cumulative", "extend"])
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("partition=0&offset=0", "topic, group, and owner are required"),
        ("topic=T&group=g&owner=o", "partition and offset are required"),
        ("topic=T&group=g&owner=o&partition=0", "partition and offset are required"),
        ("topic=no-such-topic&group=g&owner=o&partition=0&offset=0", "topic does not exist (create it first)"),
        ("topic=T&group=g&owner=o&partition=1&offset=0", "partition out of range"),
    ],
)
def test_what_a_settling_call_refuses_in_which_words(driftq, topic, call, query, text) -> None:
    answer = driftq.curl("-X", "POST", f"/v1/{call}?" + query.replace("topic=T", f"topic={topic}"))
    assert (answer.status, answer.json) == (400, {"error": INVALID, "message": text})


@pytest.mark.parametrize("call", ["ack", "nack", "ack-cumulative", "extend"])
def test_a_record_that_nobody_holds_is_not_in_flight(driftq, topic, call) -> None:
    driftq.produce(topic, "v")
    answer = driftq.curl("-X", "POST", f"/v1/{call}?topic={topic}&group=g&owner=o&partition=0&offset=0")
    assert (answer.status, answer.json["error"]) == (400, INVALID)
    assert "not in flight" in answer.json["message"]


@pytest.mark.parametrize("call", ["ack", "nack", "ack-cumulative", "extend"])
def test_a_record_that_another_holds_is_refused_with_409(driftq, topic, call) -> None:
    driftq.produce(topic, "v")
    with driftq.consume(topic, "a") as stream:
        line = stream.next()
        place = f"topic={topic}&group=g&owner=b&partition=0&offset={line['offset']}"
        answer = driftq.curl("-X", "POST", f"/v1/{call}?{place}")
        assert (answer.status, answer.json) == (409, {"error": "FAILED_PRECONDITION", "message": "not owner"})


@pytest.mark.parametrize("call", ["ack", "nack", "ack-cumulative", "extend"])
def test_settling_a_record_by_query_string_answers_with_nothing(driftq, topic, call) -> None:
    driftq.produce(topic, "v")
    with driftq.consume(topic, "a") as stream:
        line = stream.next()
        place = f"topic={topic}&group=g&owner=a&partition=0&offset={line['offset']}"
        answer = driftq.curl("-X", "POST", f"/v1/{call}?{place}")
        assert (answer.status, answer.body) == (204, "")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/healthz", {"GET"}),
        ("DELETE", "/v1/version", {"GET"}),
        ("PUT", "/v1/topics", {"GET", "POST"}),
        ("GET", "/v1/produce", {"POST"}),
        ("POST", "/v1/consume", {"GET"}),
        ("GET", "/v1/ack", {"POST"}),
        ("GET", "/v1/nack", {"POST"}),
        ("PUT", "/v1/ack-cumulative", {"POST"}),
        ("GET", "/v1/extend", {"POST"}),
        ("GET", "/v1/lease", {"POST"}),
    ],
)
def test_a_wrong_method_is_answered_with_those_that_are_right(driftq, method, path, allow) -> None:
    answer = driftq.curl("-X", method, path)
    assert (answer.status, answer.json["error"]) == (405, "METHOD_NOT_ALLOWED")
    assert {word.strip() for word in answer.headers["allow"].split(",")} - {"HEAD"} == allow


def test_an_unknown_path_below_v1_is_not_found_in_this_shape(driftq) -> None:
    answer = driftq.curl("/v1/nothing")
    assert (answer.status, answer.json["error"]) == (404, "NOT_FOUND")
    assert answer.json["message"]


def test_a_request_id_is_repeated_or_made(driftq, topic) -> None:
    for arguments in (["/v1/healthz"], ["-X", "POST", f"/v1/produce?topic={topic}&value=v"], ["/v1/nothing"]):
        assert driftq.curl("-H", "X-Request-Id: mine-7", *arguments).headers["x-request-id"] == "mine-7"
        made = {driftq.curl(*arguments).headers["x-request-id"] for _ in range(2)}
        assert len(made) == 2
        assert "" not in made


def test_a_stream_sends_its_headers_before_there_is_any_record(driftq, topic) -> None:
    with driftq.consume(topic, "o") as stream:
        assert stream.response.headers["content-type"].startswith("application/x-ndjson")
        assert stream.response.headers["x-request-id"]
        driftq.produce(topic, "late")
        assert stream.next()["value"] == "late"


def test_curl_prints_a_line_for_each_record(driftq, topic) -> None:
    import subprocess

    driftq.produce(topic, "one", "k")
    driftq.produce(topic, "two")
    command = ["curl", "-s", "-N", f"{driftq.url}/v1/consume?topic={topic}&group=g&owner=o&lease_ms=5000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        first, second = (json.loads(curl.stdout.readline()) for _ in range(2))
        curl.kill()
    timestamp = first.pop("timestamp")
    assert isinstance(timestamp, int)
    assert first == {
        "partition": 0,
        "offset": 0,
        "attempts": 1,
        "key": "k",
        "value": "one",
        "last_error": "",
        "topic": topic,
    }
    assert (second["offset"], second["key"], second["value"]) == (1, "", "two")
