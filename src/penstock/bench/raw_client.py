"""Pipelined load over non-blocking sockets, at the least cost per request that Python allows.

Invariant: each connection keeps `window` requests unanswered, no more; answers are counted and checked, never decoded whole. A pump
knows no protocol: sources give it bytes to send, counters tell it how many answers the received bytes completed. So Kafka, Redis and
NATS are driven by the same loop, and its own cost is the same for all.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.bench.faults import BenchError
from penstock.bench.frames import FetchAnswer, FetchRequest, ProduceAnswer, records_span
from penstock.bench.histogram import Histogram

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_RECEIVE_BYTES = 1 << 20
_POLL_MS_MAX = 50
# epoll and poll share these values.
_IN = select.POLLIN
_OUT = select.POLLOUT
_RING_BYTES_MAX = 1 << 20


class Source(Protocol):
    """Gives the bytes of requests to send."""

    def take(self, requests: int) -> tuple[memoryview, int]:
        """Bytes of up to `requests` requests, and of how many."""


class Counter(Protocol):
    """Counts the answers in what a connection received."""

    def feed(self, data: memoryview) -> int:
        """Take in `data`; how many answers it completed. Raises BenchError when one of them says no."""


class RingSource:
    """The same frames over and over; frames that follow one another go out in one send."""

    __slots__ = ("_count", "_frame_bytes", "_next", "_view")

    def __init__(self, frames: list[bytes]) -> None:
        self._frame_bytes = len(frames[0])
        if any(len(frame) != self._frame_bytes for frame in frames):
            raise ValueError("the frames of a ring must be of one length")
        self._count = len(frames)
        self._view = memoryview(b"".join(frames))
        self._next = 0

    def take(self, requests: int) -> tuple[memoryview, int]:
        start = self._next
        count = min(requests, self._count - start)
        self._next = 0 if start + count == self._count else start + count
        return self._view[start * self._frame_bytes : (start + count) * self._frame_bytes], count


def ring_length(frame_bytes: int, window: int) -> int:
    """How many frames a ring should hold: as many as are under way, unless that would push the ring out of the processor's cache."""
    return max(1, min(window, _RING_BYTES_MAX // frame_bytes))


class FetchSource:
    """One Fetch frame, its offset patched to walk a range of equal batches round and round."""

    __slots__ = ("_batches", "_frame", "_index", "_offset_at", "_records_per_batch")

    def __init__(self, request: FetchRequest, *, records_per_batch: int, batches: int, first_batch: int) -> None:
        self._frame = bytearray(request.frame)
        self._offset_at = request.offset_at
        self._records_per_batch = records_per_batch
        self._batches = batches
        self._index = first_batch

    def take(self, requests: int) -> tuple[memoryview, int]:
        assert requests > 0
        _I64.pack_into(self._frame, self._offset_at, self._index * self._records_per_batch)
        self._index = (self._index + 1) % self._batches
        return memoryview(self._frame), 1


class ProduceCounter:
    """Counts Produce answers of one length by their length, and looks at each one's error code."""

    __slots__ = ("_answer_bytes", "_answered", "_error_at", "_ring", "_tail")

    def __init__(self, layout: ProduceAnswer, ring: int) -> None:
        self._answer_bytes = layout.frame_bytes
        self._error_at = layout.error_at
        self._ring = ring
        self._answered = 0
        self._tail = b""

    def feed(self, data: memoryview) -> int:
        answer_bytes = self._answer_bytes
        error_at = self._error_at
        if len(data) == answer_bytes and not self._tail and not data[error_at] and not data[error_at + 1]:
            # One answer that says yes: what nearly every call brings on a connection without pipelining.
            self._answered += 1
            return 1
        if self._tail:
            data = memoryview(self._tail + bytes(data))
        count, rest = divmod(len(data), answer_bytes)
        self._tail = bytes(data[count * answer_bytes :]) if rest else b""
        if not count:
            if rest >= error_at + 2:
                self._check_one(data, 0)
            return 0
        # An answer that says no may be longer, and then everything behind it is out of step: looking at the first and the last
        # answer's head and at every error code finds it.
        self._check_one(data, 0)
        if count > 1:
            self._check_one(data, (count - 1) * answer_bytes)
            end = count * answer_bytes
            if any(data[error_at:end:answer_bytes]) or any(data[error_at + 1 : end : answer_bytes]):
                for index in range(count):
                    self._check_one(data, index * answer_bytes)
        self._answered += count
        return count

    def _check_one(self, data: memoryview, at: int) -> None:
        (size,) = _I32.unpack_from(data, at)
        (code,) = _I16.unpack_from(data, at + self._error_at)
        if code:
            raise BenchError(f"the broker refused a produce request with error code {code}: see its log")
        (correlation_id,) = _I32.unpack_from(data, at + 4)
        expected = (self._answered + at // self._answer_bytes) % self._ring
        if size != self._answer_bytes - 4 or correlation_id != expected:
            raise BenchError(
                f"a produce answer is out of step: {size} bytes with correlation id {correlation_id}, "
                f"awaited {self._answer_bytes - 4} bytes with {expected}"
            )


class FetchCounter:
    """Counts Fetch answers; reads the head of each and skips over the records."""

    __slots__ = ("_head", "_head_bytes", "_layout", "_skip", "bytes_received")

    def __init__(self, layout: FetchAnswer) -> None:
        self._layout = layout
        self._head_bytes = layout.head_bytes
        self._head = bytearray()
        self._skip = 0
        self.bytes_received = 0

    def feed(self, data: memoryview) -> int:
        done = 0
        at = 0
        end = len(data)
        while at < end:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
                done += not self._skip
                continue
            step = min(self._head_bytes - len(self._head), end - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == self._head_bytes:
                self._skip = self._check() - self._head_bytes
                self._head.clear()
        return done

    def _check(self) -> int:
        """The whole length of the answer that begins with the gathered head."""
        layout = self._layout
        (size,) = _I32.unpack_from(self._head)
        for error_at in (layout.top_error_at, layout.partition_error_at):
            (code,) = _I16.unpack_from(self._head, error_at)
            if code:
                raise BenchError(f"the broker refused a fetch request with error code {code}: see its log")
        _, records_bytes = records_span(layout, self._head)
        if records_bytes <= 0:
            raise BenchError(
                "a fetch answer holds no records where there should be some: was the topic's data removed?"
            )
        self.bytes_received += records_bytes
        return int(size) + 4


class TokenCounter:
    """Counts answers of a line protocol by a token that each holds once; a failure token ends the measurement."""

    __slots__ = ("_failures", "_tail", "_token")

    def __init__(self, token: bytes, failures: tuple[bytes, ...]) -> None:
        self._token = token
        self._failures = failures
        # A line feed stands before the first line, so that a failure token may insist on a line's beginning.
        self._tail = b"\n"

    def feed(self, data: memoryview) -> int:
        text = self._tail + bytes(data)
        whole = text.rfind(b"\n")
        self._tail = text[whole:]
        text = text[:whole]
        for failure in self._failures:
            at = text.find(failure)
            if at >= 0:
                raise BenchError(
                    f"the server answered with an error: {text[at : at + 200].strip().decode(errors='replace')}"
                )
        return text.count(self._token)


@dataclass(slots=True)
class Lane:
    """One connection: what it sends, how its answers are counted, and what is under way."""

    sock: socket.socket
    source: Source
    counter: Counter
    window: int
    unanswered: int = 0
    pending: memoryview = field(default_factory=lambda: memoryview(b""))
    sent: deque[tuple[int, int]] = field(default_factory=deque)
    waits_to_write: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """What one stretch of pumping saw."""

    seconds: float
    answers: int
    latency_ns: Histogram


class Poller(Protocol):
    """What epoll and poll have in common."""

    def register(self, fd: int, eventmask: int, /) -> None: ...

    def modify(self, fd: int, eventmask: int, /) -> None: ...

    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...


def make_poller() -> tuple[Poller, float]:
    """The cheapest poller of this system, and its timeout in its own unit."""
    if hasattr(select, "epoll"):
        return select.epoll(), _POLL_MS_MAX / 1000
    return select.poll(), float(_POLL_MS_MAX)


FIRST_ANSWER_NS_MAX: Final = 10 * 10**9
"""A measurement that has seen no answer goes on for so long: a busy machine may not have begun when a short one is over."""


class Pump:
    """Keeps every lane's window full until told to stop."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = {lane.sock.fileno(): lane for lane in lanes}
        self._poller, self._poll_timeout = make_poller()
        for fd, lane in self._lanes.items():
            lane.sock.setblocking(False)
            self._poller.register(fd, _IN)
        self._scratch = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._scratch)
        self._budget = 0

    def run(self, seconds: float, requests_max: int) -> Sample:
        """Pump for `seconds`, or until `requests_max` more requests were sent and all are answered; longer if no answer came by then."""
        self._budget = requests_max
        latency_ns = Histogram()
        clock = time.perf_counter_ns
        begin = clock()
        end = begin + int(seconds * 1e9)
        answers = 0
        for lane in self._lanes.values():
            self._send(lane, clock())
        now = begin
        late = end + FIRST_ANSWER_NS_MAX if seconds else end
        while (now < end or (not answers and now < late)) and (
            self._budget > 0 or any(lane.unanswered for lane in self._lanes.values())
        ):
            for fd, event in self._poller.poll(self._poll_timeout):
                lane = self._lanes[fd]
                count = 0
                if event & ~_OUT:
                    count = self._receive(lane)
                now = clock()
                if count:
                    answers += count
                    _settle(lane, count, now, latency_ns)
                if count or event & _OUT:
                    self._send(lane, now)
            now = clock()
        return Sample((now - begin) / 1e9, answers, latency_ns)

    def drain(self, seconds_max: float = 30.0) -> int:
        """Wait for what is still unanswered, sending nothing new; how many answers came."""
        self._budget = 0
        answers = 0
        ignored = Histogram()
        deadline = time.perf_counter() + seconds_max
        while any(lane.unanswered for lane in self._lanes.values()):
            if time.perf_counter() > deadline:
                raise BenchError(f"the broker left requests unanswered for {seconds_max:.0f} s: see its log")
            for fd, event in self._poller.poll(self._poll_timeout):
                lane = self._lanes[fd]
                if event & _OUT:
                    self._send(lane, time.perf_counter_ns())
                if event & ~_OUT:
                    count = self._receive(lane)
                    answers += count
                    _settle(lane, count, time.perf_counter_ns(), ignored)
        return answers

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            lane.sock.close()

    def _receive(self, lane: Lane) -> int:
        try:
            got = lane.sock.recv_into(self._scratch)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BenchError(f"the connection broke during the measurement: {error}; see the broker's log") from error
        if not got:
            raise BenchError("the broker closed a connection during the measurement: see its log")
        return lane.counter.feed(self._view[:got])

    def _send(self, lane: Lane, now: int) -> None:
        """Send until the window is full or the socket takes no more."""
        try:
            while True:
                if lane.pending:
                    lane.pending = lane.pending[lane.sock.send(lane.pending) :]
                    if lane.pending:
                        continue
                free = min(lane.window - lane.unanswered, self._budget)
                if free <= 0:
                    break
                lane.pending, count = lane.source.take(free)
                lane.unanswered += count
                self._budget -= count
                lane.sent.append((now, count))
        except BlockingIOError:
            if not lane.waits_to_write:
                lane.waits_to_write = True
                self._poller.modify(lane.sock.fileno(), _IN | _OUT)
            return
        except OSError as error:
            raise BenchError(f"the connection broke during the measurement: {error}; see the broker's log") from error
        if lane.waits_to_write:
            lane.waits_to_write = False
            self._poller.modify(lane.sock.fileno(), _IN)


def _settle(lane: Lane, count: int, now: int, latency_ns: Histogram) -> None:
    """Book `count` answers against the oldest requests under way."""
    lane.unanswered -= count
    if lane.unanswered < 0:
        raise BenchError("the broker sent more answers than it got requests")
    sent = lane.sent
    while count:
        since, open_count = sent.popleft()
        if open_count > count:
            sent.appendleft((since, open_count - count))
            latency_ns.record(now - since, count)
            return
        latency_ns.record(now - since, open_count)
        count -= open_count
