"""Appends over the peer listener: only for nodes of the cluster, as many at once as there is room for, and each answered by its number."""

import asyncio
from pathlib import Path

import pytest

from penstock.cluster.links import Identity, Link
from penstock.core.cluster.shared_secret import SharedSecret
from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.gateways.peers import appends as appends_module
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.transport.peer_tls import PLAIN
from penstock.types import Acks, NodeId
from penstock.wire.kafka.headers import RequestHeader, frame_request
from penstock.wire.peers import AppendHead, AppendOnceHead, PeerApi, decode_answer, encode_peer_request
from tests.support.cluster_nodes import Cluster, Running, another_secret, until


def batch(value: bytes) -> bytearray:
    return build_batch([Record(0, 1_700_000_000_000, None, value)])


def head(running: Running, epoch: int = 0, acks: Acks = Acks.ALL) -> AppendHead:
    return AppendHead(running.broker.topics.require("t").topic_id.bytes, 0, epoch, acks)


async def linked(cluster: Cluster, secret: SharedSecret | None = None) -> Link:
    """A link from node 2 to node 1."""
    caller = cluster.nodes[2]
    link = Link(NodeId(1), caller.cluster.nodes, caller.broker.entropy)
    await link.connect(Identity(NodeId(2), caller.epoch, secret or caller.cluster.secret, PLAIN))
    return link


async def ready(cluster: Cluster) -> None:
    await cluster.create("t", (1, 2))
    await until(lambda: cluster.nodes[1].broker.opened("t", 0) is not None)


def two(path: Path) -> Cluster:
    return Cluster(path, 1, 2, replication_factor=2, min_in_sync=1)


async def test_a_batch_is_appended_and_its_offset_told(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        await ready(cluster)
        link = await linked(cluster)
        for offset in range(3):
            parts = encode_peer_request(head(cluster.nodes[1]), batch(b"%d" % offset))
            assert decode_answer(await link.post_peer(PeerApi.APPEND, parts)) == [offset]
        await link.aclose()


async def test_who_has_not_proved_that_it_is_a_node_appends_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        await ready(cluster)
        address = cluster.nodes[1].cluster.nodes.address(1, "peer")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        parts = encode_peer_request(head(cluster.nodes[1]), batch(b"x"))
        writer.writelines(frame_request(RequestHeader(PeerApi.APPEND, 0, 1, None), parts))
        async with asyncio.timeout(10):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
        writer.close()
        assert cluster.nodes[1].broker.partition("t", 0).log.next_offset == 0


async def test_a_node_that_does_not_know_the_secret_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        with pytest.raises(PenstockError) as refused:
            await linked(cluster, await another_secret())
        assert refused.value.reason is Reason.CLUSTER_AUTHORIZATION_FAILED


async def test_another_leader_epoch_is_refused_before_anything_is_appended(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        await ready(cluster)
        link = await linked(cluster)
        parts = encode_peer_request(head(cluster.nodes[1], epoch=7), batch(b"x"))
        answer = decode_answer(await link.post_peer(PeerApi.APPEND, parts))
        assert isinstance(answer, PenstockError)
        assert answer.reason is Reason.UNKNOWN_LEADER_EPOCH
        assert cluster.nodes[1].broker.partition("t", 0).log.next_offset == 0
        await link.aclose()


@pytest.mark.parametrize("damaged", [batch(b"x")[:-1], batch(b"x")[:40], batch(b"x")[:-1] + b"?"])
async def test_a_batch_that_was_damaged_on_its_way_is_refused(tmp_path: Path, damaged: bytearray) -> None:
    async with two(tmp_path) as cluster:
        await ready(cluster)
        link = await linked(cluster)
        once = AppendOnceHead(cluster.nodes[1].broker.topics.require("t").topic_id.bytes, 0, 0, "mark", [0])
        for api, asked in ((PeerApi.APPEND, head(cluster.nodes[1])), (PeerApi.APPEND_ONCE, once)):
            answer = decode_answer(await link.post_peer(api, encode_peer_request(asked, damaged)))
            assert isinstance(answer, PenstockError)
            assert answer.reason is Reason.CORRUPT_RECORDS
        assert cluster.nodes[1].broker.partition("t", 0).log.next_offset == 0
        await link.aclose()


async def test_answers_come_as_they_are_ready_and_beyond_the_bound_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends_module, "UNDER_WAY_MAX", 2)
    async with two(tmp_path) as cluster:
        await ready(cluster)
        leader = cluster.nodes[1]
        held: list[tuple[bytes, object]] = []
        real = leader.cluster.appends.append

        def append(partition: Partition, data: bytearray, acks: Acks, done: object) -> None:
            if b"held" in data:
                held.append((bytes(data), done))
            else:
                real(partition, data, acks, done)  # type: ignore[arg-type]

        monkeypatch.setattr(leader.cluster.appends, "append", append)
        link = await linked(cluster)
        post = lambda value: link.post_peer(PeerApi.APPEND, encode_peer_request(head(leader), batch(value)))  # noqa: E731
        first = post(b"held")
        # Begun behind it, answered before it.
        assert decode_answer(await post(b"quick")) == [0]
        second, third = post(b"held"), post(b"quick")
        await until(lambda: len(held) == 2)
        assert not third.done()
        held[0][1](5)  # type: ignore[operator]
        assert decode_answer(await first) == [5]
        assert decode_answer(await third) == [1]
        held[1][1](6)  # type: ignore[operator]
        assert decode_answer(await second) == [6]
        await link.aclose()


async def test_what_cannot_be_read_ends_the_connection_alone(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        await ready(cluster)
        link = await linked(cluster)
        with pytest.raises(PenstockError) as lost:
            await link.post_peer(PeerApi.APPEND, [b"\xff\xff\xff\xffnonsense"])
        assert lost.value.reason is Reason.LINK_LOST
        again = await linked(cluster)
        parts = encode_peer_request(head(cluster.nodes[1]), batch(b"x"))
        assert decode_answer(await again.post_peer(PeerApi.APPEND, parts)) == [0]
        await again.aclose()
        await link.aclose()
