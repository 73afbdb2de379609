"""Load in which the next request depends on an answer: lease then ack, calls under flow control, a stream and acks beside it.

Invariant: a pump knows no protocol. A conversation holds one or more connections, takes in what they receive, puts what is to be sent next in
their outboxes and says how many records it finished. Penstock's queues and Redis's groups are driven by the same loop.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass, field
from typing import Protocol

from penstock.bench.faults import BenchError
from penstock.bench.histogram import Histogram
from penstock.bench.raw_client import FIRST_ANSWER_NS_MAX, Sample, make_poller

_RECEIVE_BYTES = 1 << 20
_IN = select.POLLIN
_OUT = select.POLLOUT


@dataclass(slots=True, eq=False)
class Channel:
    """A connection and what is still to be sent on it."""

    sock: socket.socket
    outbox: bytearray = field(default_factory=bytearray)
    waits_to_write: bool = False


class Conversation(Protocol):
    """One worker: its connections and its state."""

    channels: list[Channel]
    is_over: bool
    """There is nothing left to do, and nothing under way."""

    def begin(self, now_ns: int) -> None:
        """Put the first requests in the outboxes."""

    def feed(self, channel: Channel, data: memoryview, now_ns: int, latency_ns: Histogram) -> int:
        """Take in what a channel received; how many records that finished. Times of requests that it ended go to `latency_ns`."""


class ConversationPump:
    """Keeps conversations going until the time is up, enough records are finished, or all are over."""

    def __init__(self, conversations: list[Conversation]) -> None:
        self._conversations = conversations
        self._by_fd = {channel.sock.fileno(): (one, channel) for one in conversations for channel in one.channels}
        self._poller, self._poll_timeout = make_poller()
        for fd, (_, channel) in self._by_fd.items():
            channel.sock.setblocking(False)
            self._poller.register(fd, _IN)
        self._scratch = memoryview(bytearray(_RECEIVE_BYTES))
        self._has_begun = False

    def run(self, seconds: float, records_max: int) -> Sample:
        """Pump for `seconds`, or until `records_max` more records are finished or all conversations are over; longer if none was by then."""
        latency_ns = Histogram()
        clock = time.perf_counter_ns
        begin = now = clock()
        end = begin + int(seconds * 1e9)
        records = 0
        if not self._has_begun:
            self._has_begun = True
            for conversation in self._conversations:
                conversation.begin(begin)
                self._send(conversation)
        late = end + FIRST_ANSWER_NS_MAX if seconds else end
        while (
            (now < end or (not records and now < late))
            and records < records_max
            and not all(one.is_over for one in self._conversations)
        ):
            for fd, event in self._poller.poll(self._poll_timeout):
                conversation, channel = self._by_fd[fd]
                if event & ~_OUT:
                    data = self._receive(channel)
                    now = clock()
                    records += conversation.feed(channel, data, now, latency_ns)
                self._send(conversation)
            now = clock()
        return Sample((now - begin) / 1e9, records, latency_ns)

    def close(self) -> None:
        """Close the connections."""
        for _, channel in self._by_fd.values():
            channel.sock.close()

    def _receive(self, channel: Channel) -> memoryview:
        try:
            got = channel.sock.recv_into(self._scratch)
        except BlockingIOError:
            return self._scratch[:0]
        except OSError as error:
            raise BenchError(f"the connection broke during the measurement: {error}; see the broker's log") from error
        if not got:
            raise BenchError("the broker closed a connection during the measurement: see its log")
        return self._scratch[:got]

    def _send(self, conversation: Conversation) -> None:
        for channel in conversation.channels:
            outbox = channel.outbox
            try:
                while outbox:
                    sent = channel.sock.send(outbox)
                    if sent == len(outbox):
                        outbox.clear()
                    else:
                        del outbox[:sent]
            except BlockingIOError:
                pass
            except OSError as error:
                raise BenchError(
                    f"the connection broke during the measurement: {error}; see the broker's log"
                ) from error
            if bool(outbox) != channel.waits_to_write:
                channel.waits_to_write = bool(outbox)
                self._poller.modify(channel.sock.fileno(), _IN | _OUT if outbox else _IN)
