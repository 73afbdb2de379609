"""Many lines ahead of their answers: the order holds, every request sees those before it, and memory stays bounded."""

import json
import socket
from pathlib import Path

from penstock.testing.process import BrokerProcess
from tests.conformance.tinymq.client import Tinymq, request, told
from tests.conformance.tinymq.conftest import LINE_BYTES_MAX

LINES = 10_000


def resident_bytes(broker: BrokerProcess) -> int:
    """What the process has in memory."""
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def test_ten_thousand_lines_sent_without_reading_get_ten_thousand_answers_in_order(tinymq: Tinymq, topic: str) -> None:
    tinymq.send(
        "".join(request("produce", topic=topic, value=str(n), partition=0) + "\n" for n in range(LINES)).encode()
    )
    answers = [tinymq.read() for _ in range(LINES)]
    assert [answer["data"]["value"] for answer in answers] == [str(n) for n in range(LINES)]
    assert [answer["data"]["offset"] for answer in answers] == list(range(LINES))
    assert tinymq.data("metrics", topic=topic, partition=0)["endOffset"] == LINES


def test_lines_of_all_kinds_are_answered_in_their_order_as_if_one_at_a_time(
    tinymq: Tinymq, topic: str, group: str
) -> None:
    lines: list[str] = []
    for n in range(300):
        lines += [
            request("produce", topic=topic, value=f"a{n}", partition=0),
            request("produce", topic=f"{topic}-absent", value="x"),
            request("produce", topic=topic, value=f"b{n}", partition=1),
            request("commit", groupId=group, topic=topic, partition=0, offset=n + 1),
            request("metrics", topic=topic, partition=0, groupId=group),
            request("fetch", topic=topic, partition=1, offset=n),
            "no json",
            request("commit", groupId=group, topic=topic, partition=0, offset=-n - 1),
        ]
    tinymq.send("".join(f"{line}\n" for line in lines).encode())
    for n in range(300):
        assert tinymq.read()["data"]["offset"] == n
        assert told(tinymq.read()) == f"TopicNotFound: {topic}-absent"
        assert tinymq.read()["data"]["offset"] == n
        assert tinymq.read()["data"] == {"groupId": group}
        metrics = tinymq.read()["data"]
        assert (metrics["endOffset"], metrics["committedOffset"], metrics["lag"]) == (n + 1, n + 1, 0)
        assert [record["value"] for record in tinymq.read()["data"]["records"]] == [f"b{n}"]
        assert told(tinymq.read()).startswith("Invalid JSON: ")
        assert told(tinymq.read()) == f"InvalidOffset: {-n - 1}"


def test_a_topic_can_be_made_used_and_deleted_in_one_go(tinymq: Tinymq, topic: str) -> None:
    name = f"{topic}-brief"
    lines = [
        request("createTopic", topic=name),
        request("produce", topic=name, value="v"),
        request("fetch", topic=name, partition=0, offset=0),
        request("deleteTopic", topic=name),
        request("produce", topic=name, value="v"),
    ]
    tinymq.send("".join(f"{line}\n" for line in lines).encode())
    assert tinymq.read()["data"] == {"topic": name, "partitions": 1}
    assert tinymq.read()["data"]["offset"] == 0
    assert len(tinymq.read()["data"]["records"]) == 1
    assert tinymq.read()["data"] == {"topic": name}
    assert told(tinymq.read()) == f"TopicNotFound: {name}"


def test_a_client_that_has_said_all_gets_its_answers_before_the_connection_ends(tinymq: Tinymq, topic: str) -> None:
    lines = [request("produce", topic=topic, value="v", partition=0)] * 500 + [request("listTopics")]
    # The last line has no end: the end of all is one.
    tinymq.send("\n".join(lines).encode())
    tinymq.socket.shutdown(socket.SHUT_WR)
    assert [tinymq.read()["ok"] for _ in lines] == [True] * len(lines)
    assert tinymq.ended()


def test_a_client_that_takes_no_answers_is_not_read_any_further_and_loses_nothing(
    shared_broker: BrokerProcess, tinymq: Tinymq, other: Tinymq, topic: str
) -> None:
    value = "x" * 20_000
    for _ in range(50):
        tinymq.data("produce", topic=topic, value=value, partition=0)
    before = resident_bytes(shared_broker)
    # Each line asks for a megabyte. Sending stops when the broker stops reading; it must not take them all.
    line = request("fetch", topic=topic, partition=0, offset=0).encode() + b"\n"
    tinymq.socket.settimeout(1)
    sent = 0
    try:
        while sent < 400_000 * len(line):
            sent += tinymq.socket.send(line * 100)
    except TimeoutError:
        pass
    assert resident_bytes(shared_broker) - before < 64 * 1024 * 1024
    assert "topics" in other.data("listTopics")
    tinymq.socket.settimeout(30)
    for _ in range(40):
        records = tinymq.read()["data"]["records"]
        assert [record["offset"] for record in records] == list(range(50))


def test_garbage_does_not_grow_the_broker_or_stop_it(shared_broker: BrokerProcess, address: str, other: Tinymq) -> None:
    before = resident_bytes(shared_broker)
    hostile = [
        bytes(range(256)) * 400,
        b"[" * LINE_BYTES_MAX + b"\n",
        b'{"type": "produce", "topic": "t", "value": "' + b"9" * 1_000_000,
        b'{"type": "fetch", "offset": ' + b"9" * 60_000 + b"}\n",
        b"\x00" * 100_000 + b"\n",
        json.dumps({"type": "x" * 60_000}).encode() + b"\n",
        json.dumps({"type": ["y" * 60_000]}).encode() + b"\n",
        b'{"type": "produce", "topic": "' + b"t" * 60_000 + b'", "value": ""}\n',
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100,
    ]
    for _ in range(5):
        for data in hostile:
            with Tinymq(address) as client:
                client.send(data + b"\n")
                answer = client.read()
                assert answer["ok"] is False
                assert len(answer["error"]) < 400
    assert "topics" in other.data("listTopics")
    assert resident_bytes(shared_broker) - before < 32 * 1024 * 1024
