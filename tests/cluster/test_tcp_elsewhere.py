"""Lines at a node that they do not belong to: carried out by the one that they do, over kills and handovers; three real nodes, real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from penstock.address import parse_address
from penstock.core.cluster.image import node_key
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Delete
from penstock.operations.groups import CommitOffset, FetchOffsets, Heartbeat
from penstock.operations.records import ReadRecords
from penstock.types import Gateway, GroupId
from tests.cluster.commits import begin_and_lose, refuse_first, take_and_say_nothing
from tests.support.gateway_cluster import SECONDS_MAX, GatewayCluster, GatewayNode


class Client:
    """A client of one node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, type_: str, **fields: Any) -> None:
        self.writer.write(json.dumps({"type": type_, **fields}).encode() + b"\n")

    async def read(self) -> Any:
        async with asyncio.timeout(SECONDS_MAX):
            return json.loads(await self.reader.readline())

    async def ask(self, type_: str, **fields: Any) -> Any:
        self.send(type_, **fields)
        return await self.read()

    async def data(self, type_: str, **fields: Any) -> Any:
        answer = await self.ask(type_, **fields)
        assert answer["ok"], answer
        return answer["data"]

    async def error(self, type_: str, **fields: Any) -> str:
        answer = await self.ask(type_, **fields)
        assert set(answer) == {"ok", "error"}, answer
        text: str = answer["error"]
        return text


Connect = Callable[[GatewayNode], Awaitable[Client]]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def connect(node: GatewayNode) -> Client:
        clients.append(Client(*await asyncio.open_connection(*parse_address(node.addresses["tcp"]), limit=2**24)))
        return clients[-1]

    yield connect
    for client in clients:
        client.writer.close()


async def test_lines_for_several_nodes_are_answered_in_their_order(cluster: GatewayCluster, connect: Connect) -> None:
    topic = await cluster.topic("t", (1, 2, 3))
    groups = [cluster.group_of(node) for node in cluster.nodes.values()]
    client = await connect(cluster.nodes[2])
    for n in range(20):
        for partition in range(3):
            client.send("produce", topic=topic, value=f"{n}", partition=partition)
        for partition, group in enumerate(groups):
            client.send("commit", groupId=group, topic=topic, partition=partition, offset=n + 1)
            client.send("metrics", groupId=group, topic=topic, partition=partition)
            client.send("fetch", topic=topic, partition=partition, offset=n)
    for n in range(20):
        for partition in range(3):
            produced = (await client.read())["data"]
            assert (produced["partition"], produced["offset"]) == (partition, n)
        for group in groups:
            assert (await client.read())["data"] == {"groupId": group}
            metrics = (await client.read())["data"]
            assert (metrics["endOffset"], metrics["committedOffset"], metrics["lag"]) == (n + 1, n + 1, 0)
            records = (await client.read())["data"]["records"]
            assert [record["value"] for record in records] == [f"{n}"]


async def test_a_fetch_finds_the_next_leader_when_the_last_is_killed(cluster: GatewayCluster, connect: Connect) -> None:
    topic = await cluster.topic("t", (2,))
    client = await connect(cluster.nodes[1])
    await client.data("produce", topic=topic, value="x")
    assert len((await client.data("fetch", topic=topic, partition=0, offset=0))["records"]) == 1
    await cluster.nodes[2].kill()
    found: list[Any] = []
    async with asyncio.timeout(SECONDS_MAX):
        # A new leader shows what it has when it knows that the others have it too.
        while not found:
            found = (await client.data("fetch", topic=topic, partition=0, offset=0))["records"]
    assert [record["value"] for record in found] == ["x"]


async def test_a_member_joins_again_at_the_next_node_when_its_groups_node_is_killed(
    cluster: GatewayCluster, connect: Connect
) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1, 3))
    client = await connect(cluster.nodes[1])
    member = {"groupId": group, "consumerId": "a"}
    assert await client.data("joinGroup", topic=topic, **member) == {"partitions": [0, 1]}
    await client.data("produce", topic=topic, value="x", partition=0)
    await client.data("commit", groupId=group, topic=topic, partition=0, offset=1)
    assert await client.data("heartbeat", **member) == {"groupId": group}
    await owner.kill()
    assert (await client.error("heartbeat", **member)).endswith("; join again")
    assert await client.data("joinGroup", topic=topic, **member) == {"partitions": [0, 1]}
    assert (await client.data("metrics", groupId=group, topic=topic, partition=0))["committedOffset"] == 1


async def test_a_node_that_is_silent_is_waited_for_until_its_life_ends(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    client = await connect(cluster.nodes[1])
    await client.data("joinGroup", groupId=group, topic=topic, consumerId="a")
    came = asyncio.Event()
    for connection in owner.cluster_node.peers._connections:
        # As a process that is stopped: it takes everything and answers nothing.
        monkeypatch.setattr(connection._operations, "begin", lambda *_: came.set())
    client.send("heartbeat", groupId=group, consumerId="a")
    await came.wait()
    await cluster.store.txn([], [Delete(node_key(2))])
    assert await client.read() == {"ok": False, "error": "Group not found"}


async def test_a_refusal_that_will_pass_is_looked_at_again(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    refused = refuse_first(owner, monkeypatch)
    for node in (cluster.nodes[1], owner):
        refused.clear()
        client = await connect(node)
        assert await client.data("commit", groupId=group, topic=topic, partition=0, offset=0) == {"groupId": group}
        assert refused


async def test_what_may_have_been_done_is_not_done_again(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    calls = begin_and_lose(owner, monkeypatch)
    for node in (cluster.nodes[1], owner):
        calls.clear()
        client = await connect(node)
        assert await client.error("commit", groupId=group, topic=topic, partition=0, offset=0)
        assert len(calls) == 1


async def test_a_commit_whose_node_dies_with_the_answer_is_not_sent_to_the_next(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    came = take_and_say_nothing(owner, monkeypatch)
    client = await connect(cluster.nodes[1])
    client.send("commit", groupId=group, topic=topic, partition=0, offset=0)
    await came.wait()
    await owner.kill()
    assert "it may have done this, or not" in (await client.read())["error"]
    assert (await client.data("metrics", groupId=group, topic=topic, partition=0))["committedOffset"] is None


async def test_nobody_to_be_found_is_told_with_what_to_do(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cluster.router.TRY_SECONDS", 0.2)
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))

    def refuse(*_: Any, **__: Any) -> None:
        raise PenstockError(Reason.NOT_COORDINATOR, "not here")

    monkeypatch.setattr(owner.broker.groups.shared, "join", refuse)
    client = await connect(cluster.nodes[1])
    text = await client.error("joinGroup", groupId=group, topic=topic, consumerId="a")
    assert text.endswith("Nothing was done; send it again.")
    assert await client.data("listTopics") == {"topics": [topic]}


async def test_a_topic_that_the_other_node_has_not_heard_of_is_waited_for(
    cluster: GatewayCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    exists, hidden = owner.broker.exists, []

    def exists_later(name: str, partition: int) -> bool:
        if name == topic and not hidden:
            hidden.append(name)
            return False
        return exists(name, partition)  # type: ignore[arg-type]

    monkeypatch.setattr(owner.broker, "exists", exists_later)
    client = await connect(cluster.nodes[1])
    assert await client.data("joinGroup", groupId=group, topic=topic, consumerId="a") == {"partitions": [0]}
    assert hidden


async def test_the_members_of_a_group_are_seen_from_where_they_are(cluster: GatewayCluster, connect: Connect) -> None:
    owner = cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    client = await connect(cluster.nodes[1])
    await client.data("joinGroup", groupId=group, topic=topic, consumerId="a")
    assert [member.client_host for member in owner.broker.groups.describe(GroupId(group)).members] == ["127.0.0.1"]


async def test_an_operation_is_sent_on_once_only(cluster: GatewayCluster) -> None:
    owner, wrong = cluster.nodes[1], cluster.nodes[2]
    group, topic = cluster.group_of(owner), await cluster.topic("t", (1,))
    caller = Caller(ANONYMOUS, Gateway.TCP, "them")
    # As one that another node has sent.
    for operation, reason in (
        (Heartbeat(group, "a"), Reason.NOT_COORDINATOR),
        (ReadRecords(topic, 0, 0, 1, 1), Reason.NOT_LEADER_OR_FOLLOWER),
        (CommitOffset(group, topic, 0, 0), Reason.NOT_COORDINATOR),
        (FetchOffsets(group, topic, 0), Reason.NOT_COORDINATOR),
    ):
        with pytest.raises(PenstockError) as refused:
            await wrong.broker.door.do_here(operation, caller)
        assert refused.value.reason is reason
        assert not refused.value.begun
