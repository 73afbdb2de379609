"""Exactly-once sinks as HTTP clients see them: bodies, statuses, and what happens when the core takes its time."""

import asyncio

import pytest

from penstock.core.sinks.stored import Intent
from penstock.limits import SINK_STAGED_MAX
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.settings import HttpSettings
from tests.support.http_node import HttpNode, becomes

PATH = "/v1/sinks/q.0"


async def stage(node: HttpNode, *values: bytes, sink: str = "q.0") -> list[int]:
    """One batch, as a produce leaves it."""
    staging = node.broker.partition(f"__staging.{sink}", 0)
    records = [Record(n, node.clock.now_ms(), b"k", value) for n, value in enumerate(values)]
    offset = staging.append(build_batch(records), node.clock.now_ms())
    await node.committed(staging)
    return [0, offset, len(values)]


@pytest.fixture
async def opened(node: HttpNode) -> HttpNode:
    await node.create("out", 2)
    answer = await node.client.post(f"{PATH}/open", json={})
    assert answer.status_code == 200
    return node


async def test_a_sink_is_opened_as_often_as_one_likes(opened) -> None:
    for body in (b"", b"{}"):
        answer = await opened.client.post(f"{PATH}/open", content=body)
        assert answer.json() == {
            "sink": "q.0",
            "staging_topic": "__staging.q.0",
            "staging_id": str(opened.broker.topics.require("__staging.q.0").topic_id),
            "partitions": 1,
            "last_batch_id": None,
        }


async def test_an_opener_says_how_long_the_sink_is_to_be_remembered(opened) -> None:
    for content, query, remember_ms in (
        (b'{"remember_ms": 600000}', "", 600_000),
        (b"", "?remember_ms=900000", 900_000),
    ):
        assert (await opened.client.post(f"{PATH}/open{query}", content=content)).status_code == 200
        assert (await opened.client.get(PATH)).json()["remember_ms"] == remember_ms
    refused = await opened.client.post(f"{PATH}/open", json={"remember_ms": 599_999})
    assert refused.status_code == 400
    assert "the minimum is 600000" in refused.json()["message"]


async def test_a_commit_of_an_earlier_staging_topic_is_refused(opened) -> None:
    first = (await opened.client.post(f"{PATH}/open", json={})).json()["staging_id"]
    staged = await stage(opened, b"old")
    assert (await opened.client.delete(PATH)).status_code == 204
    await becomes(lambda: "__staging.q.0" not in opened.broker.topics)
    second = (await opened.client.post(f"{PATH}/open", json={})).json()["staging_id"]
    assert await stage(opened, b"new") == staged
    body = {"batch_id": 0, "parts": [{"topic": "out", "partition": 0, "staged": [staged]}]}
    refused = await opened.client.post(f"{PATH}/commit", json={**body, "staging_id": first})
    assert refused.status_code == 400
    assert "stage the batch again" in refused.json()["message"]
    taken = await opened.client.post(f"{PATH}/commit", json={**body, "staging_id": second})
    assert taken.json()["records"] == 1


async def test_a_commit_that_names_too_much_is_told_what_to_do(opened, monkeypatch) -> None:
    monkeypatch.setattr("penstock.core.sinks.checks.SINK_STAGED_MAX", 2)
    staged = [[0, offset, 1] for offset in range(3)]
    for parts in (
        [{"topic": "out", "partition": 0, "staged": staged}],
        [{"topic": "out", "partition": 0, "staged": []}] * 3,
    ):
        refused = await opened.client.post(f"{PATH}/commit", json={"batch_id": 0, "parts": parts})
        assert refused.status_code == 429
        assert "has 3 staged ranges, but the limit is 2: stage fewer, larger batches" in refused.json()["message"]


async def test_the_largest_commit_is_bounded_by_the_core_and_not_by_the_decoder(opened) -> None:
    staged = [[0, offset, 1] for offset in range(SINK_STAGED_MAX + 1)]
    body = {"batch_id": 0, "parts": [{"topic": "out", "partition": 0, "staged": staged}]}
    refused = await opened.client.post(f"{PATH}/commit", json=body)
    assert "stage fewer, larger batches" in refused.json()["message"]
    document = (await opened.client.get("/openapi.json")).json()
    told = document["components"]["schemas"]["CommitIn"]["properties"]["parts"]
    assert told["maxItems"] == SINK_STAGED_MAX


async def test_a_batch_is_committed_once(opened) -> None:
    parts = [
        {"topic": "out", "partition": 0, "staged": [await stage(opened, b"1", b"2")]},
        {"topic": "out", "partition": 1, "staged": [await stage(opened, b"3")]},
    ]
    for already, records in ((False, 3), (True, 0)):
        answer = await opened.client.post(f"{PATH}/commit", json={"batch_id": 4, "parts": parts})
        assert answer.status_code == 200
        assert answer.json() == {"committed": True, "already": already, "records": records, "dropped": 0}
    assert [opened.broker.partition("out", index).high_watermark for index in range(2)] == [2, 1]
    answer = await opened.client.post(f"{PATH}/open", json={})
    assert answer.json()["last_batch_id"] == 4


async def test_a_status_says_how_a_sink_stands(opened) -> None:
    since_ms = opened.clock.now_ms()
    fresh = {
        "sink": "q.0",
        "staging_topic": "__staging.q.0",
        "last_batch_id": None,
        "committed_ms": None,
        "since_ms": since_ms,
        "staged_bytes": 0,
        "committing": None,
        "problem": None,
        "used_ms": since_ms,
        "remember_ms": 30 * 24 * 3_600_000,
    }
    assert (await opened.client.get(PATH)).json() == fresh
    staged = await stage(opened, b"1")
    assert (await opened.client.get(PATH)).json()["staged_bytes"] > 60
    opened.clock.advance(5)
    body = {"batch_id": 0, "parts": [{"topic": "out", "partition": 0, "staged": [staged]}]}
    await opened.client.post(f"{PATH}/commit", json=body)
    done = {**fresh, "last_batch_id": 0, "committed_ms": since_ms + 5, "used_ms": since_ms + 5}
    assert (await opened.client.get("/v1/sinks")).json() == {"sinks": [done]}


async def test_an_abort_says_what_it_did(opened) -> None:
    staged = await stage(opened, b"1")
    assert (await opened.client.post(f"{PATH}/abort", json={"batch_id": 0})).json() == {"aborted": True, "why": ""}
    body = {"batch_id": 0, "parts": [{"topic": "out", "partition": 0, "staged": [staged]}]}
    refused = await opened.client.post(f"{PATH}/commit", json=body)
    assert refused.status_code == 400
    assert "not staged" in refused.json()["message"]
    await opened.client.post(f"{PATH}/commit", json={"batch_id": 0, "parts": []})
    answer = await opened.client.post(f"{PATH}/abort", json={"batch_id": 0})
    assert answer.json() == {"aborted": False, "why": "batch 0 is already committed"}


async def test_a_deleted_sink_is_gone(opened) -> None:
    assert (await opened.client.delete(PATH)).status_code == 204
    for answer in (await opened.client.get(PATH), await opened.client.delete(PATH)):
        assert answer.status_code == 404
        assert answer.json() == {"error": "NOT_FOUND", "message": "There is no sink 'q.0'; open it first"}
    await becomes(lambda: "__staging.q.0" not in opened.broker.topics)
    assert (await opened.client.get("/v1/sinks")).json() == {"sinks": []}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON body"),
        (b"{", "invalid json body"),
        (b"{}", "batch_id"),
        (b'{"batch_id": -1, "parts": []}', "batch_id"),
        (b'{"batch_id": 1, "parts": [], "more": 1}', "more"),
        (b'{"batch_id": 1, "parts": [], "staging_id": "x"}', "staging_id"),
        (b'{"batch_id": 1, "parts": [{"topic": "out", "partition": 0, "staged": [[0, 1]]}]}', "staged"),
        (b'{"batch_id": 1, "parts": [{"topic": "out", "partition": 0, "staged": [[0, 0, 0]]}]}', "not a staged batch"),
        (b'{"batch_id": 1, "parts": [{"topic": "out", "partition": 0, "staged": [[0, 9, 1]]}]}', "not staged"),
        (b'{"batch_id": 1, "parts": [{"topic": "__sinks", "partition": 0, "staged": [[0, 0, 1]]}]}', "internal topic"),
    ],
)
async def test_a_commit_that_cannot_be_is_told_why(opened, body, says) -> None:
    answer = await opened.client.post(f"{PATH}/commit", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "INVALID_ARGUMENT"
    assert says in answer.json()["message"]


async def test_an_unknown_target_is_not_found(opened) -> None:
    staged = await stage(opened, b"1")
    for topic, partition in (("nowhere", 0), ("out", 2)):
        body = {"batch_id": 1, "parts": [{"topic": topic, "partition": partition, "staged": [staged]}]}
        assert (await opened.client.post(f"{PATH}/commit", json=body)).status_code == 404


async def test_a_name_that_no_sink_can_have_is_refused(node) -> None:
    for name in ("a%20b", "x" * 201, "%C3%A4"):
        answer = await node.client.post(f"/v1/sinks/{name}/open", json={})
        assert answer.status_code == 400


async def test_a_busy_sink_is_neither_deleted_nor_aborted(opened) -> None:
    sink = opened.broker.sinks._sinks["q.0"]
    sink.busy = True
    for answer in (await opened.client.delete(PATH), await opened.client.post(f"{PATH}/abort", json={"batch_id": 3})):
        assert answer.status_code == 409
        assert answer.json()["error"] == "FAILED_PRECONDITION"


async def test_a_commit_that_takes_too_long_is_told_and_goes_on(tmp_path) -> None:
    async with HttpNode(tmp_path, http=HttpSettings(request_timeout_ms=50)) as node:
        await node.client.post(f"{PATH}/open", json={})
        # Opening may have taken longer than that too.
        await becomes(lambda: "q.0" in node.broker.sinks._sinks and not node.broker.sinks._sinks["q.0"].busy)
        sink = node.broker.sinks._sinks["q.0"]
        sink.busy = True
        answer = await node.client.post(f"{PATH}/commit", json={"batch_id": 0, "parts": []})
        assert answer.status_code == 504
        node.broker.sinks._jobs.start(lambda: node.broker.sinks._commits.serve(sink))
        await becomes(lambda: sink.stored.last_batch_id == 0)


async def test_many_sinks_are_told_in_order(node) -> None:
    names = [f"s{number:02}" for number in range(40)]
    await asyncio.gather(*(node.client.post(f"/v1/sinks/{name}/open", json={}) for name in reversed(names)))
    told = (await node.client.get("/v1/sinks")).json()["sinks"]
    assert [sink["sink"] for sink in told] == names


async def test_a_commit_under_way_shows_in_the_status(opened) -> None:
    sink = opened.broker.sinks._sinks["q.0"]
    fields = {name: getattr(sink.stored, name) for name in sink.stored.__struct_fields__}
    sink.stored = type(sink.stored)(**{**fields, "intent": Intent(batch_id=9, targets=[])})
    sink.problem = "the disk is full"
    told = (await opened.client.get(PATH)).json()
    assert (told["committing"], told["problem"]) == (9, "the disk is full")
