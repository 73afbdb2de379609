"""A node dies in the middle of what was carried to it: its clients, who ask another node, lose nothing and go on."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx

from tests.support.gateway_cluster import SECONDS_MAX, GatewayCluster, GatewayNode
from tests.support.waiting import Deadline


async def taken(lines: AsyncIterator[str], count: int) -> list[dict]:
    """So many records of a consume stream."""
    async with asyncio.timeout(SECONDS_MAX):
        return [json.loads(await anext(lines)) for _ in range(count)]


async def until_taken(node: GatewayNode, method: str, path: str, **more) -> httpx.Response:
    """As a client does that is told to come again."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            answer = await node.client.request(method, path, **more)
            if answer.status_code != 503:
                return answer
            assert answer.headers["retry-after"] == "1", answer.text


@contextlib.asynccontextmanager
async def consuming(node: GatewayNode, **params) -> AsyncIterator[httpx.Response]:
    """A stream of records, from a node that may ask to come again first."""
    deadline = Deadline(SECONDS_MAX, "a stream stands")
    while deadline.left:
        async with node.client.stream("GET", "/v1/consume", params=params) as stream:
            if stream.status_code == 503:
                continue
            assert stream.status_code == 200
            yield stream
            return


async def test_a_worker_goes_on_at_the_same_node_when_the_one_behind_it_dies(cluster: GatewayCluster) -> None:
    await cluster.placed("jobs")
    owner = cluster.nodes[3]
    group = cluster.group_of(owner)
    stranger = cluster.other(owner)
    for n in range(4):
        made = await stranger.client.post("/v1/produce", json={"topic": "jobs", "value": str(n)})
        assert made.status_code == 200, made.text
    work = {"topic": "jobs", "group": group, "owner": "w"}
    async with consuming(stranger, **work, lease_ms=60_000) as stream:
        lines = stream.aiter_lines()
        first = await taken(lines, 4)
        place = {"partition": 0, "offset": first[0]["offset"]}
        assert (await stranger.client.post("/v1/ack", json={**work, **place})).status_code == 204
        await owner.kill()
        # It ends as a whole answer does, so a worker comes again.
        async with asyncio.timeout(SECONDS_MAX):
            assert [line async for line in lines] == []
    for record in first[1:]:
        # Leases outlive the node that gave them, unless nobody else had heard of them yet: this one need not be waited for.
        body = {**work, "partition": 0, "offset": record["offset"], "lease_ms": 1}
        assert (await until_taken(stranger, "POST", "/v1/extend", json=body)).status_code in (204, 409)
    async with consuming(stranger, **{**work, "owner": "x"}, lease_ms=60_000) as stream:
        # Kept: the stream would end with it.
        lines = stream.aiter_lines()
        again = await taken(lines, 3)
        assert sorted(record["value"] for record in again) == ["1", "2", "3"]
        for record in again:
            body = {**work, "owner": "x", "partition": 0, "offset": record["offset"]}
            assert (await stranger.client.post("/v1/ack", json=body)).status_code == 204


async def test_a_reader_and_a_follower_go_on_when_the_leader_dies(cluster: GatewayCluster) -> None:
    await cluster.placed("orders")
    leader = cluster.leader("orders")
    stranger = cluster.other(leader)
    body = {"value": "before", "acks": "all"}
    assert (await stranger.client.post("/topics/orders/messages", json=body)).status_code == 200
    async with stranger.client.stream("GET", "/topics/orders/tail?from=earliest") as stream:
        values = (json.loads(line[6:])["value"] async for line in stream.aiter_lines() if line.startswith("data: "))
        async with asyncio.timeout(SECONDS_MAX):
            assert await anext(values) == "before"
        await leader.kill()
        found: list[dict] = []
        async with asyncio.timeout(SECONDS_MAX):
            # A new leader shows what it has when it knows that the others have it too.
            while not found:
                read = await until_taken(stranger, "GET", "/topics/orders/partitions/0/messages")
                found = read.json()["messages"]
        assert [message["value"] for message in found] == ["before"]
        published = await until_taken(
            stranger, "POST", "/topics/orders/messages", json={"value": "after", "acks": "all"}
        )
        assert published.status_code == 200, published.text
        async with asyncio.timeout(SECONDS_MAX):
            assert await anext(values) == "after"


async def test_a_member_of_a_group_joins_again_where_the_group_is_now(cluster: GatewayCluster) -> None:
    await cluster.placed("orders", partitions=2)
    owner = cluster.nodes[2]
    group = cluster.group_of(owner)
    stranger = cluster.other(owner)
    body = {"topic_name": "orders", "consumer_id": "a", "session_timeout_ms": 600_000}
    assert (await stranger.client.post(f"/consumers/{group}/members", json=body)).json()["partitions"] == [0, 1]
    commit = {"topic_name": "orders", "partition": 0, "offset": 0}
    assert (await stranger.client.post(f"/consumers/{group}/offsets", json=commit)).status_code == 200
    await owner.kill()
    joined = await until_taken(stranger, "POST", f"/consumers/{group}/members", json=body)
    assert (joined.status_code, joined.json()["partitions"]) == (200, [0, 1])
    offsets = await until_taken(stranger, "GET", f"/consumers/{group}/offsets")
    assert [each["offset"] for each in offsets.json()["offsets"]] == [0]


async def test_a_node_that_stops_as_it_should_ends_what_is_carried_to_it_well(cluster: GatewayCluster) -> None:
    await cluster.placed("jobs")
    owner = cluster.nodes[1]
    group = cluster.group_of(owner)
    stranger = cluster.other(owner)
    params = {"topic": "jobs", "group": group, "owner": "w"}
    async with consuming(stranger, **params) as stream:
        await owner.cluster_node.hand_over()
        await owner.stop()
        async with asyncio.timeout(SECONDS_MAX):
            assert await stream.aread() == b""
    async with consuming(stranger, **params):
        pass


async def test_a_node_says_that_its_metadata_store_cannot_be_reached_and_lives(cluster: GatewayCluster) -> None:
    node = cluster.nodes[1]
    assert (await node.client.get("/readyz")).json() == {"status": "ready"}
    node.problem = "etcd cannot be reached"
    assert (await node.client.get("/health")).json() == {"status": "degraded", "problem": "etcd cannot be reached"}
    ready = await node.client.get("/readyz")
    assert (ready.status_code, ready.json()["problem"]) == (503, "etcd cannot be reached")
    assert (await node.client.get("/livez")).status_code == 200
    node.problem = None
    assert (await node.client.get("/health")).json() == {"status": "healthy"}
