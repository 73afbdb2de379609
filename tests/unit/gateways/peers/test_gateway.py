"""The peer listener among strangers: they have little room and little time, and no node is kept out by them."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.links import Identity, Link
from penstock.gateways.peers import connection as connection_module
from penstock.gateways.peers.gateway import STRANGERS_MAX
from penstock.transport.peer_tls import PLAIN
from penstock.types import NodeId
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import RequestHeader, frame_request
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic
from tests.support.cluster_nodes import Cluster, until
from tests.support.listeners import arrival

SECONDS_MAX = 20.0


def two(path: Path) -> Cluster:
    return Cluster(path, 1, 2, replication_factor=2, min_in_sync=1)


async def stranger(cluster: Cluster) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Somebody who connects to node 1 and says nothing."""
    address = cluster.nodes[1].cluster.nodes.address(1, "peer")
    return await asyncio.open_connection(address.host, address.port)


async def is_cut(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(SECONDS_MAX):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


async def linked(cluster: Cluster) -> Link:
    """A link from node 2 to node 1."""
    caller = cluster.nodes[2]
    link = Link(NodeId(1), caller.cluster.nodes, caller.broker.entropy)
    await link.connect(Identity(NodeId(2), caller.epoch, caller.cluster.secret, PLAIN))
    return link


async def test_a_node_gets_in_however_many_strangers_there_are_and_the_oldest_of_them_make_place(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as cluster:
        strangers = [await stranger(cluster) for _ in range(STRANGERS_MAX + 3)]
        async with asyncio.timeout(SECONDS_MAX):
            link = await linked(cluster)
        assert link.is_connected
        for reader, _ in strangers[:4]:
            assert await is_cut(reader)
        peers = cluster.nodes[1].node.peers
        await until(lambda: len(peers._strangers) == STRANGERS_MAX - 1)
        assert not strangers[-1][0].at_eof()
        for _, writer in strangers:
            writer.close()
        await link.aclose()


async def test_strangers_never_cut_off_a_node(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        link = await linked(cluster)
        strangers = [await stranger(cluster) for _ in range(2 * STRANGERS_MAX)]
        assert await is_cut(strangers[0][0])
        assert link.is_connected
        for _, writer in strangers:
            writer.close()
        await link.aclose()


async def test_who_does_not_prove_itself_in_time_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_SECONDS", 0.05)
    async with two(tmp_path) as cluster:
        reader, writer = await stranger(cluster)
        assert await is_cut(reader)
        writer.close()


async def test_what_a_stranger_asks_is_not_even_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(tmp_path) as cluster:
        reader, writer = await stranger(cluster)
        read: list[ApiKey] = []
        decode = Api.decode_request

        def noted(api: Api, *asked: Any) -> Any:
            read.append(api.key)
            return decode(api, *asked)

        monkeypatch.setattr(Api, "decode_request", noted)
        asked = API[ApiKey.METADATA].encode_request(MetadataRequest([MetadataRequestTopic(name="t")]), 12)
        writer.writelines(frame_request(RequestHeader(int(ApiKey.METADATA), 12, 1, None), asked))
        assert await is_cut(reader)
        assert ApiKey.METADATA not in read
        assert "clients must connect to the kafka listener" in caplog.text
        writer.close()


async def test_who_is_taken_while_the_listener_closes_is_not_waited_for(tmp_path: Path) -> None:
    async with two(tmp_path) as cluster:
        peers = cluster.nodes[1].node.peers
        await peers.stop()
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        # As when it was accepted before the stop, and is told of only behind it.
        await loop.create_connection(lambda: connection_module.PeerConnection(peers, arrival("peer")), sock=ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        assert await is_cut(reader)
        async with asyncio.timeout(SECONDS_MAX):
            await peers.stop()
        writer.close()
