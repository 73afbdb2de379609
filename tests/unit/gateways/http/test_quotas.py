"""Quotas over HTTP: set and listed, and what they do to a client."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.quotas.names import Place
from tests.support.http_node import HttpNode, RawHttp, becomes, body_of, post, request, status_of

USER = Place("ANONYMOUS")
PRODUCE, CHUNKED = "/v1/produce", ("Transfer-Encoding: chunked",)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with HttpNode(tmp_path) as node:
        await node.create("t")
        yield node


def produce(size: int) -> bytes:
    return post(PRODUCE, json.dumps({"topic": "t", "value": "v" * size}).encode())


def connections(node: HttpNode) -> list[Any]:
    return list(node.http._server.server_state.connections)


async def asked(node: HttpNode, data: bytes) -> bytes:
    """The answer on a connection of its own, on which nothing is muted yet."""
    raw = await node.connect()
    answer = await raw.ask(data)
    await raw.close()
    return answer


async def is_silent(node: HttpNode, raw: RawHttp) -> bool:
    """Whether a request is not taken until the connection is unmuted."""
    await raw.send(request("GET", "/livez"))
    assert (await node.client.get("/livez")).status_code == 200
    silent = not raw.reader._buffer  # type: ignore[attr-defined]
    for connection in connections(node):
        if connection._muted is not None:
            connection._muted.cancel()
            connection.unmute()
    assert status_of(await raw.answer()) == 200
    return silent


async def test_quotas_are_set_listed_and_removed(node: HttpNode) -> None:
    entity = [{"kind": "user", "name": "anna"}, {"kind": "client-id"}]
    quotas = {"producer_byte_rate": 1000, "request_percentage": 12.5}
    answer = await node.client.put("/v1/quotas", json={"entity": entity, "quotas": quotas})
    assert (answer.status_code, answer.content) == (204, b"")
    listed = (await node.client.get("/v1/quotas")).json()
    assert listed == {
        "quotas": [
            {
                "entity": [{"kind": "user", "name": "anna"}, {"kind": "client-id", "name": None}],
                "quotas": {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
            }
        ]
    }
    gone = {"producer_byte_rate": None, "request_percentage": None}
    await node.client.put("/v1/quotas", json={"entity": entity, "quotas": gone})
    assert (await node.client.get("/v1/quotas")).json() == {"quotas": []}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "quotas is required"),
        ({"quotas": {"producer_byte_rate": 1}}, "The entity is empty"),
        ({"entity": [{"kind": "user"}], "quotas": {"producer_byte_rate": 0}}, "greater than 0"),
        ({"entity": [{"kind": "user"}], "quotas": {"rate": 1}}, "There is no quota 'rate'"),
        ({"entity": [{"kind": "user", "nam": "x"}], "quotas": {"producer_byte_rate": 1}}, "nam"),
    ],
)
async def test_what_makes_no_sense_is_refused(node: HttpNode, body: dict, says: str) -> None:
    answer = await node.client.put("/v1/quotas", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["message"]


@pytest.mark.parametrize("way", ["lane", "asgi"])
async def test_a_publisher_over_its_quota_is_not_read_for_a_while(node: HttpNode, way: str) -> None:
    await node.broker.quotas.store.alter(USER, {"producer_byte_rate": 1000.0})
    raw = await node.connect()
    data = produce(15_000)
    if way == "asgi":
        body = body_of(data)
        data = request("POST", PRODUCE, b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), CHUNKED, length=False)
    before = node.through_asgi
    assert status_of(await raw.ask(data)) == 200
    assert (node.through_asgi > before) is (way == "asgi")
    await becomes(lambda: any(connection._muted for connection in connections(node)))
    assert await is_silent(node, raw)
    node.clock.advance(30_000)
    for connection in connections(node):
        connection.unmute()
    assert not await is_silent(node, raw)
    await raw.close()


async def test_a_publisher_far_over_its_quota_is_refused_before_anything_is_done(node: HttpNode) -> None:
    await node.broker.quotas.store.alter(USER, {"producer_byte_rate": 1000.0})
    assert status_of(await asked(node, produce(60_000))) == 200
    end = node.broker.partition("t", 0).log.next_offset
    answer = await asked(node, produce(1))
    assert status_of(answer) == 429
    assert b"retry-after: 2" in answer.lower()
    assert json.loads(body_of(answer))["error"] == "RESOURCE_EXHAUSTED"
    assert "producer_byte_rate" in json.loads(body_of(answer))["message"]
    assert node.broker.partition("t", 0).log.next_offset == end
    node.clock.advance(30_000)
    assert status_of(await asked(node, produce(1))) == 200


async def test_a_record_with_an_idempotency_key_counts_once(node: HttpNode) -> None:
    await node.broker.quotas.store.alter(USER, {"producer_byte_rate": 1_000_000.0})
    body = {"topic": "t", "value": "v" * 10_000, "envelope": {"idempotency_key": "k"}}
    assert (await node.client.post(PRODUCE, json=body)).status_code == 200
    rate = node.broker.quotas.of(node.http.caller("127.0.0.1", "http")).produce
    assert rate is not None
    assert 10_000 <= rate.total < 15_000


async def test_a_worker_over_its_quota_is_refused(node: HttpNode) -> None:
    for _ in range(2):
        assert (await node.client.post(PRODUCE, json={"topic": "t", "value": "v" * 60_000})).status_code == 200
    await node.broker.quotas.store.alter(USER, {"consumer_byte_rate": 1000.0})
    ask = {"topic": "t", "group": "g", "owner": "o"}
    first = await node.client.post("/v1/lease", json=ask)
    assert len(first.json()["records"]) == 1
    second = await asked(node, post("/v1/lease", json.dumps(ask).encode()))
    assert status_of(second) == 429
    assert b"consumer_byte_rate" in body_of(second)


async def test_creating_topics_over_the_quota_is_refused(node: HttpNode) -> None:
    await node.broker.quotas.store.alter(USER, {"controller_mutation_rate": 1.0})
    assert (await node.client.post("/v1/topics", json={"name": "u", "partitions": 20})).status_code == 201
    refused = await node.client.post("/v1/topics", json={"name": "v"})
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "9"
    assert "v" not in node.broker.topics
    # What exists already is no change.
    assert (await node.client.post("/v1/topics", json={"name": "u", "partitions": 20})).status_code == 201
