"""Time from sending a record to having it in a consumer's hands, at a steady rate.

Invariant: records leave on the beat whether or not earlier ones were answered, so a slow broker cannot slow down its own measurement.
The send time travels inside the record.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Protocol

from penstock.bench import batches, frames
from penstock.bench.faults import BenchError
from penstock.bench.frames import Acks, FetchAnswer, FetchRequest
from penstock.bench.histogram import Histogram
from penstock.bench.raw_client import Counter

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_CATCH_UP_S_MAX = 30.0
_RECEIVE_BYTES = 1 << 18
_FETCH_WAIT_MS_MAX = 500
_FETCH_BYTES_MAX = 1 << 20


class Stamper(Protocol):
    """Makes the request that carries one record."""

    def frame(self, stamp_ns: int) -> bytes | bytearray:
        """A request whose record holds `stamp_ns`."""


class Tap(Protocol):
    """The consumer's side."""

    def feed(self, data: memoryview) -> list[int]:
        """The stamps in what was received; asks for more when it must."""


def measure_delivery(
    *,
    out: socket.socket,
    stamper: Stamper,
    answers: Counter,
    inward: socket.socket,
    tap: Tap,
    rate_per_s: int,
    warmup_s: float,
    seconds: float,
    on_start: Callable[[], None],
) -> Histogram:
    """Send on the beat for `warmup_s`, then for `seconds`; latencies of the second stretch. `on_start` marks its begin."""
    clock = time.perf_counter_ns
    period = 1_000_000_000 // rate_per_s
    scratch = memoryview(bytearray(_RECEIVE_BYTES))
    latency_ns = Histogram()
    begin = clock()
    measured_from = begin + int(warmup_s * 1e9)
    end = measured_from + int(seconds * 1e9)
    beat = begin
    started = False
    sent = received = 0
    give_up = end + int(_CATCH_UP_S_MAX * 1e9)
    while True:
        now = clock()
        if not started and now >= measured_from:
            started = True
            on_start()
        if now >= beat and beat < end:
            out.sendall(stamper.frame(clock()))
            sent += 1
            beat += period
        if beat >= end and received >= sent:
            return latency_ns
        if now > give_up:
            raise BenchError(
                f"{sent - received} of {sent} records were not delivered within {_CATCH_UP_S_MAX:.0f} s: see the broker's log"
            )
        wait_s = max(0, beat - clock()) / 1e9 if beat < end else 0.1
        # select, not epoll: its timeout is in microseconds, and a beat of 1 ms needs that.
        for sock in select.select((out, inward), (), (), wait_s)[0]:
            got = sock.recv_into(scratch)
            now = clock()
            if not got:
                raise BenchError("the broker closed a connection during the measurement: see its log")
            if sock is out:
                answers.feed(scratch[:got])
                continue
            for stamp in tap.feed(scratch[:got]):
                received += 1
                if stamp >= measured_from:
                    latency_ns.record(now - stamp)


class KafkaStamper:
    """A Produce frame with one record, patched and sealed anew for every beat."""

    def __init__(self, version: int, topic: str, acks: Acks, value_bytes: int) -> None:
        value = bytes(value_bytes)
        batch = batches.batch_of([value], int(time.time() * 1000))
        self._frame = bytearray(frames.produce_request(version, 0, topic, 0, acks, batch))
        self._batch_bytes = len(batch)
        self._batch_at = len(self._frame) - frames.produce_tail_bytes(version) - len(batch)
        self._value_at = self._batch_at + value_at(batch, value_bytes)

    def frame(self, stamp_ns: int) -> bytearray:
        _I64.pack_into(self._frame, self._value_at, stamp_ns)
        batches.reseal(self._frame, self._batch_at, self._batch_bytes)
        return self._frame


def value_at(batch: bytes, value_bytes: int) -> int:
    """Where the value of the last record in a batch begins: only its header count, one byte, follows it."""
    return len(batch) - value_bytes - 1


class KafkaTap:
    """A consumer that long-polls: one Fetch is always waiting at the broker."""

    def __init__(self, sock: socket.socket, request: FetchRequest, layout: FetchAnswer, value_bytes: int) -> None:
        self._sock = sock
        self._frame = bytearray(request.frame)
        self._offset_at = request.offset_at
        self._layout = layout
        self._value_bytes = value_bytes
        self._data = bytearray()
        self._next_offset = 0
        self._ask()

    @classmethod
    def on(cls, sock: socket.socket, version: int, topic: str, value_bytes: int) -> KafkaTap:
        """A tap on partition 0 of a topic, from its beginning."""
        request = frames.fetch_request(
            version, 0, topic, 0, answer_bytes_max=_FETCH_BYTES_MAX, wait_ms_max=_FETCH_WAIT_MS_MAX
        )
        return cls(sock, request, frames.fetch_answer(version, topic), value_bytes)

    def _ask(self) -> None:
        _I64.pack_into(self._frame, self._offset_at, self._next_offset)
        self._sock.sendall(self._frame)

    def feed(self, data: memoryview) -> list[int]:
        self._data += data
        if len(self._data) < 4:
            return []
        whole = int(_I32.unpack_from(self._data)[0]) + 4
        if len(self._data) < whole:
            return []
        answer = bytes(self._data[:whole])
        del self._data[:whole]
        stamps = self._stamps_in(answer)
        self._ask()
        return stamps

    def _stamps_in(self, answer: bytes) -> list[int]:
        for error_at in (self._layout.top_error_at, self._layout.partition_error_at):
            if code := int.from_bytes(answer[error_at : error_at + 2], "big", signed=True):
                raise BenchError(f"the broker refused a fetch request with error code {code}: see its log")
        at, size = frames.records_span(self._layout, answer)
        end = at + max(size, 0)
        stamps = []
        while at + batches.HEADER_BYTES <= end:
            (base_offset,) = _I64.unpack_from(answer, at)
            batch_end = at + batches.LENGTH_COVERS_FROM + int(_I32.unpack_from(answer, at + 8)[0])
            if batch_end > end:
                break
            if base_offset >= self._next_offset:
                stamps.append(int(_I64.unpack_from(answer, batch_end - self._value_bytes - 1)[0]))
                self._next_offset = int(base_offset) + 1
            at = batch_end
        return stamps
