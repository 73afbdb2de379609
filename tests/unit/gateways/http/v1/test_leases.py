"""POST /v1/lease through the fast lane and through ASGI: the same answers, and nothing for a client that has left."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.gateways.http.server.gateway import HttpBounds
from tests.support.http_node import HttpNode, becomes, body_of, masked, post, status_of

MESSAGES = "/topics/orders/messages"


def lease(owner: str, **more: int) -> bytes:
    return post("/v1/lease", json.dumps({"topic": "orders", "group": "g", "owner": owner, **more}).encode())


@pytest.fixture(params=[True, False], ids=["lane", "asgi"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with HttpNode(tmp_path, HttpBounds(fast_lane=request.param)) as node:
        await node.create("orders")
        yield node


def records_of(answer: bytes) -> list[dict[str, object]]:
    assert status_of(answer) == 200, answer
    records: list[dict[str, object]] = json.loads(body_of(answer))["records"]
    return records


async def test_the_lane_takes_a_lease_and_answers_as_asgi_does(tmp_path: Path) -> None:
    answers = []
    for fast_lane in (True, False):
        async with HttpNode(tmp_path / str(fast_lane), HttpBounds(fast_lane=fast_lane)) as node:
            await node.create("orders")
            raw = await node.connect()
            await raw.ask(post(MESSAGES, b'[{"value":"a","key":"k"},{"value":"b"}]'))
            before = node.through_asgi
            found = [await raw.ask(lease("me", **more)) for more in ({"max_records": 9}, {}, {"max_records": 0})]
            assert (node.through_asgi == before) is fast_lane
            await raw.close()
            answers.append([re.sub(rb'("(?:timestamp|lease_until_ms)":)\d+', rb"\1N", masked(one)) for one in found])
    assert answers[0] == answers[1]
    assert b'"value":"b"' in answers[0][0]
    assert b'{"records":[]}' in answers[0][1]
    assert b"max_records must be from 1" in answers[0][2]


async def test_a_waiting_lease_is_answered_with_the_first_record(either: HttpNode) -> None:
    waiting, other = await either.connect(), await either.connect()
    await waiting.send(lease("me", wait_ms=20_000))
    await other.ask(post(MESSAGES, b'{"value":"late"}'))
    [record] = records_of(await waiting.answer())
    assert (record["value"], record["attempts"]) == ("late", 1)
    await waiting.close()
    await other.close()


async def test_a_waiting_client_that_leaves_is_leased_nothing(either: HttpNode) -> None:
    waiting = await either.connect()
    await waiting.send(lease("gone", wait_ms=20_000))
    queues = either.broker.queues
    await becomes(lambda: queues.queues())
    await waiting.close()
    await becomes(lambda: either.http.connection_count == 0)
    other = await either.connect()
    await other.ask(post(MESSAGES, b'{"value":"late"}'))
    [record] = records_of(await other.ask(lease("here")))
    assert (record["value"], record["attempts"]) == ("late", 1)
    await other.close()


async def test_requests_behind_a_lease_wait_until_it_has_left(either: HttpNode) -> None:
    raw = await either.connect()
    await raw.ask(post(MESSAGES, b'[{"value":"a"},{"value":"b"}]'))
    await raw.send(lease("me") + lease("me") + post(MESSAGES, b'{"value":"c"}') + lease("me"))
    first, second = records_of(await raw.answer()), records_of(await raw.answer())
    published = await raw.answer()
    assert status_of(published) == 200
    third = records_of(await raw.answer())
    assert [record["value"] for record in (*first, *second, *third)] == ["a", "b", "c"]
    await raw.close()
