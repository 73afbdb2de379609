"""Load of one request at a time on each connection: the shortest loop there is.

Invariant: a connection has one request under way or none. With 64 such connections every request costs this process a poll, a receive
and a send of its own, so the loop around them is kept bare: it must not be what a broker is measured by.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.bench.faults import BenchError
from penstock.bench.histogram import Histogram
from penstock.bench.raw_client import FIRST_ANSWER_NS_MAX, Counter, Sample, make_poller

_SCRATCH_BYTES = 1 << 16
_IN = 1


@dataclass(slots=True)
class PingLane:
    """One connection and the one frame that it sends."""

    sock: socket.socket
    frame: bytes
    counter: Counter
    sent_ns: int = 0
    waiting: bool = False


class PingPump:
    """Sends a lane's frame again as soon as it was answered."""

    def __init__(self, lanes: list[PingLane]) -> None:
        self._lanes = lanes
        self._poller, self._poll_timeout = make_poller()
        for lane in lanes:
            lane.sock.setblocking(False)
            self._poller.register(lane.sock.fileno(), _IN)
        # Bound methods looked up once: the loop below runs some 100,000 times a second.
        self._by_fd: dict[
            int, tuple[PingLane, Callable[[memoryview], int], Callable[[bytes], int], Callable[[memoryview], int]]
        ]
        self._by_fd = {
            lane.sock.fileno(): (lane, lane.sock.recv_into, lane.sock.send, lane.counter.feed) for lane in lanes
        }
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))

    def run(self, seconds: float, requests_max: int) -> Sample:
        """Pump for `seconds`, or until `requests_max` more requests were sent and answered; longer if no answer came by then."""
        latency_ns = Histogram()
        clock, poll, timeout, by_fd = time.perf_counter_ns, self._poller.poll, self._poll_timeout, self._by_fd
        scratch, record = self._scratch, latency_ns.record
        budget = requests_max
        begin = now = clock()
        end = begin + int(seconds * 1e9)
        answers = 0
        for lane in self._lanes:
            if not lane.waiting and budget > 0:
                budget -= 1
                _start(lane)
        try:
            late = end + FIRST_ANSWER_NS_MAX if seconds else end
            while (now < end or (not answers and now < late)) and (
                budget > 0 or any(lane.waiting for lane in self._lanes)
            ):
                for fd, _event in poll(timeout):
                    lane, recv_into, send, feed = by_fd[fd]
                    got = recv_into(scratch)
                    now = clock()
                    if not got:
                        raise BenchError("the broker closed a connection during the measurement: see its log")
                    if feed(scratch[:got]):
                        answers += 1
                        record(now - lane.sent_ns)
                        if budget > 0:
                            budget -= 1
                            lane.sent_ns = now
                            # A frame that is refused whole or in part by an empty socket is an error like any other.
                            if send(lane.frame) != len(lane.frame):
                                raise BenchError("a connection took only part of a small request")
                        else:
                            lane.waiting = False
                now = clock()
        except OSError as error:
            raise BenchError(f"the connection broke during the measurement: {error}; see the broker's log") from error
        return Sample((now - begin) / 1e9, answers, latency_ns)

    def drain(self, seconds_max: float = 30.0) -> int:
        """Wait for what is still unanswered, sending nothing new; how many answers came."""
        answers = self.run(seconds_max, 0).answers
        if any(lane.waiting for lane in self._lanes):
            raise BenchError(f"the broker left requests unanswered for {seconds_max:.0f} s: see its log")
        return answers

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes:
            lane.sock.close()


def _start(lane: PingLane) -> None:
    lane.waiting = True
    lane.sent_ns = time.perf_counter_ns()
    lane.sock.send(lane.frame)
