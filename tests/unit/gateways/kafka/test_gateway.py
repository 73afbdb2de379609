"""The listener: who is let in, what is served, and a stop that answers what is under way."""

import asyncio
import struct
from pathlib import Path

import pytest

from penstock.core.dynamic_configs import ALL_BROKERS
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.errors import Reason
from penstock.gateways.kafka.handlers import HANDLERS
from penstock.settings import GroupSettings, LimitSettings
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.join_group_generated import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.kafka.list_offsets_generated import ListOffsetsRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest
from tests.support.kafka_node import reason_of
from tests.support.kafka_wire import (
    FETCH,
    METADATA,
    PRODUCE,
    WireNode,
    batch,
    encode,
    fetch,
    fetched,
    produce,
    produced,
    until,
    values,
)

ONE = batch(b"one")


async def test_no_more_connections_than_allowed_and_room_again_when_one_leaves(tmp_path: Path, caplog) -> None:
    async with WireNode(tmp_path, limits=LimitSettings(connections_max=2)) as node:
        first, second = await node.connect(), await node.connect()
        for client in (first, second):
            await client.ask(METADATA, MetadataRequest(), 1)
        third = await node.connect()
        assert await third.closed_by_peer()
        assert "limits.connections_max" in caplog.text
        assert node.gateway.connection_count == 2
        await first.close()
        await until(lambda: node.gateway.connection_count == 1)
        fourth = await node.connect()
        assert (await fourth.ask(METADATA, MetadataRequest(), 1)).brokers
        assert (await second.ask(METADATA, MetadataRequest(), 1)).brokers


async def test_another_number_of_connections_is_set_while_the_broker_runs(tmp_path: Path, caplog) -> None:
    async with WireNode(tmp_path, limits=LimitSettings(connections_max=5)) as node:
        await node.broker.configs.alter(ALL_BROKERS, [ConfigChange("max.connections", ChangeKind.SET, "1")])
        first = await node.connect()
        await first.ask(METADATA, MetadataRequest(), 1)
        second = await node.connect()
        assert await second.closed_by_peer()
        assert "(max.connections)" in caplog.text
        await node.broker.configs.alter(ALL_BROKERS, [ConfigChange("max.connections", ChangeKind.DELETE)])
        third = await node.connect()
        assert (await third.ask(METADATA, MetadataRequest(), 1)).brokers


async def test_what_is_not_in_the_table_is_not_served(wire: WireNode) -> None:
    """Every API key that there is or may be, and every version beside those that are listed."""
    asked = [(key, 0) for key in range(-1, 120) if key not in HANDLERS]
    for key in HANDLERS:
        if key != ApiKey.API_VERSIONS:
            asked += [(key, API[key].max_version + 1), (key, -1)]
            if API[key].min_version:
                asked.append((key, API[key].min_version - 1))
    for key, version in asked:
        client = await wire.connect()
        client.writer.write(struct.pack(">ihhih", 100, key, version, 1, -1) + bytes(90))
        assert await client.closed_by_peer(), (key, version)
        await client.close()


async def test_a_stop_answers_what_is_under_way_and_nothing_that_is_not_begun(tmp_path: Path) -> None:
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        idle, waiting, writing = await node.connect(), await node.connect(), await node.connect()
        await waiting.ask(PRODUCE, produce("t", ONE), 9)
        first = waiting.send(FETCH, fetch("t", 1, max_wait_ms=100_000, min_bytes=10), 12)
        waiting.send(PRODUCE, produce("t", ONE, partition=1), 9)
        await until(lambda: node.broker.partition("t", 0)._readers)
        # Came in this very turn: appended, and neither written nor answered.
        writer = next(
            each for each in node.connections() if each._transport.get_extra_info("peername")[1] == port(writing)
        )
        frame = encode(PRODUCE, produce("t", batch(b"last")), 9, 7)
        writer.get_buffer(-1)[: len(frame)] = frame
        writer.buffer_updated(len(frame))
        await node.gateway.stop(5.0)
        assert node.gateway.connection_count == 0
        correlation_id, response = await writing.answer(PRODUCE, 9)
        assert (correlation_id, produced(response).base_offset) == (7, 1)
        correlation_id, response = await waiting.answer(FETCH, 12)
        assert (correlation_id, fetched(response).error_code) == (first, 0)
        for client in (idle, waiting, writing):
            assert await client.closed_by_peer()
        assert node.broker.partition("t", 1).log.next_offset == 0
        assert not node.broker.partition("t", 0)._readers
        with pytest.raises(ConnectionError):
            await node.connect()


def port(client) -> int:
    return client.writer.get_extra_info("sockname")[1]


async def test_a_stop_tells_members_that_wait_for_others_to_look_elsewhere(tmp_path: Path) -> None:
    patient = GroupSettings(offsets_topic_partitions=1, initial_rebalance_delay_ms=60_000)
    async with WireNode(tmp_path, groups=patient) as node:
        client = await node.connect()
        protocols = [JoinGroupRequestProtocol("range", b"")]
        request = JoinGroupRequest("g", 30_000, 30_000, protocol_type="consumer", protocols=protocols)
        sent = client.send(ApiKey.JOIN_GROUP, request, 3)
        # The group waits for more members before it begins.
        await until(lambda: any(each._waiting for each in node.connections()))
        await node.gateway.stop(2.0)
        correlation_id, response = await client.answer(ApiKey.JOIN_GROUP, 3)
        assert (correlation_id, reason_of(response.error_code)) == (sent, Reason.COORDINATOR_NOT_AVAILABLE)
        assert await client.closed_by_peer()


async def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with WireNode(tmp_path) as node:
        asked: list[object] = []

        async def never(request: object, context: object) -> None:
            asked.append(request)
            await asyncio.get_running_loop().create_future()

        node.gateway.served[int(ApiKey.LIST_OFFSETS)].handle = never
        client = await node.connect()
        client.send(ApiKey.LIST_OFFSETS, ListOffsetsRequest(), 6)
        await until(lambda: asked)
        await node.gateway.stop(0.01)
        assert await client.closed_by_peer()
        await until(lambda: node.gateway.connection_count == 0)


async def test_many_clients_come_and_go_and_leave_nothing(wire: WireNode) -> None:
    """Some say nothing, some half a frame, some a whole one; some wait for the answer."""
    for _ in range(20):
        clients = await asyncio.gather(*(wire.connect() for _ in range(25)))
        for number, client in enumerate(clients):
            frame = encode(PRODUCE, produce("t", ONE, partition=number % 2), 9, number)
            client.writer.write(frame[: (0, 3, 20, len(frame))[number % 4]])
        for client in clients[3::8]:
            await client.receive()
        for client in clients:
            await client.close()
    await until(lambda: wire.gateway.connection_count == 0)
    client = await wire.connect()
    whole = sum(wire.broker.partition("t", index).log.next_offset for index in (0, 1))
    assert whole == 20 * 6
    assert len(values(fetched(await client.ask(FETCH, fetch("t", 0, partition=1), 12)).records)) == 20 * 6
