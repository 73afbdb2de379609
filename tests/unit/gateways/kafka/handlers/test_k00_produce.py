"""Produce, the general way: many topics at once, old versions, and batches that are compressed anew first."""

import asyncio
import threading
from typing import Any

import pytest

from penstock.errors import Reason
from penstock.gateways.kafka.handlers import k00_produce
from penstock.records.batch import Compression, read_header, set_crc
from penstock.records.builder import recompress
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_offsets_generated import ListOffsetsRequest
from penstock.wire.kafka.produce_generated import ProduceRequest
from tests.support.kafka_node import reason_of, versions
from tests.support.kafka_wire import (
    FETCH,
    NOW_MS,
    PRODUCE,
    WireClient,
    WireNode,
    batch,
    fetch,
    fetched,
    opened,
    produce,
    produced,
    until,
    values,
)

KEY = ApiKey.PRODUCE
ONE = batch(b"one")
BY_ID_FROM = 13
CODECS = {
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
    "uncompressed": Compression.NONE,
}


def joined(*requests: ProduceRequest) -> ProduceRequest:
    """One request of many topics."""
    return ProduceRequest(
        acks=requests[0].acks, timeout_ms=30_000, topic_data=[each.topic_data[0] for each in requests]
    )


async def stored(client: WireClient, topic: str, partition: int = 0) -> Any:
    return fetched(await client.ask(FETCH, fetch(topic, 0, partition=partition), 12)).records


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_versions_from_before_record_batches_are_refused_and_the_connection_stays(
    wire: WireNode, version: int
) -> None:
    client = await wire.connect()
    for acks in (1, -1):
        answer = produced(await client.ask(PRODUCE, produce("t", b"old message set", acks=acks), version))
        assert (reason_of(answer.error_code), answer.base_offset) == (Reason.UNSUPPORTED_VERSION, -1)
    assert produced(await client.ask(PRODUCE, produce("t", ONE), 9)).base_offset == 0


@pytest.mark.parametrize("version", [each for each in versions(KEY) if each >= 3])
async def test_each_partition_of_a_request_has_its_own_answer(wire: WireNode, version: int) -> None:
    topic = await wire.create("u", 3)
    gone: Any = bytes(15) + b"x" if version >= BY_ID_FROM else "nobody"
    names: list[Any] = ["t", "u"]
    if version >= BY_ID_FROM:
        names = [wire.broker.topics.require("t").topic_id.bytes, topic.topic_id.bytes]
    client = await wire.connect()
    request = joined(
        produce(names[0], ONE, ONE[:-1], ONE), produce(gone, ONE), produce(names[1], None, batch(b"x", b"y"))
    )
    response = await client.ask(PRODUCE, request, version)
    unknown = Reason.UNKNOWN_TOPIC_ID if version >= BY_ID_FROM else Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert [
        [(each.index, reason_of(each.error_code), each.base_offset) for each in answered.partition_responses]
        for answered in response.responses
    ] == [
        [(0, None, 0), (1, Reason.CORRUPT_RECORDS, -1), (2, Reason.UNKNOWN_TOPIC_OR_PARTITION, -1)],
        [(0, unknown, -1)],
        [(0, Reason.INVALID_RECORD, -1), (1, None, 0)],
    ]
    assert values(await stored(client, "u", 1)) == [b"x", b"y"]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_a_topic_without_a_name_is_unknown(wire: WireNode, version: int) -> None:
    client = await wire.connect()
    answer = produced(await client.ask(PRODUCE, produce("", ONE), version))
    assert reason_of(answer.error_code) is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_that_is_named_twice_gets_both_batches_in_order(wire: WireNode) -> None:
    client = await wire.connect()
    request = joined(produce("t", batch(b"a")), produce("t", batch(b"b")))
    response = await client.ask(PRODUCE, request, 9)
    assert [produced.base_offset for topic in response.responses for produced in topic.partition_responses] == [0, 1]
    assert values(await stored(client, "t")) == [b"a", b"b"]


async def test_a_request_without_topics_is_answered(wire: WireNode) -> None:
    client = await wire.connect()
    for _ in range(2):
        response = await client.ask(PRODUCE, ProduceRequest(acks=-1, timeout_ms=1000), 9)
        assert response.responses == []


async def test_transactions_are_refused_for_every_partition(wire: WireNode) -> None:
    client = await wire.connect()
    request = joined(produce("t", ONE, ONE), produce("nobody", ONE))
    request.transactional_id = "me"
    response = await client.ask(PRODUCE, request, 9)
    codes = {each.error_code for topic in response.responses for each in topic.partition_responses}
    assert {reason_of(code) for code in codes} == {Reason.TRANSACTIONS_NOT_SUPPORTED}
    assert wire.broker.partition("t", 0).log.next_offset == 0


# A topic's own compression.


@pytest.mark.parametrize("name", CODECS)
async def test_a_topic_s_compression_is_that_of_its_batches(wire: WireNode, name: str) -> None:
    await wire.create("packed", compression_type=name)
    client = await wire.connect()
    wanted: list[bytes] = []
    for number, codec in enumerate((*CODECS.values(), CODECS[name])):
        value = b"%d " % number * 200
        data = batch(value, b"x", compression=codec)
        answer = produced(await client.ask(PRODUCE, produce("packed", data, acks=1 - 2 * (number % 2)), 9))
        assert (answer.error_code, answer.base_offset) == (0, 2 * number)
        wanted += [value, b"x"]
    data = bytes(await stored(client, "packed"))
    assert values(data) == wanted
    assert [record.offset for record in opened(data)] == list(range(len(wanted)))
    while data:
        header = read_header(data)
        assert header.compression is CODECS[name]
        data = data[header.size_bytes :]


async def test_what_cannot_be_compressed_anew_is_refused_and_the_rest_is_not(wire: WireNode) -> None:
    await wire.create("packed", 4, compression_type="zstd", max_message_bytes="1000")
    client = await wire.connect()
    broken = bytearray(batch(bytes(2000), compression=Compression.GZIP))
    broken[80] ^= 0xFF
    set_crc(broken)
    bomb = batch(bytes(100_000), compression=Compression.GZIP)
    request = produce("packed", bytes(broken), ONE[:-1], bomb, ONE)
    answers = (await client.ask(PRODUCE, request, 9)).responses[0].partition_responses
    assert [reason_of(each.error_code) for each in answers] == [
        Reason.CORRUPT_RECORDS,
        Reason.CORRUPT_RECORDS,
        Reason.RECORDS_TOO_LARGE,
        None,
    ]
    too_few = produced(await client.ask(PRODUCE, produce("packed", b"abc"), 9))
    assert reason_of(too_few.error_code) is Reason.CORRUPT_RECORDS


async def test_a_batch_that_was_compressed_anew_is_not_checked_once_more(
    wire: WireNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.create("packed", compression_type="zstd")
    checked: list[object] = []
    monkeypatch.setattr("penstock.core.partitions.partition.read_produced", checked.append)
    client = await wire.connect()
    assert produced(await client.ask(PRODUCE, produce("packed", ONE), 9)).base_offset == 0
    assert not checked


async def test_compressing_anew_does_not_change_the_order_of_pipelined_produces(
    wire: WireNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is held in its thread until the loop has nothing else to do."""
    await wire.create("packed", compression_type="gzip")
    gate = threading.Event()

    def slow(*arguments: Any) -> bytearray:
        assert gate.wait(10)
        return recompress(*arguments)

    monkeypatch.setattr(k00_produce, "recompress", slow)
    client, other = await wire.connect(), await wire.connect()
    packed = [batch(b"%d" % number) for number in range(20)]
    # Some need no new compression, and could overtake.
    packed[1::3] = [batch(b"%d" % number, compression=Compression.GZIP) for number in range(1, 20, 3)]
    sent = client.send_all(
        [(PRODUCE, produce("packed", each, acks=(-1, 0, 1)[number % 3]), 9) for number, each in enumerate(packed)]
        + [(PRODUCE, produce("t", ONE), 9), (ApiKey.LIST_OFFSETS, ListOffsetsRequest(), 6)]
    )
    # Nobody else has to wait for that one.
    assert produced(await other.ask(PRODUCE, produce("t", ONE), 9)).base_offset == 0
    assert wire.broker.partition("packed", 0).log.next_offset == 0
    gate.set()
    for number in range(20):
        if number % 3 != 1:
            correlation_id, response = await client.answer(PRODUCE, 9)
            assert (correlation_id, produced(response).base_offset) == (sent[number], number)
    assert (await client.answer(PRODUCE, 9))[0] == sent[20]
    assert (await client.answer(ApiKey.LIST_OFFSETS, 6))[0] == sent[21]
    assert values(await stored(client, "packed")) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("event", ["deleted", "gone"])
async def test_a_topic_or_a_client_may_go_while_batches_are_compressed(
    wire: WireNode, monkeypatch: pytest.MonkeyPatch, event: str, caplog
) -> None:
    await wire.create("packed", 3, compression_type="gzip")
    gate, began = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> bytearray:
        began.set()
        assert gate.wait(10)
        return recompress(*arguments)

    monkeypatch.setattr(k00_produce, "recompress", slow)
    client, other = await wire.connect(), await wire.connect()
    partition = wire.broker.partition("packed", 0)
    client.send(PRODUCE, produce("packed", ONE, ONE, ONE), 9)
    await until(began.is_set)
    if event == "deleted":
        await wire.broker.topics.delete("packed")
        gate.set()
        answers = (await client.answer(PRODUCE, 9))[1].responses[0].partition_responses
        assert {reason_of(each.error_code) for each in answers} == {Reason.UNKNOWN_TOPIC_OR_PARTITION}
    else:
        client.writer.transport.abort()
        gate.set()
        await until(lambda: len(wire.connections()) == 1)
    assert partition.gone == (event == "deleted")
    assert produced(await other.ask(PRODUCE, produce("t", ONE), 9)).base_offset == 0
    assert "Traceback" not in caplog.text


async def test_a_reset_while_batches_are_compressed_leaves_nothing_unfinished(
    wire: WireNode, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    await wire.create("packed", 3, compression_type="gzip")
    gate, began = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> bytearray:
        began.set()
        assert gate.wait(10)
        return recompress(*arguments)

    monkeypatch.setattr(k00_produce, "recompress", slow)
    client = await wire.connect()
    client.send(PRODUCE, produce("packed", ONE, ONE, ONE), 9)
    await until(began.is_set)
    [ours] = wire.connections()
    ours.abort()
    await until(lambda: not wire.connections())
    gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert "Traceback" not in caplog.text
    assert "never awaited" not in caplog.text


async def test_time_of_append_and_compression_go_together(wire: WireNode) -> None:
    await wire.create("both", compression_type="lz4", message_timestamp_type="LogAppendTime")
    client = await wire.connect()
    wire.clock.advance(5000)
    answer = produced(await client.ask(PRODUCE, produce("both", batch(b"a", b"b", timestamp_ms=7)), 9))
    assert answer.log_append_time_ms == NOW_MS + 5000
    data = bytes(await stored(client, "both"))
    assert [record.timestamp for record in opened(data)] == [NOW_MS + 5000] * 2
    assert read_header(data).compression is Compression.LZ4


async def test_a_repeat_of_a_batch_that_was_compressed_anew_gets_its_first_offset(wire: WireNode) -> None:
    await wire.create("packed", compression_type="zstd")
    client = await wire.connect()
    numbered = [batch(b"v", producer_id=3, producer_epoch=0, base_sequence=number) for number in range(3)]
    for _ in range(2):
        for number, data in enumerate(numbered):
            assert produced(await client.ask(PRODUCE, produce("packed", data), 9)).base_offset == number
    assert wire.broker.partition("packed", 0).log.next_offset == 3
