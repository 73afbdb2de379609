"""The listener: who is let in, what is counted, and a stop that answers what is under way."""

import asyncio
import json
from pathlib import Path

import pytest

from penstock.core.publish import Placed, PublishDone
from penstock.gateways.tcp import gateway
from penstock.settings import LimitSettings, TcpSettings
from penstock.types import Gateway
from tests.support.kafka_wire import until
from tests.support.listeners import plain
from tests.unit.gateways.tcp.pipe import FETCH, LIST, TcpNode, produce


async def test_one_connection_too_many_is_told_so_and_there_is_room_again_when_one_leaves(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, limits=LimitSettings(connections_max=2)) as node:
        first, _ = node.connect(), node.connect()
        third = node.connect()
        assert third.pipe.closed
        assert third.answers == [
            {"ok": False, "error": "Too many connections: 2 are open; close some, then connect again"}
        ]
        third.connection.connection_lost(None)
        assert node.tcp.connection_count == 2
        first.gone()
        fourth = node.connect()
        fourth.send(LIST)
        assert (await fourth.answered(1))[0]["ok"]
        assert node.broker.meters.connections_refused.get((Gateway.TCP.value,)) == 1
        assert node.broker.meters.connections[Gateway.TCP.value]() == 2


async def test_requests_records_and_errors_are_counted(node: TcpNode) -> None:
    meters = node.broker.meters
    client = node.connect()
    client.send(*(produce("v") for _ in range(7)), FETCH, {"type": "fetch"}, produce("v", topic="absent"), b"{")
    await client.answered(11)
    assert meters.latency(Gateway.TCP, "produce").count == 8
    assert meters.latency(Gateway.TCP, "fetch").count == 1
    flow = meters.flow("t", Gateway.TCP)
    assert (flow.records_in, flow.records_out) == (7, 7)
    assert flow.bytes_in > 0
    assert flow.bytes_out > 0
    assert meters.request_errors.get(("tcp", "invalid_field")) == 1
    assert meters.request_errors.get(("tcp", "invalid_json")) == 1
    assert meters.request_errors.get(("tcp", "unknown_topic_or_partition")) == 1


async def test_a_stop_answers_what_was_asked_and_lets_nobody_in(node: TcpNode) -> None:
    listener = plain("tcp")
    address = listener.address
    await node.tcp.start(listener)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(json.dumps(LIST).encode() + b"\n")
    assert json.loads(await reader.readline())["ok"]
    idle_reader, idle_writer = await asyncio.open_connection(address.host, address.port)
    await until(lambda: node.tcp.connection_count == 2)
    await node.tcp.stop(30)
    assert await reader.read() == b""
    assert await idle_reader.read() == b""
    late = node.connect()
    assert late.pipe.closed
    assert late.answers == [{"ok": False, "error": "The broker is stopping; connect again in a moment"}]
    for each in (writer, idle_writer):
        each.close()


async def test_a_stop_does_not_wait_for_a_client_for_ever(node: TcpNode) -> None:
    client = node.connect()
    await node.tcp.stop(0)
    assert client.pipe.aborted


async def test_a_stop_waits_for_answers_that_are_to_be_made_and_not_for_those_that_nobody_takes(
    node: TcpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_TAKE_SECONDS", 0)
    held: list[PublishDone] = []
    monkeypatch.setattr(node.broker.publisher, "publish", lambda *call: held.append(call[-1]))
    idle, client = node.connect(), node.connect()
    client.send(produce("x"))
    stopping = asyncio.ensure_future(node.tcp.stop(30))
    await until(lambda: idle.pipe.aborted)
    assert not client.pipe.closed
    held[0]([Placed(0, 0, 0)])
    assert (await client.answered(1))[0]["ok"]
    client.gone()
    idle.gone()
    await stopping


async def test_the_session_of_a_member_is_the_gateways(tmp_path: Path) -> None:
    async with TcpNode(tmp_path, tcp=TcpSettings(session_timeout_ms=1_000)) as node:
        client = node.connect()
        client.send({"type": "joinGroup", "groupId": "g", "topic": "t", "consumerId": "c"})
        assert (await client.answered(1))[0]["data"] == {"partitions": [0, 1]}
        groups = node.broker.groups
        node.clock.advance(999)
        groups.tick(node.clock.monotonic_ms())
        assert len(groups.list_groups()) == 1
        node.clock.advance(1)
        groups.tick(node.clock.monotonic_ms())
        assert groups.list_groups() == []
