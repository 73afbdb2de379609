"""Sends load over non-blocking sockets, at the lowest cost per request that Python allows.

Invariant: a pump knows no protocol. Workers write requests to their connections and process what these receive, so one loop with the same
cost drives Kafka, the gateways and other systems. A lane is the most common worker: it keeps `window` prepared requests in flight, and
counts and checks the responses without decoding them.
"""

from __future__ import annotations

import select
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, Self

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.histogram import LatencyHistogram
from penstock.bench.kafka import connect

_RECEIVE_BYTES = 1 << 20
_POLL_MS_MAX = 50
# epoll and poll share these values.
_IN = select.POLLIN
_OUT = select.POLLOUT
_RING_BYTES_MAX = 1 << 20
NO_LIMIT: Final = 1 << 62

FIRST_ANSWER_NS_MAX: Final = 10 * 10**9
"""How long a measurement waits for its first response: on a busy machine, a short one could end without any."""


@dataclass(slots=True, eq=False)
class Channel:
    """A connection, and the data that it could not send yet."""

    sock: socket.socket
    outbox: bytearray = field(default_factory=bytearray)
    waits_to_write: bool = False

    def write(self, data: memoryview) -> None:
        """Send what the socket accepts now, after earlier data, and keep the rest."""
        sent = 0
        if not self.outbox:
            with suppress(BlockingIOError):
                sent = self.sock.send(data)
        self.outbox += data[sent:]

    def flush(self) -> None:
        """Send kept data, as far as the socket accepts it."""
        outbox = self.outbox
        try:
            while outbox:
                sent = self.sock.send(outbox)
                if sent == len(outbox):
                    outbox.clear()
                else:
                    del outbox[:sent]
        except BlockingIOError:
            pass


class LoadWorker(ABC):
    """One or more connections, and the requests on them."""

    channels: Sequence[Channel]
    unanswered: int = 0
    """Requests in flight."""
    is_over: bool = False
    """Whether there is nothing left to do."""

    @abstractmethod
    def start(self, now_ns: int, requests_max: int) -> int:
        """Send requests until enough are in flight, at most this many; the number sent."""

    @abstractmethod
    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:
        """Process received data; the number of completed responses. The times of requests go to `latency_ns`."""


class RequestSource(Protocol):
    """Provides the bytes of requests."""

    def take(self, requests: int) -> tuple[memoryview, int]:
        """The bytes of at most `requests` requests, and their number."""


class Counter(Protocol):
    """Counts the responses in received data."""

    def feed(self, data: memoryview) -> int:
        """The number of responses that `data` completes. Raises BenchError if one of them is an error."""


class Lane(LoadWorker):
    """A connection that keeps `window` requests of a source in flight."""

    def __init__(
        self, connection: Address | socket.socket, source: RequestSource, counter: Counter, window: int = 1
    ) -> None:
        sock = connection if isinstance(connection, socket.socket) else connect(connection)
        self.channels = (Channel(sock),)
        self._source = source
        self._counter = counter
        self._window = window
        self._sent: deque[tuple[int, int]] = deque()

    def start(self, now_ns: int, requests_max: int) -> int:
        begun = 0
        channel = self.channels[0]
        # What the socket did not take is sent before more is prepared.
        while not channel.outbox and (free := min(self._window - self.unanswered, requests_max - begun)) > 0:
            data, count = self._source.take(free)
            channel.write(data)
            begun += count
            self.unanswered += count
            self._sent.append((now_ns, count))
        return begun

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: LatencyHistogram) -> int:  # noqa: ARG002  it has one channel
        count = self._counter.feed(data)
        self.unanswered -= count
        if self.unanswered < 0:
            raise BenchError("The broker sent more responses than it got requests")
        settle(self._sent, count, now_ns, latency_ns)
        return count


def settle(sent: deque[tuple[int, int]], count: int, now_ns: int, latency_ns: LatencyHistogram) -> None:
    """Record the latency of `count` responses to the oldest requests in flight, which are listed by the time they were sent."""
    while count:
        since, open_count = sent.popleft()
        if open_count > count:
            sent.appendleft((since, open_count - count))
            open_count = count
        latency_ns.record(now_ns - since, open_count)
        count -= open_count


@dataclass(frozen=True, slots=True)
class PumpSample:
    """The result of one run of a pump."""

    seconds: float
    answers: int
    latency_ns: LatencyHistogram


class _Poller(Protocol):
    """The common methods of epoll and poll."""

    def register(self, fd: int, eventmask: int, /) -> None: ...

    def modify(self, fd: int, eventmask: int, /) -> None: ...

    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...


class Pump:
    """Runs its workers until the time is up, enough responses arrived, or all workers are done. Closes their connections at the end."""

    _poller: _Poller
    _timeout: ClassVar[float] = _POLL_MS_MAX / 1000 if hasattr(select, "epoll") else _POLL_MS_MAX

    def __init__(self, workers: Sequence[LoadWorker]) -> None:
        self._workers = workers
        self._by_fd: dict[int, tuple[LoadWorker, Channel]] = {}
        for worker in workers:
            self._by_fd |= {channel.sock.fileno(): (worker, channel) for channel in worker.channels}
        self._poller = select.epoll() if hasattr(select, "epoll") else select.poll()
        for fd, (_, channel) in self._by_fd.items():
            channel.sock.setblocking(False)
            self._poller.register(fd, _IN)
        self._scratch = memoryview(bytearray(_RECEIVE_BYTES))
        self._requests_left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _worker, channel in self._by_fd.values():
            channel.sock.close()

    def run(self, seconds: float, answers_max: int = NO_LIMIT) -> PumpSample:
        """Pump for `seconds`, or until `answers_max` more answers came; longer if there was none by then."""
        latency_ns = LatencyHistogram()
        begin = now = time.perf_counter_ns()
        end = begin + int(seconds * 1e9)
        late = end + FIRST_ANSWER_NS_MAX if seconds else end
        answers = 0
        self._requests_left = answers_max
        for worker in self._workers:
            self._send(worker, begin)
        while (
            (now < end or (not answers and now < late))
            and answers < answers_max
            and not all(worker.is_over for worker in self._workers)
        ):
            answers += self._turn(latency_ns)
            now = time.perf_counter_ns()
        return PumpSample((now - begin) / 1e9, answers, latency_ns)

    def drain(self, seconds_max: float = 30.0) -> int:
        """Wait for the requests in flight without sending new ones; the number of responses."""
        self._requests_left = answers = 0
        ignored = LatencyHistogram()
        deadline = time.perf_counter() + seconds_max
        while any(worker.unanswered for worker in self._workers):
            if time.perf_counter() > deadline:
                raise BenchError(f"The broker left requests unanswered for {seconds_max:.0f} s; see its log")
            answers += self._turn(ignored)
        return answers

    def _turn(self, latency_ns: LatencyHistogram) -> int:
        """Serve all connections that are ready; the number of responses."""
        answers = 0
        clock, by_fd = time.perf_counter_ns, self._by_fd
        for fd, event in self._poller.poll(self._timeout):
            worker, channel = by_fd[fd]
            data = self._receive(channel) if event & ~_OUT else None
            now = clock()
            if data:
                answers += worker.feed(channel, data, now, latency_ns)
            self._send(worker, now)
        return answers

    def _receive(self, channel: Channel) -> memoryview | None:
        try:
            got = channel.sock.recv_into(self._scratch)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _broken(error) from error
        if not got:
            raise BenchError("The broker closed a connection during the measurement; see its log")
        return self._scratch[:got]

    def _send(self, worker: LoadWorker, now_ns: int) -> None:
        try:
            for channel in worker.channels:
                if channel.outbox:
                    channel.flush()
            self._requests_left -= worker.start(now_ns, self._requests_left)
            for channel in worker.channels:
                if channel.outbox:
                    channel.flush()
                if bool(channel.outbox) != channel.waits_to_write:
                    channel.waits_to_write = not channel.waits_to_write
                    self._poller.modify(channel.sock.fileno(), _IN | _OUT if channel.outbox else _IN)
        except OSError as error:
            raise _broken(error) from error


def _broken(error: OSError) -> BenchError:
    return BenchError(f"The connection broke during the measurement: {error}; see the broker's log")


class RingSource:
    """The same frames repeatedly; adjacent frames are sent in one call."""

    __slots__ = ("_count", "_frame_bytes", "_next", "_view")

    def __init__(self, frames: list[bytes]) -> None:
        self._frame_bytes = len(frames[0])
        if any(len(frame) != self._frame_bytes for frame in frames):
            raise ValueError("The frames of a ring must be of one length")
        self._count = len(frames)
        self._view = memoryview(b"".join(frames))
        self._next = 0

    def take(self, requests: int) -> tuple[memoryview, int]:
        start = self._next
        count = min(requests, self._count - start)
        self._next = 0 if start + count == self._count else start + count
        return self._view[start * self._frame_bytes : (start + count) * self._frame_bytes], count


def ring_length(frame_bytes: int, window: int) -> int:
    """The number of frames in a ring: as many as are in flight, unless they would not fit into the processor's cache."""
    return max(1, min(window, _RING_BYTES_MAX // frame_bytes))


class TokenCounter:
    """Counts responses of a line protocol by a token that each has once (`size` of them count as one); a failure token ends the measurement."""

    __slots__ = ("_failures", "_over", "_size", "_tail", "_token")

    def __init__(self, token: bytes, failures: tuple[bytes, ...] = (), size: int = 1) -> None:
        self._token = token
        self._failures = failures
        self._size = size
        self._over = 0
        # As if a line feed came before the first line, so that a failure token can require the beginning of a line.
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
                    f"The server answered with an error: {text[at : at + 200].strip().decode(errors='replace')}"
                )
        count, self._over = divmod(self._over + text.count(self._token), self._size)
        return count
