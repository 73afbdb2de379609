"""Frames come out whole and in order, however the bytes were cut, and memory follows the bytes and not the lengths."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.limits import (
    RECEIVE_BUFFER_BYTES_INITIAL,
    RECEIVE_BUFFER_BYTES_KEPT_MAX,
    RECEIVE_BUFFERS_POOLED_MAX,
    RECEIVE_GROWTH,
    RECEIVE_SCRATCH_BYTES,
)
from penstock.transport.receive import BufferPool, FrameReader
from penstock.wire.errors import ProtocolViolation

FRAME_BYTES_MAX = 1_000_000


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def receive(reader: FrameReader, data: bytes) -> list[bytes]:
    """Bring bytes in as a socket would, and take out every whole frame."""
    frames = []
    while data:
        room = reader.writable()
        part, data = data[: len(room)], data[len(room) :]
        room[: len(part)] = part
        reader.received(len(part))
        while (found := reader.next_frame()) is not None:
            frames.append(bytes(reader.buffer[found[0] : found[1]]))
        reader.settle()
    return frames


@given(
    bodies=st.lists(st.integers(8, 5000).map(lambda size: bytes([size % 251]) * size), min_size=1, max_size=20),
    cuts=st.lists(st.integers(1, 7000), min_size=1, max_size=20),
)
def test_frames_survive_any_cut_of_the_stream(bodies: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(BufferPool(), FRAME_BYTES_MAX)
    stream = b"".join(map(framed, bodies))
    seen: list[bytes] = []
    turn = 0
    while stream:
        cut = cuts[turn % len(cuts)]
        turn += 1
        seen += receive(reader, stream[:cut])
        stream = stream[cut:]
    assert seen == bodies
    assert reader.unread == 0


def test_two_connections_share_the_scratch_buffer_without_mixing() -> None:
    pool = BufferPool()
    one, two = FrameReader(pool, FRAME_BYTES_MAX), FrameReader(pool, FRAME_BYTES_MAX)
    first, second = framed(b"a" * 100), framed(b"b" * 100)
    assert receive(one, first[:50]) == []
    assert receive(two, second[:70]) == []
    assert receive(one, first[50:]) == [b"a" * 100]
    assert receive(two, second[70:]) == [b"b" * 100]


def test_a_frame_larger_than_the_scratch_buffer_comes_whole() -> None:
    reader = FrameReader(BufferPool(), FRAME_BYTES_MAX)
    body = bytes(range(256)) * (RECEIVE_SCRATCH_BYTES // 256 * 3)
    assert receive(reader, framed(body) + framed(b"next" * 4)) == [body, b"next" * 4]


def test_a_length_alone_takes_no_memory() -> None:
    pool = BufferPool()
    reader = FrameReader(pool, 100 * 1024 * 1024)
    receive(reader, struct.pack(">i", 100 * 1024 * 1024) + b"x" * 100)
    assert len(reader.buffer) <= max(104 * RECEIVE_GROWTH, 2 * RECEIVE_BUFFER_BYTES_INITIAL)


@pytest.mark.parametrize("size", [-1, 0, 7, FRAME_BYTES_MAX + 1, 2**31 - 1, -(2**31)])
def test_a_length_out_of_bounds_is_a_violation(size: int) -> None:
    reader = FrameReader(BufferPool(), FRAME_BYTES_MAX)
    with pytest.raises(ProtocolViolation, match="Kafka client"):
        receive(reader, struct.pack(">i", size) + bytes(8))


def test_an_idle_connection_holds_no_buffer_of_its_own() -> None:
    pool = BufferPool()
    reader = FrameReader(pool, FRAME_BYTES_MAX)
    whole = framed(b"z" * 300_000)
    receive(reader, whole[:1000])
    assert reader.buffer is not pool.scratch
    receive(reader, whole[1000:])
    assert reader.buffer is pool.scratch


def test_the_pool_is_bounded_in_number_and_size() -> None:
    pool = BufferPool()
    for _ in range(RECEIVE_BUFFERS_POOLED_MAX * 2):
        pool.give(bytearray(RECEIVE_BUFFER_BYTES_INITIAL))
    pool.give(bytearray(RECEIVE_BUFFER_BYTES_KEPT_MAX + 1))
    assert len(pool._free) == RECEIVE_BUFFERS_POOLED_MAX


def test_frames_left_behind_are_kept_apart_from_the_scratch_buffer() -> None:
    pool = BufferPool()
    reader = FrameReader(pool, FRAME_BYTES_MAX)
    both = framed(b"1" * 50) + framed(b"2" * 50)
    reader.writable()[: len(both)] = both
    reader.received(len(both))
    first = reader.next_frame()
    assert first is not None
    reader.settle()
    pool.scratch[:] = bytes(len(pool.scratch))
    second = reader.next_frame()
    assert second is not None
    assert bytes(reader.buffer[second[0] : second[1]]) == b"2" * 50
