"""Stamps go out in a request and are found again in whatever a consumer receives."""

import socket

import pytest

from penstock.address import Address
from penstock.bench.delivery import TextStamper, TextTap, blank_value
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http2
from penstock.bench.gateways.deliver import AckingTap, CallCounter, CallStamper, SubscriptionTap
from penstock.bench.gateways.http2 import Http2Client, enveloped
from penstock.bench.gateways.queue import AckMaker
from penstock.wire.mq import mq_generated as mq

HERE = Address("127.0.0.1", 1)
STAMPS = [1, 12_345_678_901_234_567_890, 7]


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        yield ours, theirs


def stamped(stamp: int, value_bytes: int = 100) -> bytes:
    return bytes(TextStamper(b'{"value":"' + blank_value(value_bytes) + b'"}').frame(stamp))


def test_a_value_has_the_wanted_length_and_room_for_a_stamp() -> None:
    assert len(blank_value(100)) == 100
    assert len(stamped(5)) == len(stamped(10**19))
    assert len(blank_value(1)) == 22


@pytest.mark.parametrize("piece", [1, 21, 22, 23, 10_000])
def test_every_stamp_is_found_once_however_the_answer_is_cut(piece) -> None:
    data = b"noise @12@ ".join(stamped(stamp) + b"\n" for stamp in STAMPS)
    tap = TextTap()
    found = []
    for at in range(0, len(data), piece):
        found += tap.feed(memoryview(data)[at : at + piece])
    assert found == STAMPS


def test_a_worker_s_tap_acks_what_it_found(pair) -> None:
    ours, theirs = pair
    tap = AckingTap(AckMaker(HERE, "t", "tap"), ours)
    lines = b"".join(b'5\r\n{"partition":0,"offset":%d,"value":"' % n + stamped(n) + b'"}\n\r\n' for n in (4, 5))
    assert tap.feed(memoryview(lines[:30])) == []
    assert tap.feed(memoryview(lines[30:])) == [4, 5]
    acks = theirs.recv(1 << 16)
    assert acks.count(b"POST /v1/ack") == 2
    assert b'"partition":0,"offset":4}' in acks
    assert b'"partition":0,"offset":5}' in acks


def test_a_worker_s_tap_notices_a_refused_ack(pair) -> None:
    ours, theirs = pair
    tap = AckingTap(AckMaker(HERE, "t", "tap"), ours)
    theirs.sendall(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(BenchError, match="409"):
        tap.feed(memoryview(b'{"partition":0,"offset":4,"value":"' + stamped(4) + b'"}\n'))


def test_a_subscriber_finds_stamps_across_frames_and_answers_pings(pair) -> None:
    ours, theirs = pair
    tap = SubscriptionTap(HERE, "t", ours)
    assert b"/mq.MessageQueueService/Subscribe" in theirs.recv(1 << 16)
    message = enveloped(stamped(9))
    data = (
        http2.frame(http2.DATA, 0, 1, message[:20])
        + http2.frame(http2.PING, 0, 0, b"12345678")
        + http2.frame(http2.DATA, 0, 1, message[20:])
    )
    assert tap.feed(memoryview(data)) == [9]
    assert theirs.recv(1 << 16) == http2.frame(http2.PING, http2.ACK, 0, b"12345678")


def test_every_beat_is_a_call_of_its_own_and_its_end_is_counted(pair) -> None:
    ours, theirs = pair
    client = Http2Client("Publish", HERE)
    stamper = CallStamper(client, mq.PublishRequest(topic="t", payload=blank_value(100)).SerializeToString())
    first, second = stamper.frame(3), stamper.frame(4)
    assert first.startswith(b"PRI * ")
    assert b"@%020d@" % 3 in first
    assert b"@%020d@" % 4 in second
    counter = CallCounter(client, ours)
    end = b"".join(
        http2.frame(http2.DATA, 0, stream, enveloped(b"x"))
        + http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, b"")
        for stream in (1, 3)
    )
    assert counter.feed(memoryview(http2.frame(http2.SETTINGS, 0, 0, b"") + end)) == 2
    assert theirs.recv(1 << 16) == http2.frame(http2.SETTINGS, http2.ACK, 0, b"")
