"""What the Kafka gateway counts: the same whether a request goes down a lane or the general way."""

import pytest

from penstock.gateways.kafka.connection import PROTOCOL_VIOLATION
from penstock.meters import Flow
from penstock.types import Gateway
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.heartbeat_generated import HeartbeatRequest
from tests.support.kafka_wire import FETCH, PRODUCE, WireNode, batch, fetch, produce, until

THREE = batch(b"a", b"b", b"c")


def flow(node: WireNode, topic: str = "t") -> Flow:
    return node.broker.meters.flow(topic, Gateway.KAFKA)


def observed(node: WireNode, api: str) -> int:
    return node.broker.meters.latency(Gateway.KAFKA, api).count


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 9, 12])
async def test_records_and_bytes_in_are_counted_on_every_way(wire: WireNode, version: int, acks: int) -> None:
    client = await wire.connect()
    for _ in range(4):
        await client.ask(PRODUCE, produce("t", THREE, acks=acks), version)
    await client.ask(PRODUCE, produce("t", THREE, THREE, acks=acks), version)
    assert (flow(wire).records_in, flow(wire).bytes_in) == (18, 6 * len(THREE))
    assert observed(wire, "Produce") == 5


async def test_records_without_acknowledgement_are_counted_too(wire: WireNode) -> None:
    client = await wire.connect()
    for _ in range(4):
        client.send(PRODUCE, produce("t", THREE, acks=0), 9)
    await until(lambda: flow(wire).records_in == 12)
    assert observed(wire, "Produce") == 0


async def test_a_batch_that_a_producer_sends_again_is_counted_once(wire: WireNode) -> None:
    client = await wire.connect()
    first = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    for _ in range(4):
        await client.ask(PRODUCE, produce("t", first), 9)
    assert (flow(wire).records_in, flow(wire).bytes_in) == (1, len(first))


@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_records_and_bytes_out_are_counted_on_every_way(wire: WireNode, session_epoch: int) -> None:
    client = await wire.connect()
    await client.ask(PRODUCE, produce("t", THREE), 9)
    for _ in range(4):
        await client.ask(FETCH, fetch("t", 0, session_epoch=session_epoch), 11)
    assert (flow(wire).records_out, flow(wire).bytes_out) == (12, 4 * len(THREE))
    assert observed(wire, "Fetch") == 4


async def test_a_fetch_that_waits_counts_what_it_gives_once(wire: WireNode) -> None:
    reader, writer = await wire.connect(), await wire.connect()
    reader.send(FETCH, fetch("t", 0, max_wait_ms=60_000, session_epoch=-1), 11)
    await until(lambda: wire.broker.partition("t", 0)._readers)
    await writer.ask(PRODUCE, produce("t", THREE), 9)
    await reader.answer(FETCH, 11)
    assert flow(wire).records_out == 3


async def test_requests_that_come_together_are_each_observed(wire: WireNode) -> None:
    client = await wire.connect()
    client.send_all([(PRODUCE, produce("t", THREE), 9)] * 20 + [(FETCH, fetch("t", 0, session_epoch=-1), 11)] * 5)
    for _ in range(20):
        await client.answer(PRODUCE, 9)
    for _ in range(5):
        await client.answer(FETCH, 11)
    assert (observed(wire, "Produce"), observed(wire, "Fetch")) == (20, 5)


@pytest.mark.parametrize("learn", [False, True])
async def test_refusals_are_counted_by_their_reason(wire: WireNode, learn: bool) -> None:
    client = await wire.connect()
    if learn:
        await client.ask(PRODUCE, produce("t", THREE), 9)
    damaged = bytearray(THREE)
    damaged[-1] ^= 1
    await client.ask(PRODUCE, produce("t", bytes(damaged)), 9)
    await client.ask(ApiKey.HEARTBEAT, HeartbeatRequest("nobody", 1, "m"), 4)
    errors = wire.broker.meters.request_errors
    assert errors.get(("kafka", "corrupt_records")) == 1
    assert errors.get(("kafka", "unknown_member_id")) == 1


async def test_who_does_not_speak_kafka_is_counted(wire: WireNode) -> None:
    client = await wire.connect()
    client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await client.closed_by_peer()
    assert wire.broker.meters.request_errors.get(("kafka", PROTOCOL_VIOLATION)) == 1


async def test_open_connections_are_told_when_asked(wire: WireNode) -> None:
    count = wire.broker.meters.connections["kafka"]
    clients = [await wire.connect() for _ in range(3)]
    await until(lambda: count() == 3)
    await clients[0].close()
    await until(lambda: count() == 2)


async def test_a_deleted_topics_numbers_are_not_the_new_ones(wire: WireNode) -> None:
    client = await wire.connect()
    for _ in range(3):
        await client.ask(PRODUCE, produce("t", THREE), 9)
    await wire.broker.topics.delete("t")
    await wire.create("t")
    await client.ask(PRODUCE, produce("t", THREE), 9)
    assert flow(wire).records_in == 3
