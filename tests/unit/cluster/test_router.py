"""Operations at a node that they do not belong to: real links between two or three nodes in one process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from penstock.cluster import router as router_module
from penstock.cluster.links import Identity, Link
from penstock.core.security.access import Caller, Principal
from penstock.core.topics.topics import NewTopic
from penstock.errors import BacklogBound, BacklogFull, PenstockError, Reason
from penstock.gateways.peers import operations as peer_module
from penstock.operations.groups import CommitOffset, FetchOffsets, ListGroups, Membership
from penstock.operations.queues import Ack, Consume, DescribeQueue, Lease, ListQueues
from penstock.operations.records import PublishOnce, ReadRecords
from penstock.operations.topics import DescribePartition, DescribeTopic, DescribeTopicStats
from penstock.transport.peer_tls import PLAIN
from penstock.types import Gateway, NodeId
from penstock.wire.peers import DoHead, OperationAnswer, PeerApi, encode_peer_request
from tests.support.cluster_nodes import Running, until
from tests.support.queue_cluster import CALLER, QueueCluster

ANSWER_SECONDS_MAX = 30


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QueueCluster]:
    async with QueueCluster(tmp_path, 1, 2, replication_factor=2, min_in_sync=1) as started:
        await started.ready()
        await started.create("t", (1, 2), (2, 1))
        await until(lambda: all(known(node) for node in started.up))
        yield started


def known(node: Running) -> bool:
    return "t" in node.broker.topics and all(
        node.broker.topics.partition(node.broker.topics.require("t"), index).leader > 0 for index in (0, 1)
    )


class Reader:
    """The side of a stream that reads."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

    def on_items(self, items: Any) -> None:
        self.items += items

    def on_end(self, error: PenstockError | None) -> None:
        self.ended.set_result(error)


def apart(cluster: QueueCluster) -> tuple[Running, Running, str]:
    """The coordinator of a group, another node, and the group."""
    owner, other = cluster.nodes[1], cluster.nodes[2]
    return owner, other, cluster.group_of(owner)


async def test_an_operation_is_carried_out_where_it_belongs(cluster: QueueCluster) -> None:
    await cluster.produce("t", b"one", index=0)
    for node in cluster.up:
        found = await node.broker.do(DescribePartition("t", 0), CALLER)
        assert (found.start_offset, found.high_watermark) == (0, 1)
        (record,) = await node.broker.do(ReadRecords("t", 0, 0, 10, 1_000), CALLER)
        assert (record.offset, record.value) == (0, b"one")
    counts = {node.broker.node_id: dict(node.broker.meters.operations.items()) for node in cluster.up}
    # The other node was asked by a client, and asked the leader.
    assert (counts[1]["DescribePartition", "http"], counts[2]["DescribePartition", "http"]) == (2, 1)


async def test_a_refusal_comes_back_as_it_was(cluster: QueueCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, other, group = apart(cluster)
    for node in (owner, other):
        with pytest.raises(PenstockError) as refused:
            await node.broker.do(DescribeQueue("t", group), CALLER)
        assert refused.value.reason is Reason.GROUP_ID_NOT_FOUND
        assert "has no queue on t" in refused.value.text
        assert not refused.value.begun

    def full(*_: object, **__: object) -> None:
        raise BacklogFull(BacklogBound.BYTES, "too much")

    for node in cluster.up:
        monkeypatch.setattr(node.broker.idempotency, "publish_once", full)
    for node in cluster.up:
        with pytest.raises(BacklogFull) as too_much:
            await node.broker.do(PublishOnce("t", "key", b"v"), CALLER)
        assert (too_much.value.bound, too_much.value.text) == (BacklogBound.BYTES, "too much")


async def test_what_every_node_knows_a_part_of_is_one_answer(cluster: QueueCluster) -> None:
    groups = [cluster.group_of(node) for node in cluster.up]
    for index, group in enumerate(groups):
        await cluster.any.broker.do(CommitOffset(group, "t", index, 0), CALLER)
        await cluster.any.broker.do(Lease("t", group, "w", 1, 1_000), CALLER)
        await cluster.produce("t", b"x", index=index)
    for node in cluster.up:
        assert [each.group for each in await node.broker.do(ListGroups(), CALLER)] == sorted(groups)
        assert [each.group for each in await node.broker.do(ListQueues(), CALLER)] == sorted(groups)
        stats = await node.broker.do(DescribeTopicStats("t"), CALLER)
        assert [(each.partition, each.leader, each.records) for each in stats.partitions] == [(0, 1, 1), (1, 2, 1)]
        assert (stats.records, stats.partitions_unknown) == (2, 0)


async def test_a_caller_that_gives_up_is_leased_nothing_elsewhere(cluster: QueueCluster) -> None:
    owner, other, group = apart(cluster)
    waiting = asyncio.ensure_future(other.broker.do(Lease("t", group, "gone", 1, 60_000, 60_000), CALLER))
    queue = lambda: owner.broker.queues.get("t", group)  # noqa: E731
    await until(lambda: (found := queue()) is not None and bool(list(found.takers)))
    waiting.cancel()
    await until(lambda: (found := queue()) is not None and not list(found.takers))
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_stream_is_read_by_credit_and_ends_with_its_reader(cluster: QueueCluster) -> None:
    owner, other, group = apart(cluster)
    for n in range(3):
        await cluster.produce("t", b"%d" % n, index=0)
    reader = Reader()
    flow = await other.broker.open(Consume(2, "t", group, "w", 60_000), CALLER, reader.on_items, reader.on_end)
    await until(lambda: len(reader.items) == 2)
    flow.grant(5)
    await until(lambda: len(reader.items) == 3)
    assert [delivery.value for delivery in reader.items] == [b"0", b"1", b"2"]
    await other.broker.do(Ack("t", group, "w", 0, [0, 1, 2]), CALLER)
    assert (await other.broker.do(DescribeQueue("t", group), CALLER)).lag == 0
    flow.close()
    flow.close()
    queue = owner.broker.queues.get("t", group)
    assert queue is not None
    await until(lambda: not list(queue.takers))
    assert not reader.ended.done()


async def test_a_stream_that_cannot_be_opened_says_why(cluster: QueueCluster) -> None:
    _, other, group = apart(cluster)
    reader = Reader()
    with pytest.raises(PenstockError) as refused:
        await other.broker.open(Consume(1, "t", group, "", 60_000), CALLER, reader.on_items, reader.on_end)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert not reader.ended.done()


async def test_a_stream_ends_when_its_node_is_gone(cluster: QueueCluster) -> None:
    owner, other, group = apart(cluster)
    reader = Reader()
    await other.broker.open(Membership(0, group, "t", "a"), CALLER, reader.on_items, reader.on_end)
    assert [assignment.partitions for assignment in reader.items] == [(0, 1)]
    await cluster.kill(owner)
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        error = await reader.ended
    assert error is not None
    assert error.reason is Reason.LINK_LOST


async def test_a_newer_member_of_the_same_name_takes_the_place_wherever_it_asks(cluster: QueueCluster) -> None:
    owner, other, group = apart(cluster)
    first, second, third = Reader(), Reader(), Reader()
    await owner.broker.do(CommitOffset(group, "t", 1, 7), CALLER)
    await other.broker.open(Membership(0, group, "t", "a"), CALLER, first.on_items, first.on_end)
    flow = await owner.broker.open(Membership(0, group, "t", "a"), CALLER, second.on_items, second.on_end)
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        error = await first.ended
    assert error is not None
    assert error.reason is Reason.FENCED_INSTANCE_ID
    assert (second.items[0].partitions, second.items[0].offsets) == ((0, 1), {1: 7})
    await other.broker.open(Membership(0, group, "t", "b"), CALLER, third.on_items, third.on_end)
    await until(lambda: second.items[-1].partitions == (0,))
    flow.close()
    await until(lambda: third.items[-1].partitions == (0, 1))


async def test_a_topic_that_another_node_created_just_now_is_learned(cluster: QueueCluster) -> None:
    other = cluster.nodes[2]
    cluster.news[2].hold()
    await cluster.nodes[1].broker.topics.create(NewTopic("fresh", assignments={0: [1, 2]}))
    asking = asyncio.ensure_future(other.broker.do(DescribeTopic("fresh"), CALLER))
    await asyncio.sleep(0)
    cluster.news[2].release()
    assert (await asking).topic.name == "fresh"
    with pytest.raises(PenstockError) as refused:
        await other.broker.do(DescribeTopic("nobody"), CALLER)
    assert refused.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_operation_that_nobody_owns_for_too_long_is_refused_with_what_to_do(
    cluster: QueueCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "TRY_SECONDS", 0.2)
    owner, other, group = apart(cluster)

    def not_here(*_: object) -> None:
        raise PenstockError(Reason.NOT_COORDINATOR, "not here")

    monkeypatch.setattr(owner.broker.groups, "fetch_offsets", not_here)
    for node in (owner, other):
        with pytest.raises(PenstockError) as refused:
            await node.broker.do(FetchOffsets(group), CALLER)
        assert refused.value.reason is Reason.NOT_COORDINATOR
        assert "(not here)" in refused.value.text


# What another node may send.


async def linked(cluster: QueueCluster) -> Link:
    """A link from node 2 to node 1."""
    caller = cluster.nodes[2]
    link = Link(NodeId(1), caller.cluster.nodes, caller.broker.entropy)
    await link.connect(Identity(NodeId(2), caller.epoch, caller.cluster.secret, PLAIN))
    return link


async def asked(link: Link, name: str, data: bytes) -> OperationAnswer:
    parts = encode_peer_request(DoHead(name, "User:a", "http", ""), data)
    return msgspec.msgpack.decode(await link.post_peer(PeerApi.DO, parts), type=OperationAnswer)


async def test_an_operation_of_a_newer_release_is_refused_alone(cluster: QueueCluster) -> None:
    link = await linked(cluster)
    unknown = await asked(link, "Teleport", b"\x80")
    assert (unknown.reason, unknown.begun) == ("UNSUPPORTED_VERSION", False)
    other_fields = await asked(link, "DescribeTopic", msgspec.msgpack.encode({"subject": "t"}))
    assert (other_fields.reason, other_fields.begun) == ("UNSUPPORTED_VERSION", False)
    found = await asked(link, "DescribeTopic", msgspec.msgpack.encode(DescribeTopic("t")))
    assert found.reason == ""
    await link.aclose()


async def test_the_whole_caller_travels(cluster: QueueCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a node would decide about somebody with fewer groups, or another listener."""
    caller = Caller(Principal("User:a"), Gateway.GRPC, "10.0.0.1", ("staff", "ops"), "outside", "token", "app", "r1")
    assert all(caller), "every field has a value that is not its default"
    assert len(caller) == len(Caller._fields)
    owner, other, group = apart(cluster)
    callers: list[Caller] = []
    door = owner.broker.door
    begin = door.begin_here

    def noted(operation: Any, by: Caller, done: Any, **more: Any) -> Any:
        callers.append(by)
        return begin(operation, by, done, **more)

    monkeypatch.setattr(door, "begin_here", noted)
    await other.broker.do(Lease("t", group, "w", 1, 60_000), caller)
    assert callers == [caller]


async def test_too_many_operations_are_refused_and_not_left_unread(
    cluster: QueueCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "UNDER_WAY_MAX", 1)
    owner, _, group = apart(cluster)
    link = await linked(cluster)
    waits = Lease("t", group, "w", 1, 60_000, 60_000)
    first = asyncio.ensure_future(asked(link, "Lease", msgspec.msgpack.encode(waits)))
    await until(lambda: (found := owner.broker.queues.get("t", group)) is not None and bool(list(found.takers)))
    refused = await asked(link, "DescribeTopic", msgspec.msgpack.encode(DescribeTopic("t")))
    assert (refused.reason, refused.begun) == ("COORDINATOR_NOT_AVAILABLE", False)
    await cluster.produce("t", b"x", index=0)
    assert (await first).reason == ""
    await link.aclose()


async def test_what_a_node_asked_for_is_given_up_with_its_connection(cluster: QueueCluster) -> None:
    owner, _, group = apart(cluster)
    link = await linked(cluster)
    waits = Lease("t", group, "w", 1, 60_000, 60_000)
    asking = asyncio.ensure_future(asked(link, "Lease", msgspec.msgpack.encode(waits)))
    takers = lambda: (found := owner.broker.queues.get("t", group)) is not None and list(found.takers)  # noqa: E731
    await until(lambda: bool(takers()))
    await link.aclose()
    await until(lambda: not takers())
    with pytest.raises(PenstockError):
        await asking
