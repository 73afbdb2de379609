"""Order over real sockets: whatever is pipelined, and however many share a partition."""

import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_offsets_generated import ListOffsetsRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest
from tests.integration.kafka.conftest import make_topic
from tests.support.kafka_wire import (
    FETCH,
    METADATA,
    PRODUCE,
    RawClient,
    batch,
    create,
    encode,
    fetch,
    fetched,
    opened,
    produce,
    produced,
    values,
)

ONE = batch(b"one")


def read_all(client: RawClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """All values of a partition, fetch by fetch."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        answer = fetched(client.ask(FETCH, fetch(topic, offset, partition=partition), 12))
        records = opened(answer.records)
        found += [record.value for record in records]
        offset += len(records)
        if offset == answer.high_watermark:
            return found


@pytest.mark.parametrize("flush", ["os", "sync"])
def test_a_long_pipeline_of_everything_is_answered_in_order(penstock_broker_factory, flush: str) -> None:
    broker = penstock_broker_factory({"log.flush": flush})
    topic = make_topic(broker.bootstrap, 2)
    with RawClient(broker.bootstrap) as client:
        requests = []
        for number in range(400):
            kind = number % 8
            if kind < 5:
                acks = (-1, 1, 0, -1, 1)[kind]
                version = (9, 9, 9, 5, 12)[kind]
                requests.append((PRODUCE, produce(topic, batch(b"%d" % number), acks=acks), version))
            else:
                requests.append(
                    (
                        (METADATA, MetadataRequest(), 12),
                        (FETCH, fetch(topic, 0, partition=1, max_wait_ms=number % 3), 12),
                        (ApiKey.LIST_OFFSETS, ListOffsetsRequest(), 7),
                    )[kind - 5]
                )
        requests.insert(200, (ApiKey.CREATE_TOPICS, create(f"{topic}-more"), 7))
        frames = [encode(key, request, version, n) for n, (key, request, version) in enumerate(requests)]
        sender = threading.Thread(target=client.socket.sendall, args=(b"".join(frames),))
        sender.start()
        offset = 0
        for n, (key, request, version) in enumerate(requests):
            if key != PRODUCE:
                assert client.answer(key, version)[0] == n
                continue
            if request.acks:
                correlation_id, response = client.answer(key, version)
                assert (correlation_id, produced(response).base_offset) == (n, offset)
            offset += 1
        sender.join()
        written = [request.topic_data[0].partition_data[0].records for key, request, _ in requests if key == PRODUCE]
        assert read_all(client, topic) == [values(records)[0] for records in written]


def test_producers_on_one_partition_get_every_offset_once_and_keep_their_own_order(penstock_broker, topic) -> None:
    results: dict[int, list[int]] = {}

    def run(number: int) -> None:
        with RawClient(penstock_broker.bootstrap) as client:
            count = 100
            client.socket.sendall(
                b"".join(
                    encode(PRODUCE, produce(topic, batch(b"%d %d" % (number, n)), acks=(-1, 1)[n % 2]), 9, n)
                    for n in range(count)
                )
            )
            results[number] = [produced(client.answer(PRODUCE, 9)[1]).base_offset for _ in range(count)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(offsets == sorted(offsets) for offsets in results.values())
    assert sorted(offset for offsets in results.values() for offset in offsets) == list(range(800))
    with RawClient(penstock_broker.bootstrap) as client:
        stored = read_all(client, topic)
    for number, offsets in results.items():
        assert [stored[offset] for offset in offsets] == [b"%d %d" % (number, n) for n in range(100)]


def test_large_and_small_batches_do_not_overtake_each_other(connect, topic) -> None:
    client = connect()
    sizes = [10, 900_000, 10, 10, 200_000, 70_000, 60_000, 10, 900_000, 10]
    frames = [encode(PRODUCE, produce(topic, batch(bytes([n]) * size)), 9, n) for n, size in enumerate(sizes)]
    sender = threading.Thread(target=client.socket.sendall, args=(b"".join(frames),))
    sender.start()
    assert [produced(client.answer(PRODUCE, 9)[1]).base_offset for _ in sizes] == list(range(len(sizes)))
    sender.join()
    assert read_all(client, topic) == [bytes([n]) * size for n, size in enumerate(sizes)]


def test_a_half_closed_client_gets_its_answers(connect, topic) -> None:
    client, other = connect(), connect()
    client.send(PRODUCE, produce(topic, ONE, acks=-1), 9)
    client.send(FETCH, fetch(topic, 0, partition=1, max_wait_ms=20_000), 12)
    client.send(PRODUCE, produce(topic, ONE, acks=0), 9)
    client.send(METADATA, MetadataRequest(), 12)
    client.socket.shutdown(socket.SHUT_WR)
    assert produced(client.answer(PRODUCE, 9)[1]).base_offset == 0
    assert produced(other.ask(PRODUCE, produce(topic, ONE, partition=1), 9)).base_offset == 0
    assert values(fetched(client.answer(FETCH, 12)[1]).records) == [b"one"]
    assert client.answer(METADATA, 12)[1].brokers
    assert client.closed_by_peer()
    assert read_all(other, topic) == [b"one"] * 2


def test_a_half_closed_client_that_wants_no_answer_is_let_go(connect, penstock_broker) -> None:
    packed = make_topic(penstock_broker.bootstrap, compression_type="zstd")
    client = connect()
    for _ in range(3):
        client.send(PRODUCE, produce(packed, ONE, acks=0), 9)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.closed_by_peer()
    assert read_all(connect(), packed) == [b"one"] * 3


def test_without_acknowledgement_a_refusal_closes(connect, topic) -> None:
    client = connect()
    for _ in range(3):
        client.send(PRODUCE, produce(topic, ONE, acks=0), 9)
    client.send(PRODUCE, produce(topic, ONE[:-1], acks=0), 9)
    assert client.closed_by_peer()
    assert read_all(connect(), topic) == [b"one"] * 3


def test_frames_in_small_pieces_are_whole_requests(connect, topic) -> None:
    client = connect()
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = b"".join(encode(PRODUCE, produce(topic, batch(b"%d" % n)), 9, n) for n in range(5))
    for n in range(0, len(stream), 7):
        client.socket.sendall(stream[n : n + 7])
    assert [produced(client.answer(PRODUCE, 9)[1]).base_offset for _ in range(5)] == [0, 1, 2, 3, 4]


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 300_000), min_size=1, max_size=10),
)
def test_any_mix_cut_anywhere_is_answered_in_order(penstock_broker, kinds: list[int], cuts: list[int]) -> None:
    topic = make_topic(penstock_broker.bootstrap, 2)
    choices = [
        (PRODUCE, produce(topic, ONE), 9),
        (PRODUCE, produce(topic, ONE, acks=1), 7),
        (PRODUCE, produce(topic, ONE, acks=0), 9),
        (PRODUCE, produce(topic, batch(bytes(100_000)), acks=1), 9),
        (PRODUCE, produce(topic, ONE, ONE), 9),
        (PRODUCE, produce(topic, ONE[:-1]), 9),
        (FETCH, fetch(topic, 0), 12),
        (FETCH, fetch(topic, 0, partition=1, max_wait_ms=3, min_bytes=1000), 4),
        (METADATA, MetadataRequest(), 12),
        (ApiKey.LIST_OFFSETS, ListOffsetsRequest(), 7),
    ]
    requests = [choices[kind] for kind in kinds]
    stream = b"".join(encode(key, request, version, n) for n, (key, request, version) in enumerate(requests))
    with RawClient(penstock_broker.bootstrap) as client:

        def send() -> None:
            at = turn = 0
            while at < len(stream):
                cut = cuts[turn % len(cuts)]
                client.socket.sendall(stream[at : at + cut])
                at, turn = at + cut, turn + 1

        sender = threading.Thread(target=send)
        sender.start()
        for n, (key, request, version) in enumerate(requests):
            if getattr(request, "acks", 1):
                assert client.answer(key, version)[0] == n
        sender.join()
        client.ask(METADATA, MetadataRequest(), 12)
        written = sum((0, 1, 2, 3, 4).count(kind) for kind in kinds)
        assert len(read_all(client, topic)) == written


def test_correlation_ids_come_back_as_they_are(connect, topic) -> None:
    client = connect()
    for correlation_id in (0, -1, 2**31 - 1, -(2**31)):
        for version in (8, 9):
            client.socket.sendall(encode(PRODUCE, produce(topic, ONE), version, correlation_id))
            assert struct.unpack(">i", client.receive()[:4])[0] == correlation_id
