"""One connection: answers in the order of the lines, each as if the one before had been waited for, nothing without bound."""

import asyncio
import gc
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.publish import Placed, PublishDone
from penstock.errors import PenstockError, Reason
from penstock.gateways.tcp import handlers
from penstock.gateways.tcp.gateway import TcpBounds
from penstock.settings import TcpSettings
from penstock.types import GroupId, PartitionKey, TopicName
from tests.support.kafka_wire import until
from tests.unit.gateways.tcp.pipe import FETCH, LIST, TcpNode, produce

COMMIT = {"type": "commit", "groupId": "g", "topic": "t", "partition": 0}
METRICS = {"type": "metrics", "groupId": "g", "topic": "t", "partition": 0}

MIX: list[bytes] = [
    json.dumps(line).encode()
    for line in (
        produce("a"),
        produce("b", partition=1),
        produce("c", topic="absent"),
        {**COMMIT, "offset": 1},
        METRICS,
        FETCH,
        LIST,
        {"type": "createTopic", "topic": "made"},
        produce("d", topic="made"),
        {"type": "deleteTopic", "topic": "made"},
        {"type": "joinGroup", "groupId": "j", "topic": "t", "consumerId": "c"},
        {"type": "heartbeat", "groupId": "j", "consumerId": "c"},
        {},
    )
] + [b"no json", b"", b"   ", b"x" * 700, b"\xff"]


async def answers_to(lines: list[bytes], sizes: list[int]) -> list[dict[str, Any]]:
    """What a fresh node says to these lines, sent in pieces of these sizes."""
    with tempfile.TemporaryDirectory() as folder:
        async with TcpNode(Path(folder), TcpBounds(pending_lines_max=4), tcp=TcpSettings(line_bytes_max=512)) as node:
            client = node.connect()
            data = b"".join(line + b"\n" for line in lines)
            at = number = 0
            while at < len(data):
                await until(lambda: client.pipe.reading)
                size = sizes[number % len(sizes)]
                client.pieces(data[at : at + size])
                at += size
                number += 1
                await asyncio.sleep(0)
            return await client.answered(sum(1 for line in lines if line.strip()))


@settings(max_examples=25)
@given(st.lists(st.sampled_from(MIX), max_size=30), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_answers_are_the_same_however_the_lines_are_cut(lines: list[bytes], sizes: list[int]) -> None:
    assert asyncio.run(answers_to(lines, sizes)) == asyncio.run(answers_to(lines, [1_000_000]))


async def test_lines_that_came_together_are_one_batch_and_one_send(node: TcpNode) -> None:
    client = node.connect()
    client.send(*(produce(str(n)) for n in range(500)))
    answers = await client.answered(500)
    assert [answer["data"]["value"] for answer in answers] == [str(n) for n in range(500)]
    assert client.pipe.writes == 1
    data, _ = node.broker.partition("t", 0).read(0, 1_000_000)
    assert int.from_bytes(memoryview(data)[57:61], "big") == 500


async def test_produce_lines_of_several_topics_are_answered_in_their_order(node: TcpNode) -> None:
    await node.create("u")
    client = node.connect()
    lines = [produce(str(n), topic=("t", "u", "absent")[n % 3]) for n in range(30)]
    client.send(*lines)
    for n, answer in enumerate(await client.answered(30)):
        if n % 3 == 2:
            assert answer == {"ok": False, "error": "TopicNotFound: absent"}
        else:
            assert (answer["data"]["value"], answer["data"]["offset"]) == (str(n), n // 3)


async def test_an_answer_that_is_ready_first_waits_for_the_one_before_it(node: TcpNode) -> None:
    client = node.connect()
    client.send(produce("a"), {"type": "nonsense"}, {**COMMIT, "offset": 0}, b"no json")
    assert client.answers == []
    produced, unknown, committed, invalid = await client.answered(4)
    assert produced["data"]["offset"] == 0
    assert unknown["error"] == "Unknown type: nonsense"
    assert committed["data"] == {"groupId": "g"}
    assert invalid["error"].startswith("Invalid JSON")


async def test_what_is_ready_waits_as_long_as_the_answer_before_it_takes(
    node: TcpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[PublishDone] = []
    monkeypatch.setattr(node.broker.publisher, "publish", lambda *call: waiting.append(call[-1]))
    client = node.connect()
    client.send(produce("a"), b"no json")
    client.send(produce("b"), b"no json")
    for _ in range(10):
        await asyncio.sleep(0)
    waiting[1]([Placed(0, 1, 0)])
    for _ in range(10):
        await asyncio.sleep(0)
    assert client.answers == []
    waiting[0]([Placed(0, 0, 0)])
    answers = await client.answered(4)
    assert [answer.get("data", {}).get("value") for answer in answers] == ["a", None, "b", None]


async def test_a_request_sees_what_was_asked_before_it(node: TcpNode) -> None:
    client = node.connect()
    client.send(produce("a"), FETCH, {**COMMIT, "offset": 1}, METRICS, produce("b"), {**COMMIT, "offset": 2}, METRICS)
    answers = [answer["data"] for answer in await client.answered(7)]
    assert [record["value"] for record in answers[1]["records"]] == ["a"]
    assert (answers[3]["committedOffset"], answers[3]["lag"]) == (1, 0)
    assert (answers[6]["committedOffset"], answers[6]["endOffset"]) == (2, 2)


async def test_commits_do_not_wait_for_each_other_and_the_last_one_holds(node: TcpNode) -> None:
    client = node.connect()
    client.send(*(produce("v") for _ in range(50)))
    await client.answered(50)
    client.send(*({**COMMIT, "offset": offset} for offset in range(50)))
    assert not client.connection._backlog
    await client.answered(100)
    key = PartitionKey(TopicName("t"), 0)
    assert node.broker.groups.fetch_offsets(GroupId("g"), [key])[key].offset == 49


async def test_reading_pauses_while_too_many_lines_are_unanswered(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, TcpBounds(pending_lines_max=10)) as node:
        client = node.connect()
        client.send(*(produce(str(n)) for n in range(100)))
        assert not client.pipe.reading
        assert client.connection._pending_lines == 10
        answers = await client.answered(100)
        assert [answer["data"]["offset"] for answer in answers] == list(range(100))
        assert client.pipe.reading


async def test_nothing_more_is_applied_while_the_client_takes_no_answers(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, TcpBounds(pending_output_bytes_max=1_000)) as node:
        client = node.connect()
        client.connection.pause_writing()
        assert not client.pipe.reading
        client.connection.resume_writing()
        client.send(*(LIST for _ in range(1_000)))
        first = len(client.connection._out)
        assert first < 100
        client.connection.pause_writing()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(client.answers) == first
        client.connection.resume_writing()
        assert len(await client.answered(1_000)) == 1_000
        assert client.pipe.reading


async def test_a_slow_request_holds_up_those_behind_it_and_nobody_else(node: TcpNode) -> None:
    client, other = node.connect(), node.connect()
    client.send({"type": "createTopic", "topic": "slow"}, LIST)
    other.send(LIST)
    assert (await other.answered(1))[0]["ok"]
    made, listed = await client.answered(2)
    assert made["data"] == {"topic": "slow", "partitions": 1}
    assert listed["data"]["topics"] == ["slow", "t"]


async def test_a_client_that_goes_loses_its_answers_and_keeps_its_records(node: TcpNode) -> None:
    client = node.connect()
    client.send(produce("kept"), {"type": "createTopic", "topic": "x"}, LIST)
    client.gone()
    reader = node.connect()
    await until(lambda: node.broker.partition("t", 0).high_watermark == 1)
    reader.send(FETCH)
    assert [record["value"] for record in (await reader.answered(1))[0]["data"]["records"]] == ["kept"]
    assert client.answers == []


async def test_a_topic_that_was_begun_is_made_though_the_client_goes(node: TcpNode) -> None:
    client = node.connect()
    client.send({"type": "createTopic", "topic": "begun"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.gone()
        await until(lambda: "begun" in node.broker.topics)
        gc.collect()
    assert client.answers == []


async def test_the_end_of_what_a_client_sends_is_not_the_end_of_its_answers(node: TcpNode) -> None:
    client = node.connect()
    client.pieces(json.dumps(produce("a")).encode() + b"\n" + json.dumps(LIST).encode())
    assert client.connection.eof_received()
    assert not client.pipe.closed
    assert [answer["ok"] for answer in await client.answered(2)] == [True, True]
    assert client.pipe.closed


async def test_closing_answers_what_was_begun_and_nothing_else(node: TcpNode) -> None:
    client = node.connect()
    client.send(produce("a"), FETCH, LIST)
    client.connection.close()
    assert len(await client.answered(1)) == 1
    assert client.pipe.closed
    assert len(client.answers) == 1


async def test_a_mistake_of_ours_is_one_answer_and_a_trace(
    node: TcpNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise RuntimeError("surprise")

    async def broken_slowly(*_: object, **__: object) -> bytes:
        raise RuntimeError("surprise")

    monkeypatch.setitem(handlers.HANDLERS, "listTopics", broken)  # type: ignore[arg-type]
    monkeypatch.setattr(node.broker.topics, "create", broken_slowly)
    client = node.connect()
    client.send(LIST, {"type": "createTopic", "topic": "x"}, FETCH)
    first, second, third = await client.answered(3)
    assert first == second == {"ok": False, "error": "Internal error: RuntimeError; see the broker's log"}
    assert third["ok"]
    assert "surprise" in caplog.text
    assert any("surprise" in text for text in node.reports)


async def test_a_write_that_fails_refuses_the_records_and_the_connection_goes_on(
    node: TcpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = node.broker.partition("t", 0)

    def full(*_: object, **__: object) -> int:
        raise PenstockError(Reason.STORAGE_ERROR, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(type(partition), "append", full)
        client = node.connect()
        client.send(produce("a"), produce("b"))
        assert [answer["error"] for answer in await client.answered(2)] == ["the disk is full"] * 2
    client.send(produce("c"))
    assert (await client.answered(3))[2]["data"]["offset"] == 0


class TestIdle:
    async def test_a_silent_client_is_closed(self, node: TcpNode) -> None:
        client = node.connect()
        client.connection.look_after(0)
        client.connection.look_after(node.tcp.limits.connection_idle_ms_max)
        assert not client.pipe.closed
        client.connection.look_after(node.tcp.limits.connection_idle_ms_max + 1)
        assert client.pipe.closed
        assert not client.pipe.aborted

    async def test_bytes_are_a_sign_of_life(self, node: TcpNode) -> None:
        client = node.connect()
        client.pieces(b"half a li")
        idle_ms = node.tcp.limits.connection_idle_ms_max
        client.connection.look_after(idle_ms)
        client.connection.look_after(2 * idle_ms)
        assert not client.pipe.closed
        client.connection.look_after(2 * idle_ms + 1)
        assert client.pipe.closed

    async def test_a_client_that_takes_nothing_is_cut_off(self, node: TcpNode) -> None:
        client = node.connect()
        client.connection.pause_writing()
        client.connection.look_after(node.tcp.limits.connection_idle_ms_max + 1)
        assert client.pipe.aborted


async def test_answers_that_nobody_takes_are_bounded_for_all_clients_together(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, TcpBounds(unsent_bytes_max=100_000)) as node:
        idle, client = node.connect(), node.connect()
        client.send(produce("x" * 80_000), FETCH)
        assert [answer["ok"] for answer in await client.answered(2)] == [True, True]
        idle.pipe.unsent_bytes = 100_001
        client.send(FETCH, {**FETCH, "offset": 1}, LIST)
        refused, *others = (await client.answered(5))[2:]
        assert refused["error"].startswith("Too many answers have not been read")
        assert [answer["ok"] for answer in others] == [True, True]
        idle.gone()
        client.send(FETCH)
        assert (await client.answered(6))[5]["ok"]


class TestLinesThatHaveNotEnded:
    async def test_all_of_them_together_are_bounded_and_short_ones_always_pass(self, tmp_path: Path) -> None:
        async with TcpNode(tmp_path, TcpBounds(kept_bytes_max=100_000)) as node:
            first, second, third = node.connect(), node.connect(), node.connect()
            first.pieces(b"x" * 90_000)
            second.pieces(b"x" * 90_000)
            (refused,) = await second.answered(1)
            assert refused["error"].startswith("Line too long")
            assert node.tcp.kept_bytes == 90_000
            third.pieces(b'{"type": "listTopics"')
            third.pieces(b"}\n")
            assert (await third.answered(1))[0]["ok"]
            second.pieces(b"the rest of it\n" + json.dumps(LIST).encode() + b"\n")
            assert (await second.answered(2))[1]["ok"]
            first.gone()
            assert node.tcp.kept_bytes == 0
            second.pieces(b"x" * 90_000)
            assert len(second.answers) == 2

    async def test_what_is_kept_is_counted_to_the_byte(self, node: TcpNode) -> None:
        client = node.connect()
        for piece, kept in ((b"abc", 3), (b"de", 5), (b"f\ngh", 2), (b"\n", 0), (b"\n\n", 0), (b"x", 1)):
            client.pieces(piece)
            assert node.tcp.kept_bytes == kept
