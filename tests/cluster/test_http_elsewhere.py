"""Every HTTP endpoint works on every node: what belongs to another node is carried to it."""

import asyncio
import json
from collections.abc import AsyncIterator

from tests.support.gateway_cluster import GatewayCluster, GatewayNode


async def test_messages_of_a_partition_are_read_on_every_node(cluster: GatewayCluster) -> None:
    await cluster.placed("orders")
    published = await cluster.nodes[1].client.post("/topics/orders/messages", json={"value": "one", "acks": "all"})
    assert published.status_code == 200, published.text
    for node in cluster.nodes.values():
        answer = await node.client.get("/topics/orders/partitions/0/messages", headers={"X-Request-Id": "mine"})
        assert answer.status_code == 200, answer.text
        assert [message["value"] for message in answer.json()["messages"]] == ["one"]
        assert answer.headers.get_list("x-request-id") == ["mine"]
        offsets = await node.client.get("/topics/orders/partitions/0/offsets")
        assert offsets.json() == {"high_watermark": 1, "low_watermark": 0}


async def test_offsets_are_committed_and_read_on_every_node(cluster: GatewayCluster) -> None:
    await cluster.placed("orders", partitions=3)
    for index in range(3):
        body = {"value": "v", "partition": index, "acks": "all"}
        assert (await cluster.nodes[1].client.post("/topics/orders/messages", json=body)).status_code == 200
    for node_id, node in cluster.nodes.items():
        group = cluster.group_of(cluster.other(node))
        for index in range(3):
            # Each partition has one record: the last commit is past the end.
            for offset in range(3):
                body = {"topic_name": "orders", "partition": index, "offset": offset}
                committed = await node.client.post(f"/consumers/{group}/offsets", json=body)
                assert (committed.status_code, committed.json()) == (200, {"committed": True}), (node_id, body)
            refused = await node.client.post(f"/consumers/{group}/offsets", json={**body, "offset": -1})
            assert refused.status_code == 400
        for asked in cluster.nodes.values():
            found = await asked.client.get(f"/consumers/{group}/offsets", params={"topic": "orders"})
            assert [each["offset"] for each in found.json()["offsets"]] == [2, 2, 2]


async def test_members_are_where_their_group_is_whichever_node_they_ask(cluster: GatewayCluster) -> None:
    await cluster.placed("orders", partitions=4)
    owner = cluster.nodes[2]
    group = cluster.group_of(owner)
    shares = []
    for name, node in zip("abc", cluster.nodes.values(), strict=True):
        body = {"topic_name": "orders", "consumer_id": name, "session_timeout_ms": 600_000}
        joined = await node.client.post(f"/consumers/{group}/members", json=body)
        assert joined.status_code == 200, joined.text
    for name, node in zip("cab", cluster.nodes.values(), strict=True):
        beat = await node.client.put(f"/consumers/{group}/members/{name}", params={"topic": "orders"})
        shares += beat.json()["partitions"]
    assert sorted(shares) == [0, 1, 2, 3]
    for name, node in zip("bca", cluster.nodes.values(), strict=True):
        assert (await node.client.delete(f"/consumers/{group}/members/{name}")).json() == {"left": True}
    assert (await cluster.nodes[1].client.put(f"/consumers/{group}/members/a")).status_code == 404


async def test_records_are_leased_and_settled_through_a_node_that_is_nothing_to_the_queue(
    cluster: GatewayCluster,
) -> None:
    await cluster.placed("jobs", partitions=2)
    group = cluster.group_of(cluster.nodes[1])
    stranger = cluster.other(cluster.nodes[1])
    for n in range(6):
        made = await stranger.client.post("/v1/produce", json={"topic": "jobs", "value": f"job {n}", "key": str(n)})
        assert made.status_code == 200, made.text
    work = {"topic": "jobs", "group": group, "owner": "w"}
    consume = {**work, "lease_ms": 60_000, "release_on_disconnect": "true"}
    async with stranger.client.stream("GET", "/v1/consume", params=consume) as stream:
        assert stream.headers["content-type"] == "application/x-ndjson"
        lines = stream.aiter_lines()
        taken = [json.loads(await anext(lines)) for _ in range(6)]
        for line in taken[:5]:
            place = {"partition": line["partition"], "offset": line["offset"]}
            assert (await stranger.client.post("/v1/ack", json={**work, **place})).status_code == 204
        assert sorted(line["value"] for line in taken) == [f"job {n}" for n in range(6)]
        other_owner = {**work, "owner": "x", "partition": taken[5]["partition"], "offset": taken[5]["offset"]}
        refused = await stranger.client.post("/v1/ack", json=other_owner)
        assert (refused.status_code, refused.json()["error"]) == (409, "FAILED_PRECONDITION")
    # The stream is over and was to release, so its lease is free at once.
    again = await stranger.client.post("/v1/lease", json={**work, "owner": "y", "wait_ms": 10_000})
    assert [(record["value"], record["attempts"]) for record in again.json()["records"]] == [(taken[5]["value"], 1)]


async def test_a_topic_is_followed_live_on_every_node_from_its_end(cluster: GatewayCluster) -> None:
    await cluster.placed("orders", partitions=3)

    async def publish(value: str) -> None:
        for index in range(3):
            body = {"value": f"{value} {index}", "partition": index, "acks": "all"}
            assert (await cluster.nodes[1].client.post("/topics/orders/messages", json=body)).status_code == 200

    async def follow(node: GatewayNode, count: int) -> list[str]:
        async with node.client.stream("GET", "/topics/orders/tail") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            following.append(node)
            return [json.loads(line[6:])["value"] async for line in taken(lines, count)]

    async def taken(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
        async for line in lines:
            if line.startswith("data: "):
                yield line
                count -= 1
                if not count:
                    return

    await publish("before")
    following: list[GatewayNode] = []
    tails = [asyncio.ensure_future(follow(node, 3)) for node in cluster.nodes.values()]
    await cluster.until(lambda: len(following) == 3)
    await publish("after")
    for tail in tails:
        assert sorted(await tail) == ["after 0", "after 1", "after 2"]


async def test_a_group_may_be_made_on_any_node_before_its_topic(cluster: GatewayCluster) -> None:
    nodes = list(cluster.nodes.values())
    groups = [cluster.group_of(node) for node in nodes]
    body = {"topic_name": "orders"}
    registered = {}
    for group, node in zip(groups, nodes[1:] + nodes[:1], strict=True):
        answer = await node.client.post(f"/consumers/{group}/groups", json=body)
        assert answer.status_code == 201
        registered[group] = answer.json()
    assert (await nodes[0].client.post("/topics", json={"name": "orders", "partitions": 2})).status_code == 201
    await cluster.until(lambda: not any(node.broker.registry.awaited_topics() for node in nodes))
    for group in groups:
        for node in nodes:
            found = (await node.client.get(f"/consumers/{group}/offsets?topic=orders")).json()["offsets"]
            assert [(each["partition"], each["offset"]) for each in found] == [(0, 0), (1, 0)]
            answer = await node.client.post(f"/consumers/{group}/groups", json=body)
            assert (answer.status_code, answer.json()) == (201, registered[group])


async def test_numbers_of_a_topic_and_lists_of_groups_are_the_same_on_every_node(cluster: GatewayCluster) -> None:
    await cluster.placed("orders", partitions=3)
    groups = [cluster.group_of(node) for node in cluster.nodes.values()]
    for index, node in enumerate(cluster.nodes.values()):
        body = [{"value": "v", "partition": index, "acks": "all"}] * (index + 1)
        assert (await node.client.post("/topics/orders/messages", json=body)).status_code == 200
        commit = {"topic_name": "orders", "partition": index, "offset": 1}
        assert (await node.client.post(f"/consumers/{groups[index]}/offsets", json=commit)).status_code == 200
    for node in cluster.nodes.values():
        numbers = (await node.client.get("/v1/topics/orders/stats")).json()
        assert [each["end_offset"] for each in numbers["partitions"]] == [1, 2, 3]
        assert (numbers["records"], numbers["partitions_unknown"]) == (6, 0)
        assert [(flow["gateway"], flow["records_in"]) for flow in numbers["flows"]] == [("http", 6)]
        listed = (await node.client.get("/v1/groups")).json()["groups"]
        assert [each["group"] for each in listed] == sorted(groups)
        for group in groups:
            assert (await node.client.get(f"/v1/groups/{group}")).json()["group"] == group
    assert (await cluster.nodes[1].client.get("/v1/topics/none/stats")).status_code == 404


async def test_partitions_are_told_as_the_cluster_has_them(cluster: GatewayCluster) -> None:
    made = await cluster.nodes[2].client.post("/topics", json={"name": "orders", "partitions": 3})
    assert (made.status_code, made.json()["replication_factor"]) == (201, 3)
    await cluster.known("orders")
    told = [(await node.client.get("/topics/orders")).json()["partitions"] for node in cluster.nodes.values()]
    assert told[0] == told[1] == told[2]
    for partition in told[0]:
        assert partition["leader"] == cluster.leader("orders", partition["partition_id"]).node_id
        assert sorted(partition["replicas"]) == [1, 2, 3]
        assert partition["is_active"]
    assert {partition["leader"] for partition in told[0]} == {1, 2, 3}


async def test_sinks_are_looked_after_by_one_node_and_served_by_all(cluster: GatewayCluster) -> None:
    for node_id, node in cluster.nodes.items():
        opened = await node.client.post(f"/v1/sinks/sink-{node_id}/open")
        assert opened.status_code == 200, opened.text
    for node in cluster.nodes.values():
        listed = (await node.client.get("/v1/sinks")).json()["sinks"]
        assert [sink["sink"] for sink in listed] == ["sink-1", "sink-2", "sink-3"]
        assert (await node.client.get("/v1/sinks/none")).status_code == 404


async def test_a_produce_key_is_remembered_whichever_node_gets_it(cluster: GatewayCluster) -> None:
    await cluster.placed("orders")
    answers = []
    for node in cluster.nodes.values():
        body = {"topic": "orders", "value": "once", "envelope": {"idempotency_key": "k"}}
        answer = await node.client.post("/v1/produce", json=body)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json())
    assert [answer["offset"] for answer in answers] == [0, 0, 0]
    assert [answer.get("duplicate", False) for answer in answers] == [False, True, True]


OF_SECURITY = ("/v1/acls", "/v1/roles", "/v1/users", "/v1/keys")


async def test_no_endpoint_that_looks_fails_on_any_node(cluster: GatewayCluster) -> None:
    await cluster.placed("orders", partitions=3)
    group = cluster.group_of(cluster.nodes[3])
    assert (await cluster.nodes[1].client.post("/v1/sinks/s/open")).status_code == 200
    made = await cluster.nodes[1].client.post("/v1/produce", json={"topic": "orders", "value": "v"})
    lease = {"topic": "orders", "group": group, "owner": "w", "wait_ms": 10_000, "lease_ms": 60_000}
    assert len((await cluster.nodes[1].client.post("/v1/lease", json=lease)).json()["records"]) == 1
    names = {"topic": "orders", "group": group, "partition": str(made.json()["partition"]), "sink": "s"}
    query = {"topic": "orders", "group": group, "partition": names["partition"], "offset": "0"}
    answers: dict[str, list[object]] = {}
    for node in cluster.nodes.values():
        document = (await node.client.get("/openapi.json")).json()
        for path, known in document["paths"].items():
            if "get" not in known or path in STREAMS:
                continue
            wanted = {each["name"] for each in known["get"].get("parameters", ()) if each["in"] == "query"}
            params = {name: value for name, value in query.items() if name in wanted}
            answer = await node.client.get(path.format(**names), params=params)
            # Without authentication there are no users and no rules to show.
            expected = (400,) if path.startswith(OF_SECURITY) else (200, 404)
            assert answer.status_code in expected, (path, answer.text)
            is_own = path in OF_ONE_NODE or answer.headers["content-type"] != "application/json"
            answers.setdefault(path, []).append(None if is_own else (answer.status_code, timeless(answer.json())))
    differing = [path for path, (first, *others) in answers.items() if any(other != first for other in others)]
    assert {path: answers[path] for path in differing} == {}


def timeless(value: object) -> object:
    """Without what is another from one moment to the next."""
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: timeless(each) for key, each in value.items() if key not in MOVING and not key.endswith("_per_second")}


STREAMS = ("/topics/{topic}/tail", "/v1/consume")
MOVING = ("lag_ms", "flows")
OF_ONE_NODE = ("/v1/cluster",)
