"""The time from sending a record to receiving it in a consumer, at a constant rate.

Invariant: records are sent on time whether or not earlier ones were acknowledged, so a slow broker cannot slow down the measurement.
The value of a record contains its send time, as text between two characters that occur nowhere else, so the consumer needs no parser.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Protocol

from penstock.bench.context import RowContext
from penstock.bench.faults import BenchError
from penstock.bench.histogram import LatencyHistogram
from penstock.bench.kafka import FetchFrame, FetchLayout, batch_of, produce_request
from penstock.bench.pump import Counter
from penstock.bench.rows import Meter, Row
from penstock.records.batch import set_crc

RATE_PER_S: Final = 1000
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_CATCH_UP_S_MAX = 30.0
_RECEIVE_BYTES = 1 << 18
_DIGITS = 20
_BLANK = b"@" + b"0" * _DIGITS + b"@"
STAMP: Final = re.compile(rb"@(\d{20})@")


class Stamper(Protocol):
    """Makes the request for one record."""

    def frame(self, stamp_ns: int) -> bytes | bytearray:
        """A request whose record holds `stamp_ns`."""


class Tap(Protocol):
    """The consumer's side."""

    def feed(self, data: memoryview) -> list[int]:
        """The stamps in the received data; sends the next request if necessary."""


Producer = tuple[socket.socket, Stamper, Counter]
"""A connection, the stamper of its requests, and the counter of its responses."""
Consumer = tuple[socket.socket, Tap]


def measure_delivery(
    producer: Producer, consumer: Consumer, *, warmup_s: float, seconds: float, on_start: Callable[[], None]
) -> LatencyHistogram:
    """Send for `warmup_s`, then for `seconds`; the latencies after the warm-up, whose end `on_start` marks."""
    (out, stamper, answers), (inward, tap) = producer, consumer
    clock = time.perf_counter_ns
    period = 1_000_000_000 // RATE_PER_S
    scratch = memoryview(bytearray(_RECEIVE_BYTES))
    latency_ns = LatencyHistogram()
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
                f"{sent - received} of {sent} records were not delivered within {_CATCH_UP_S_MAX:.0f} s; see the broker's log"
            )
        wait_s = max(0, beat - clock()) / 1e9 if beat < end else 0.1
        # select, not epoll: its timeout is in microseconds, and a period of 1 ms needs that.
        for sock in select.select((out, inward), (), (), wait_s)[0]:
            got = sock.recv_into(scratch)
            now = clock()
            if not got:
                raise BenchError("The broker closed a connection during the measurement; see its log")
            if sock is out:
                answers.feed(scratch[:got])
                continue
            for stamp in tap.feed(scratch[:got]):
                received += 1
                if stamp >= measured_from:
                    latency_ns.record(now - stamp)


def deliver(
    context: RowContext,
    consumer: Callable[[RowContext, ExitStack], Consumer],
    producer: Callable[[RowContext, ExitStack], Producer],
) -> Row:
    """Measure a delivery row; the consumer is ready before the first record is sent."""
    options = context.options
    meter = Meter(context.pid)
    with ExitStack() as stack:
        inward = consumer(context, stack)
        latency_ns = measure_delivery(
            producer(context, stack),
            inward,
            warmup_s=options.warmup_s,
            seconds=options.seconds,
            on_start=meter.start,
        )
        return context.row(meter, records=latency_ns.count, requests=latency_ns.count, latency_ns=latency_ns)


def blank_value(value_bytes: int) -> bytes:
    """A value with room for a stamp, which takes 22 bytes."""
    return _BLANK + b"v" * max(0, value_bytes - len(_BLANK))


class TextStamper:
    """A request that is encoded once; its stamp is patched for every record."""

    def __init__(self, request: bytes | bytearray) -> None:
        self._frame = bytearray(request)
        self._at = request.index(_BLANK) + 1

    def frame(self, stamp_ns: int) -> bytearray:
        self._frame[self._at : self._at + _DIGITS] = b"%020d" % stamp_ns
        return self._frame


class TextTap:
    """Finds the stamps in the data that a consumer receives."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: memoryview | bytes) -> list[int]:
        text = self._tail + data
        stamps = []
        end = 0
        for found in STAMP.finditer(text):
            stamps.append(int(found[1]))
            end = found.end()
        # Less than a whole stamp, so that none is found twice.
        self._tail = text[max(end, len(text) - len(_BLANK) + 1) :]
        return stamps


class KafkaStamper:
    """A Produce frame with a batch of one record, which gets a stamp and a new CRC every time."""

    def __init__(self, version: int, topic: str, acks: str, value_bytes: int) -> None:
        batch = batch_of([blank_value(value_bytes)], int(time.time() * 1000))
        self._stamper = TextStamper(batch)
        self._frame = bytearray(produce_request(version, 0, topic, 0, acks, batch))
        self._at = self._frame.index(batch)

    def frame(self, stamp_ns: int) -> bytearray:
        batch = self._stamper.frame(stamp_ns)
        set_crc(batch)
        self._frame[self._at : self._at + len(batch)] = batch
        return self._frame


class KafkaTap:
    """A consumer of one partition from its beginning that long-polls: one Fetch is always waiting at the broker."""

    def __init__(self, sock: socket.socket, request: FetchFrame, layout: FetchLayout) -> None:
        self._sock = sock
        self._frame = bytearray(request.frame)
        self._offset_at = request.offset_at
        self._layout = layout
        self._data = b""
        self._next_offset = 0
        self._fetch()

    def _fetch(self) -> None:
        _I64.pack_into(self._frame, self._offset_at, self._next_offset)
        self._sock.sendall(self._frame)

    def feed(self, data: memoryview) -> list[int]:
        self._data += data
        if len(self._data) < 4 or len(self._data) < int(_I32.unpack_from(self._data)[0]) + 4:
            return []
        response, self._data = self._data, b""
        self._layout.check(response)
        stamps = [int(found[1]) for found in STAMP.finditer(response)]
        self._next_offset += len(stamps)
        self._fetch()
        return stamps
