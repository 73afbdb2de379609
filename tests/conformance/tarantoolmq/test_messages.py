"""TarantoolMQ's calls about messages: publishing one and many, streaming lines, reading, following live."""

import base64
import json
import socket
import subprocess
import time

import httpx
import pytest
from kafka.partitioner.default import murmur2

from tests.conformance.tarantoolmq.client import Curl

SECONDS = 60
NOT_TEXT = (
    'A value is a string: send other JSON as text, and bytes as base64 with "encoding": "base64" beside the value.'
)


def test_a_message_is_published_and_read(curl: Curl, topic: str) -> None:
    before_ms = int(time.time() * 1000)
    body = {"value": "hello", "key": "k", "partition": 1, "headers": {"trace": "7", "empty": "", "none": None}}
    status, published, _ = curl.post(f"/topics/{topic}/messages", body)
    assert status == 200
    timestamp = published["timestamp"]
    assert before_ms <= timestamp <= int(time.time() * 1000)
    assert published == {
        "id": f"{topic}/1@0",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": timestamp,
        "acked": True,
    }
    status, read, _ = curl.get(f"/topics/{topic}/partitions/1/messages")
    assert status == 200
    assert read == {
        "messages": [
            {
                "id": f"{topic}/1@0",
                "topic": topic,
                "partition": 1,
                "offset": 0,
                "key": "k",
                "value": "hello",
                "headers": {"trace": "7", "empty": "", "none": None},
                "timestamp": timestamp,
                "produced_at": timestamp // 1000,
                "acked": True,
            }
        ]
    }


@pytest.mark.parametrize(("acks", "acked"), [("all", True), ("leader", True), ("none", False)])
def test_acks_say_what_is_waited_for(curl: Curl, topic: str, acks: str, *, acked: bool) -> None:
    reply = curl.post(f"/topics/{topic}/messages", {"value": "x", "acks": acks, "partition": 0})
    assert (reply.status, reply.body["acked"]) == (200, acked)
    assert [m["value"] for m in curl.get(f"/topics/{topic}/partitions/0/messages").body["messages"]] == ["x"]


def test_a_key_lands_where_kafka_puts_it(curl: Curl, new_name: str) -> None:
    curl.post("/topics", {"name": new_name, "partitions": 16})
    partitions = [
        curl.post(f"/topics/{new_name}/messages", {"value": "x", "key": key}).body["partition"] for key in "abc"
    ]
    assert partitions == [(murmur2(key.encode()) & 0x7FFFFFFF) % 16 for key in "abc"]


def test_messages_without_a_key_take_turns(curl: Curl, topic: str) -> None:
    taken = [curl.post(f"/topics/{topic}/messages", {"value": "x", "key": key}).body["partition"] for key in (None, "")]
    assert sorted(taken) == [0, 1]


def test_bytes_travel_as_base64(curl: Curl, topic: str) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()
    sent = {
        "value": raw,
        "encoding": "base64",
        "key": raw,
        "key_encoding": "base64",
        "headers": {"h": raw, "text": "plain"},
        "header_encodings": {"h": "base64"},
        "partition": 0,
    }
    assert curl.post(f"/topics/{topic}/messages", sent).status == 200
    message = curl.get(f"/topics/{topic}/partitions/0/messages").body["messages"][0]
    assert {name: message[name] for name in sent} == sent


def test_bytes_that_are_text_come_back_as_text(curl: Curl, topic: str) -> None:
    sent = {"value": base64.b64encode(b"text").decode(), "encoding": "base64", "partition": 0}
    curl.post(f"/topics/{topic}/messages", sent)
    message = curl.get(f"/topics/{topic}/partitions/0/messages").body["messages"][0]
    assert message["value"] == "text"
    assert "encoding" not in message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Missing message value"),
        ({"key": "k"}, "Missing message value"),
        ({"value": None}, "Missing message value"),
        ({"value": 5}, NOT_TEXT),
        ({"value": {"a": 1}}, NOT_TEXT),
        ({"value": "x", "partition": 2}, "Partition not found"),
        ({"value": "x", "partition": -1}, "Partition not found"),
        (
            {"value": "?", "encoding": "base64"},
            "The value is not base64, but its encoding is base64. Encode it, or remove the encoding.",
        ),
        (
            {"value": "x", "acks": "some"},
            "The message is invalid: Invalid enum value 'some' - at `$.acks`.",
        ),
        (
            {"value": "x", "headers": {"h": 5}},
            "The message is invalid: Expected `str | null`, got `int` - at `$.headers[...]`.",
        ),
        ({"value": "x", "messages": []}, "Send either one message or messages, not both"),
        ('{"value": ', "The body is not JSON: Input data was truncated."),
        ("", "Missing message value"),
        ("7", "The body is invalid: Expected `object`, got `int`."),
    ],
)
def test_a_wrong_message_is_refused_with_a_sentence(curl: Curl, topic: str, body: object, text: str) -> None:
    assert curl.post(f"/topics/{topic}/messages", body)[:2] == (400, {"error": text})
    for partition in (0, 1):
        assert curl.get(f"/topics/{topic}/partitions/{partition}/messages").body == {"messages": []}


def test_a_message_for_an_unknown_topic_is_not_found(curl: Curl) -> None:
    assert curl.post("/topics/nobody/messages", {"value": "x"})[:2] == (404, {"error": "Topic not found"})
    assert curl.post("/topics/nobody/messages", [{"value": "x"}])[:2] == (404, {"error": "Topic not found"})


def test_a_message_that_is_too_large_says_so(curl: Curl, topic: str) -> None:
    reply = httpx.post(f"{curl.base}/topics/{topic}/messages", json={"value": "x" * 1_100_000}, timeout=SECONDS)
    assert reply.status_code == 413
    assert "max.message.bytes" in reply.json()["error"]


@pytest.mark.parametrize("wrap", [lambda messages: messages, lambda messages: {"messages": messages}])
def test_a_batch_has_a_result_for_each_message_in_order(curl: Curl, topic: str, wrap: object) -> None:
    assert callable(wrap)
    messages = [
        {"value": "a", "partition": 0},
        {"value": 5},
        {"key": "k"},
        {"value": "b", "partition": 0, "acks": "all"},
        {"value": "c", "partition": 9},
        {"value": "d", "partition": 0, "acks": "none"},
    ]
    status, body, _ = curl.post(f"/topics/{topic}/messages", wrap(messages))
    assert status == 200
    results = body["results"]
    assert [result.get("error") for result in results] == [
        None,
        NOT_TEXT,
        "Missing message value",
        None,
        "Partition not found",
        None,
    ]
    assert [(result["id"], result["acked"]) for result in results if "id" in result] == [
        (f"{topic}/0@0", True),
        (f"{topic}/0@1", True),
        (f"{topic}/0@2", False),
    ]
    read = curl.get(f"/topics/{topic}/partitions/0/messages").body["messages"]
    assert [message["value"] for message in read] == ["a", "b", "d"]


def test_the_acks_of_a_batch_are_for_messages_that_do_not_say(curl: Curl, topic: str) -> None:
    body = {"messages": [{"value": "a"}, {"value": "b", "acks": "all"}], "acks": "none"}
    results = curl.post(f"/topics/{topic}/messages", body).body["results"]
    assert [result["acked"] for result in results] == [False, True]


def test_an_empty_batch_has_no_results(curl: Curl, topic: str) -> None:
    assert curl.post(f"/topics/{topic}/messages", [])[:2] == (200, {"results": []})


def test_nothing_of_a_batch_that_is_not_json_is_published(curl: Curl, topic: str) -> None:
    reply = curl.post(f"/topics/{topic}/messages", '[{"value": "a", "partition": 0}, {"value":')
    assert reply[:2] == (400, {"error": "The body is not JSON: Input data was truncated."})
    assert curl.get(f"/topics/{topic}/partitions/0/messages").body == {"messages": []}


def test_lines_are_answered_line_by_line(curl: Curl, topic: str) -> None:
    lines = ['{"value": "a", "partition": 0}', "", "not json", '{"value": 1}', '{"value": "b", "partition": 0}']
    words = [
        "curl",
        "-sS",
        "--max-time",
        f"{SECONDS}",
        "-H",
        "Content-Type: application/x-ndjson",
        "--data-binary",
        "@-",
    ]
    url = f"{curl.base}/topics/{topic}/messages?acks=all"
    output = subprocess.run([*words, url], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    answers = [json.loads(line) for line in output.splitlines()]
    assert [answer.get("id") for answer in answers] == [f"{topic}/0@0", None, None, f"{topic}/0@1"]
    assert answers[1]["error"].startswith("The message is not JSON: ")
    assert answers[2]["error"] == NOT_TEXT


def test_a_client_that_asks_before_it_sends_its_lines_is_told_to_go_on(curl: Curl, topic: str) -> None:
    """curl does so for a body of unknown size, and waits a second for the word."""
    host, port = curl.base.removeprefix("http://").split(":")
    head = (
        f"POST /topics/{topic}/messages HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), SECONDS) as client, client.makefile("rb") as answers:
        client.sendall(head.encode())
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answers.readline() == b"\r\n"
        line = b'{"value": "a", "partition": 0}\n'
        client.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(line), line))
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
        assert f'"{topic}/0@0"'.encode() in answers.read()


def test_messages_are_read_from_an_offset_on(curl: Curl, topic: str) -> None:
    curl.post(f"/topics/{topic}/messages", [{"value": str(n), "partition": 0} for n in range(5)])

    def values(query: str) -> list[str]:
        reply = curl.get(f"/topics/{topic}/partitions/0/messages{query}")
        assert reply.status == 200
        return [message["value"] for message in reply.body["messages"]]

    assert values("") == ["0", "1", "2", "3", "4"]
    assert values("?offset=3") == ["3", "4"]
    assert values("?offset=1&max_records=2") == ["1", "2"]
    assert values("?offset=5") == []
    assert values("?offset=500") == []


def test_one_answer_has_at_the_most_the_configured_number_of_messages(curl: Curl, topic: str) -> None:
    curl.post(f"/topics/{topic}/messages", [{"value": "x", "partition": 0}] * 600)
    path = f"/topics/{topic}/partitions/0/messages"
    assert len(curl.get(path).body["messages"]) == 100
    assert len(curl.get(f"{path}?max_records=10000").body["messages"]) == 500


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("offset=-1", "offset must be an integer from 0 to 9223372036854775807"),
        ("offset=x", "offset must be an integer from 0 to 9223372036854775807"),
        ("max_records=0", "max_records must be an integer from 1 to 9223372036854775807"),
        ("offset=%ff", "The query string cannot be read: send name=value pairs in UTF-8, percent-encoded."),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(curl: Curl, topic: str, query: str, text: str) -> None:
    assert curl.get(f"/topics/{topic}/partitions/0/messages?{query}")[:2] == (400, {"error": text})


@pytest.mark.parametrize("call", ["messages", "offsets"])
def test_an_unknown_topic_or_partition_is_not_found(curl: Curl, topic: str, call: str) -> None:
    assert curl.get(f"/topics/nobody/partitions/0/{call}")[:2] == (404, {"error": "Topic not found"})
    for partition in ("2", "-1", "x", "99999999999"):
        reply = curl.get(f"/topics/{topic}/partitions/{partition}/{call}")
        assert reply[:2] == (404, {"error": "Partition not found"})


def test_watermarks(curl: Curl, topic: str) -> None:
    path = f"/topics/{topic}/partitions/0/offsets"
    assert curl.get(path)[:2] == (200, {"high_watermark": 0, "low_watermark": 0})
    curl.post(f"/topics/{topic}/messages", [{"value": "x", "partition": 0}] * 3)
    assert curl.get(path)[:2] == (200, {"high_watermark": 3, "low_watermark": 0})


def test_a_topic_is_followed_live_and_resumed(curl: Curl, topic: str) -> None:
    path = f"{curl.base}/topics/{topic}"

    def publish(value: str, partition: int) -> None:
        body = {"value": value, "partition": partition}
        httpx.post(f"{path}/messages", json=body, timeout=SECONDS).raise_for_status()

    def follow(count: int, query: str = "", last: str = "") -> tuple[list[str], str]:
        headers = {"Last-Event-ID": last} if last else {}
        with httpx.stream("GET", f"{path}/tail{query}", headers=headers, timeout=SECONDS) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            lines = stream.iter_lines()
            assert next(lines) == f": tail of {topic}"
            if not last and not query:
                publish("live", 0)
            values: list[str] = []
            for line in lines:
                if line.startswith("id: "):
                    last = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    values.append(json.loads(line.removeprefix("data: "))["value"])
                    if len(values) == count:
                        break
        return values, last

    publish("before", 1)
    values, last = follow(1)
    assert values == ["live"]
    assert last == f"{topic}/0@0 1@1"
    publish("meanwhile", 1)
    publish("meanwhile too", 0)
    assert sorted(follow(2, last=last)[0]) == ["meanwhile", "meanwhile too"]
    assert sorted(follow(4, "?from=earliest")[0]) == ["before", "live", "meanwhile", "meanwhile too"]
    assert follow(1, "?partition=1&offset=1")[0] == ["meanwhile"]


@pytest.mark.parametrize(
    ("query", "headers", "status", "text"),
    [
        ("?partition=2", {}, 404, "Partition not found"),
        ("?partition=x", {}, 400, "partition must be an integer from 0 to 2147483647"),
        ("?offset=1", {}, 400, "An offset requires a partition: set the partition too."),
        ("?from=tomorrow", {}, 400, "The value of from must be earliest or latest"),
        (
            "",
            {"Last-Event-ID": "other/0@1"},
            400,
            "Last-Event-ID is not from an event of TOPIC: remove it, or send the id of an event unchanged.",
        ),
    ],
)
def test_a_tail_that_cannot_be_is_refused(
    curl: Curl, topic: str, query: str, headers: dict[str, str], status: int, text: str
) -> None:
    words = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
    reply = curl.get(f"/topics/{topic}/tail{query}", *words)
    assert reply[:2] == (status, {"error": text.replace("TOPIC", topic)})


def test_the_tail_of_a_deleted_topic_ends(curl: Curl, topic: str) -> None:
    assert curl.get("/topics/nobody/tail")[:2] == (404, {"error": "Topic not found"})
    with httpx.stream("GET", f"{curl.base}/topics/{topic}/tail", timeout=SECONDS) as stream:
        lines = stream.iter_lines()
        next(lines)
        httpx.delete(f"{curl.base}/topics/{topic}", timeout=SECONDS).raise_for_status()
        assert not [line for line in lines if line.startswith("data")]
