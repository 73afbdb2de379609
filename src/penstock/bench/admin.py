"""The few administrative requests a measurement needs, over one blocking connection.

Invariant: a topic made here is ready (every partition has a leader) before it is handed out, and is removed afterwards.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.address import Address, parse_address
from penstock.bench import frames
from penstock.bench.faults import BenchError
from penstock.bench.frames import Api, Reader

_I32 = struct.Struct(">i")
_CONNECT_S_MAX = 10.0
_ANSWER_S_MAX = 120.0
_READY_S_MAX = 60.0
_PAUSE_S_MAX = 1.0
_TOPICS_PER_REQUEST_MAX = 20
_NONE = 0
_TOPIC_ALREADY_EXISTS = 36
# Unknown topic or partition, leader not available, not leader or follower.
_NOT_LED_YET = (3, 5, 6)


def first_address(text: str) -> Address:
    """Read `HOST:PORT`; of a list with commas, the first."""
    try:
        address = parse_address(text.partition(",")[0])
    except ValueError as error:
        raise BenchError(f"{error}: write for example 127.0.0.1:9092") from error
    if address.port == 0:
        raise BenchError(f"{text!r} has no port to connect to: write for example 127.0.0.1:9092")
    return address


def connect(address: Address) -> socket.socket:
    """A connection without Nagle's delay."""
    try:
        sock = socket.create_connection(address, timeout=_CONNECT_S_MAX)
    except OSError as error:
        raise BenchError(
            f"cannot connect to {address}: {error.strerror or error}; is the broker running there?"
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic made for a measurement, and who leads each of its partitions."""

    name: str
    leaders: tuple[Address, ...]

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return len(self.leaders)


def receive_frame(sock: socket.socket) -> bytes:
    """One whole answer without its size."""
    (size,) = _I32.unpack(_receive_exactly(sock, 4))
    return _receive_exactly(sock, int(size))


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            piece = sock.recv(size - len(data))
        except OSError as error:
            raise BenchError(f"the broker did not answer: {error.strerror or error}; see its log") from error
        if not piece:
            raise BenchError(
                "the broker closed the connection: does it speak the Kafka protocol without TLS on this port?"
            )
        data += piece
    return bytes(data)


class Admin:
    """Talks to the bootstrap broker."""

    def __init__(self, bootstrap: Address) -> None:
        self.bootstrap = bootstrap
        self._sock = connect(bootstrap)
        self._sock.settimeout(_ANSWER_S_MAX)
        self._versions: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, frame: bytes) -> Reader:
        try:
            self._sock.sendall(frame)
        except OSError as error:
            raise BenchError(f"the broker did not take a request: {error.strerror or error}; see its log") from error
        reader = Reader(receive_frame(self._sock))
        reader.i32()
        return reader

    def version_of(self, api: Api, wanted: tuple[int, ...]) -> int:
        """The first of `wanted` that the broker serves."""
        if not self._versions:
            answer = self._ask(frames.api_versions_request(0))
            if code := answer.i16():
                raise BenchError(f"the broker answered ApiVersions with error code {code}")
            self._versions = {answer.i16(): (answer.i16(), answer.i16()) for _ in range(answer.i32())}
        low, high = self._versions.get(api, (0, -1))
        for version in wanted:
            if low <= version <= high:
                return version
        raise BenchError(f"the broker serves {api.name} {low} to {high}; this tool needs one of {wanted}")

    def brokers(self) -> dict[int, Address]:
        """The brokers of the cluster by node id."""
        return self._describe([])[0]

    def create_topics(self, topics: list[tuple[str, int]]) -> None:
        """Create topics, given as names and partition counts, in requests of bounded size."""
        for first in range(0, len(topics), _TOPICS_PER_REQUEST_MAX):
            answer = self._ask(frames.create_topics_request(1, topics[first : first + _TOPICS_PER_REQUEST_MAX]))
            answer.i32()
            for _ in range(answer.i32()):
                name, code, reason = answer.text(), answer.i16(), answer.text()
                if code not in (_NONE, _TOPIC_ALREADY_EXISTS):
                    raise BenchError(
                        f"the broker did not create topic {name}: error code {code}, {reason or 'no reason given'}"
                    )

    def delete_topics(self, names: list[str]) -> None:
        """Remove topics; a topic that is already gone is no fault."""
        for first in range(0, len(names), _TOPICS_PER_REQUEST_MAX):
            answer = self._ask(frames.delete_topics_request(2, names[first : first + _TOPICS_PER_REQUEST_MAX]))
            answer.i32()
            for _ in range(answer.i32()):
                answer.text()
                answer.i16()

    def topic(self, name: str, partitions: int) -> Topic:
        """Create a topic and wait until each partition has a leader that serves it."""
        self.create_topics([(name, partitions)])
        self.wait_for_topics({name: partitions})
        brokers, leaders = self._describe([name])
        topic = Topic(name, tuple(brokers[leaders[name][partition]] for partition in range(partitions)))
        # The metadata may name a leader a moment before that broker has taken it in.
        _wait_until(lambda: self.end_offsets(topic) is not None, f"topic {name} is not served", _READY_S_MAX)
        return topic

    def wait_for_topics(self, wanted: dict[str, int], seconds_max: float = _READY_S_MAX) -> None:
        """Wait until every partition of the topics has a leader that is known."""

        def all_led() -> bool:
            brokers, leaders = self._describe(list(wanted))
            return all(
                sum(leader in brokers for leader in leaders.get(name, {}).values()) == partitions
                for name, partitions in wanted.items()
            )

        _wait_until(all_led, "topics have no leader", seconds_max)

    def end_offsets(self, topic: Topic) -> list[int] | None:
        """The offset after the last record, by partition; None while a leader does not know yet that it leads."""
        ends = [0] * topic.partitions
        for leader in set(topic.leaders):
            led = [partition for partition, address in enumerate(topic.leaders) if address == leader]
            with ExitStack() as stack:
                admin = self if leader == self.bootstrap else stack.enter_context(Admin(leader))
                found = admin.ends_of(topic.name, led)
            if found is None:
                return None
            for partition, offset in found.items():
                ends[partition] = offset
        return ends

    def ends_of(self, name: str, partitions: list[int]) -> dict[int, int] | None:
        """The same for partitions that this broker leads."""
        answer = self._ask(frames.list_offsets_request(3, name, partitions))
        ends: dict[int, int] = {}
        for _ in range(answer.i32()):
            answer.text()
            for _ in range(answer.i32()):
                partition, code, _timestamp, offset = answer.i32(), answer.i16(), answer.i64(), answer.i64()
                if code in _NOT_LED_YET:
                    return None
                if code:
                    raise BenchError(f"the broker answered ListOffsets with error code {code}")
                ends[partition] = offset
        return ends

    def _describe(self, names: list[str]) -> tuple[dict[int, Address], dict[str, dict[int, int]]]:
        answer = self._ask(frames.metadata_request(4, names))
        answer.i32()
        brokers: dict[int, Address] = {}
        for _ in range(answer.i32()):
            node, host, port, _rack = answer.i32(), answer.text(), answer.i32(), answer.text()
            brokers[node] = Address(host or "", port)
        answer.text()
        answer.i32()
        leaders: dict[str, dict[int, int]] = {}
        for _ in range(answer.i32()):
            code, name, _internal = answer.i16(), answer.text(), answer.i8()
            found: dict[int, int] = {}
            for _ in range(answer.i32()):
                partition_code, partition, leader = answer.i16(), answer.i32(), answer.i32()
                for _ in range(2):  # replicas, then those in sync
                    for _ in range(answer.i32()):
                        answer.i32()
                if not partition_code:
                    found[partition] = leader
            if not code and name:
                leaders[name] = found
        return brokers, leaders


def _wait_until(holds: Callable[[], bool], failure: str, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    pause_s = 0.01
    while not holds():
        if time.monotonic() > deadline:
            raise BenchError(f"{failure} after {seconds_max:.0f} s: see the broker's log")
        # Answering for thousands of partitions costs a broker something: ask seldom while it is at work.
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_S_MAX)
