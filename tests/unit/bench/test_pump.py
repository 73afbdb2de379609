"""Counters and pumps against responses made by hand and a real socket that answers."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.bench import kafka
from penstock.bench.delivery import KafkaStamper, KafkaTap
from penstock.bench.faults import BenchError
from penstock.bench.lanes import FetchCounter, FetchSource, ProduceCounter
from penstock.bench.pump import Lane, Pump, RingSource, TokenCounter, ring_length
from penstock.records.batch import crc_matches
from penstock.wire.kafka.primitives import uvarint

TOPIC = "bench-topic"
VERSION = 9
LAYOUT = kafka.produce_layout(VERSION, TOPIC)
BATCH = kafka.batch_of([b"v" * 100])


def produce_answer(correlation_id: int, error: int = 0) -> bytes:
    answer = bytearray(LAYOUT.frame_bytes)
    struct.pack_into(">ii", answer, 0, LAYOUT.frame_bytes - 4, correlation_id)
    struct.pack_into(">h", answer, LAYOUT.error_at, error)
    return bytes(answer)


def feed_in_pieces(counter, data: bytes, piece_bytes: int) -> int:
    view = memoryview(data)
    return sum(counter.feed(view[at : at + piece_bytes]) for at in range(0, len(data), piece_bytes))


@pytest.mark.parametrize(
    "piece_bytes", [1, 7, LAYOUT.frame_bytes - 1, LAYOUT.frame_bytes, LAYOUT.frame_bytes + 1, 10_000]
)
def test_produce_answers_are_counted_however_they_are_cut(piece_bytes) -> None:
    data = b"".join(produce_answer(index % 4) for index in range(50))
    assert feed_in_pieces(ProduceCounter(LAYOUT, 4), data, piece_bytes) == 50


@pytest.mark.parametrize("position", [0, 1, 4])
@pytest.mark.parametrize("piece_bytes", [5, LAYOUT.frame_bytes, 10_000])
@pytest.mark.parametrize("error", [56, -1, 256])
def test_one_refused_produce_among_many_ends_the_measurement(position, piece_bytes, error) -> None:
    data = b"".join(produce_answer(index, error if index == position else 0) for index in range(5))
    with pytest.raises(BenchError, match=f"error code {error}"):
        feed_in_pieces(ProduceCounter(LAYOUT, 5), data, piece_bytes)


def test_an_answer_out_of_order_ends_the_measurement() -> None:
    data = produce_answer(1) + produce_answer(0)
    with pytest.raises(BenchError, match="out of step"):
        ProduceCounter(LAYOUT, 2).feed(memoryview(data))


def test_an_answer_of_another_length_ends_the_measurement() -> None:
    longer = produce_answer(0) + b"text"
    longer = (len(longer) - 4).to_bytes(4, "big") + longer[4:]
    with pytest.raises(BenchError, match="out of step"):
        ProduceCounter(LAYOUT, 2).feed(memoryview(longer))


FETCH_LAYOUT = kafka.fetch_layout(12, TOPIC)


def fetch_answer(records: bytes, error: int = 0) -> bytes:
    head = bytearray(FETCH_LAYOUT.records_length_at)
    struct.pack_into(">h", head, FETCH_LAYOUT.errors_at[1], error)
    body = bytes(head) + uvarint(len(records) + 1) + records + bytes(3)
    return (len(body) - 4).to_bytes(4, "big") + body[4:]


@pytest.mark.parametrize("piece_bytes", [1, 64, 1000, 100_000])
def test_fetch_answers_are_counted_with_their_bytes(piece_bytes) -> None:
    counter = FetchCounter(FETCH_LAYOUT)
    data = b"".join(fetch_answer(BATCH * count) for count in (1, 3, 200))
    assert feed_in_pieces(counter, data, piece_bytes) == 3
    assert counter.bytes_received == 204 * len(BATCH)


def test_a_refused_or_empty_fetch_ends_the_measurement() -> None:
    with pytest.raises(BenchError, match="error code 6"):
        FetchCounter(FETCH_LAYOUT).feed(memoryview(fetch_answer(BATCH, error=6)))
    with pytest.raises(BenchError, match="no records"):
        FetchCounter(FETCH_LAYOUT).feed(memoryview(fetch_answer(b"") + bytes(10)))


def test_a_group_counts_when_its_last_answer_is_there() -> None:
    counter = TokenCounter(b'"offset":', size=3)
    line = b'{"offset":1}\n'
    assert [counter.feed(memoryview(line * times)) for times in (2, 1, 7, 1, 1)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000])
def test_lines_are_counted_by_their_token(piece_bytes) -> None:
    data = b"$15\r\n1700000000000-0\r\n" * 20
    assert feed_in_pieces(TokenCounter(b"-", (b"\n-",)), data, piece_bytes) == 20


@pytest.mark.parametrize("data", [b"-ERR no\r\n", b"$3\r\n1-0\r\n-ERR no\r\n"])
def test_an_error_line_ends_the_measurement(data) -> None:
    with pytest.raises(BenchError, match="ERR no"):
        TokenCounter(b"-", (b"\n-",)).feed(memoryview(data))


def test_a_ring_gives_its_frames_in_order_and_begins_again() -> None:
    ring = RingSource([b"aa", b"bb", b"cc"])
    assert [(bytes(view), count) for view, count in (ring.take(n) for n in (2, 2, 5))] == [
        (b"aabb", 2),
        (b"cc", 1),
        (b"aabbcc", 3),
    ]
    with pytest.raises(ValueError, match="one length"):
        RingSource([b"a", b"bb"])


def test_large_frames_share_one_place_in_the_ring() -> None:
    assert ring_length(200, 16) == 16
    assert ring_length(1 << 20, 16) == 1
    assert ring_length(3 << 20, 16) == 1


def test_a_fetch_source_walks_the_batches_and_begins_again() -> None:
    request = kafka.fetch_request(12, TOPIC, 0, bytes_max=100, wait_ms_max=1)
    source = FetchSource(request, records_per_batch=10, batches=3, first_batch=1)
    at = request.offset_at
    offsets = [int.from_bytes(source.take(1)[0][at : at + 8], "big") for _ in range(5)]
    assert offsets == [10, 20, 0, 10, 20]


@contextmanager
def answering(count: int) -> Iterator[tuple[list[socket.socket], list[int]]]:
    """Connections to a thread that answers every produce frame, and how many frames each got."""
    pairs = [socket.socketpair() for _ in range(count)]
    seen = [0] * count

    def serve(index: int, sock: socket.socket) -> None:
        stream = sock.makefile("rwb")
        while head := stream.read(4):
            body = stream.read(int.from_bytes(head, "big"))
            seen[index] += 1
            stream.write(produce_answer(int.from_bytes(body[4:8], "big")))
            stream.flush()
        stream.close()
        sock.close()

    threads = [threading.Thread(target=serve, args=(index, pair[1])) for index, pair in enumerate(pairs)]
    for thread in threads:
        thread.start()
    try:
        yield [pair[0] for pair in pairs], seen
    finally:
        for pair in pairs:
            pair[0].close()
        for thread in threads:
            thread.join()


def request(correlation_id: int, batch: bytearray = BATCH) -> bytes:
    return kafka.produce_request(VERSION, correlation_id, TOPIC, 0, "all", batch)


@pytest.mark.parametrize(
    "batch", [BATCH, kafka.batch_of([b"v" * 1000] * 700)], ids=["small", "beyond the socket's buffer"]
)
def test_a_pump_sends_no_more_than_it_may_and_counts_every_answer(batch) -> None:
    with answering(3) as (socks, seen):
        lanes = [
            Lane(sock, RingSource([request(i, batch) for i in range(4)]), ProduceCounter(LAYOUT, 4), 4)
            for sock in socks
        ]
        with Pump(lanes) as pump:
            first = pump.run(60, 10)
            second = pump.run(60, 31)
            assert pump.drain() == 0
    assert (first.answers, second.answers) == (10, 31)
    assert first.latency_ns.count == 10
    assert sum(seen) == 41


def test_a_pump_that_ran_out_of_time_drains_what_is_under_way() -> None:
    with answering(2) as (socks, seen):
        lanes = [Lane(sock, RingSource([request(i) for i in range(8)]), ProduceCounter(LAYOUT, 8), 8) for sock in socks]
        with Pump(lanes) as pump:
            sample = pump.run(0, 1000)
            rest = pump.drain()
    assert sample.answers + rest == sum(seen) == 16


def test_a_pump_keeps_one_request_in_flight_on_each_connection_by_default() -> None:
    def lanes(socks: list[socket.socket]) -> list[Lane]:
        return [Lane(sock, RingSource([request(0)]), ProduceCounter(LAYOUT)) for sock in socks]

    with answering(3) as (socks, seen), Pump(lanes(socks)) as pump:
        first = pump.run(60, 2)
        second = pump.run(60, 40)
        assert pump.drain() == 0
    assert (first.answers, second.answers) == (2, 40)
    assert second.latency_ns.count == 40
    assert sum(seen) == 42


def test_a_short_measurement_goes_on_until_the_first_answer() -> None:
    with answering(1) as ((sock,), _), Pump([Lane(sock, RingSource([request(0)]), ProduceCounter(LAYOUT))]) as pump:
        # A nanosecond is over before anybody can have answered.
        sample = pump.run(1e-9, 1000)
        pump.drain()
    assert sample.answers >= 1


def test_a_closed_connection_ends_the_measurement() -> None:
    near, far = socket.socketpair()
    with far, Pump([Lane(near, RingSource([request(0)]), ProduceCounter(LAYOUT))]) as pump:
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(BenchError, match="closed a connection"):
            pump.run(60, 10)


def test_more_responses_than_requests_end_the_measurement() -> None:
    near, far = socket.socketpair()
    with far, Pump([Lane(near, RingSource([request(0)]), ProduceCounter(LAYOUT))]) as pump:
        far.sendall(produce_answer(0) * 2)
        with pytest.raises(BenchError, match="more responses"):
            pump.run(60, 10)


def test_a_stamp_travels_through_a_valid_batch_to_the_consumer() -> None:
    stamper = KafkaStamper(VERSION, TOPIC, "1", 100)
    stored = b""
    for offset, stamp in enumerate((111, 222)):
        frame = bytes(stamper.frame(stamp))
        # A lone @ may also be a byte of the checksum or of the time.
        at = frame.index(b"@000") - (len(BATCH) - 101)
        batch = frame[at : at + len(BATCH)]
        assert crc_matches(batch)
        stored += offset.to_bytes(8, "big") + batch[8:]
    near, far = socket.socketpair()
    request = kafka.fetch_request(12, TOPIC, 0, bytes_max=1, wait_ms_max=1)
    with near, far:
        tap = KafkaTap(near, request, FETCH_LAYOUT)
        asked = far.recv(1 << 16)
        answer = fetch_answer(stored)
        assert tap.feed(memoryview(answer[:50])) == []
        assert tap.feed(memoryview(answer[50:])) == [111, 222]
        asked_again = far.recv(1 << 16)
    at = request.offset_at
    assert int.from_bytes(asked[at : at + 8], "big") == 0
    assert int.from_bytes(asked_again[at : at + 8], "big") == 2
