"""The loads: what each sends, over one connection, and how many bytes of records a request has.

Requests are sent one at a time (or 16, where the title says so) and each waits for its response, so that every request costs the server a whole turn, and
two systems are measured in the same state. Prepared batches are sent as `penstock bench` sends them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bench.security.sessions import (
    GrpcSession,
    HttpCounter,
    LoginSession,
    Session,
    SocketSession,
    cpu_s_of,
    kafka_socket,
)
from bench.security.systems import TOPICS, Target
from penstock.bench import kafka
from penstock.bench.gateways import http1
from penstock.bench.gateways.produce import compact
from penstock.bench.lanes import FetchCounter, FetchSource, ProduceCounter
from penstock.bench.pump import RingSource
from penstock.bench.workloads import KIB16, MIB
from penstock.client import Admin, Cluster
from penstock.client.sockets import connect
from penstock.wire.mq import mq_generated as mq

VALUE = "v" * 100
_STORED_BYTES = 16 * MIB
"""Of the topic that is read: from the page cache, repeatedly."""
_FETCH_WAIT_MS_MAX = 500
_TIMEOUT_MS = 30_000
_PRODUCE = kafka.PRODUCE_VERSION_MAX
_FETCH = kafka.FETCH_VERSION_MAX
_numbers = itertools.count()


class Over(Enum):
    """The listener that a load needs."""

    KAFKA = "kafka"
    HTTP = "http"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Load:
    """A named load. `batch_bytes` 0: one record in each request."""

    name: str
    title: str
    opens: Callable[[Load, Target, str], Session]
    over: Over = Over.KAFKA
    batch_bytes: int = 0
    window: int = 1
    has_records: bool = True
    reads: bool = False

    def batch(self) -> tuple[bytearray, int]:
        """What a request writes or reads, and its number of records."""
        return kafka.batch_filling(self.batch_bytes, VALUE.encode(), int(time.time() * 1000))

    @property
    def value_bytes(self) -> int:
        """Bytes of values in each request."""
        return len(VALUE) * self.batch()[1] if self.has_records else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a load is measured, and how much it may write."""

    seconds: float
    warmup_s: float
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. CPU is that of the server's process."""

    system: str
    load: str
    turn: int
    requests: int
    value_bytes: int
    """Of all requests."""
    seconds: float
    cpu_s: float

    @property
    def cpu_us_per_request(self) -> float:
        """Microseconds."""
        return self.cpu_s * 1e6 / self.requests

    @property
    def cpu_ms_per_mb(self) -> float | None:
        """Milliseconds per 10^6 bytes of values; None for a load without records."""
        return self.cpu_s * 1e9 / self.value_bytes if self.value_bytes else None


def measure(load: Load, target: Target, turn: int, limits: Limits) -> Sample:
    """Warm up and measure, with a topic that exists only for this, unless it is read."""
    with Cluster([target.endpoints.kafka], security=target.admin) as cluster:
        topic = _topic_to_read(load, target, cluster) if load.reads else f"{TOPICS}{next(_numbers)}"
        writes = load.has_records and not load.reads
        if writes:
            kafka.create_topic(cluster, topic, 1)
        session = load.opens(load, target, topic)
        try:
            return _measured(session, load, target, turn, limits)
        finally:
            session.close()
            if writes:
                Admin(cluster).delete_topic(topic)


def _measured(session: Session, load: Load, target: Target, turn: int, limits: Limits) -> Sample:
    size = load.value_bytes
    most = max(load.window, limits.bytes_max // size) if size and not load.reads else 1 << 62
    _exchange(session, limits.warmup_s, most // 4)
    before, began = cpu_s_of(target.pid), time.perf_counter()
    requests = _exchange(session, limits.seconds, most)
    seconds, cpu_s = time.perf_counter() - began, cpu_s_of(target.pid) - before
    return Sample(target.name, load.name, turn, requests, requests * size, seconds, cpu_s)


def _exchange(session: Session, seconds: float, requests_max: int) -> int:
    """Until the time is up or enough were sent, and at least once."""
    requests = session.exchange()
    end = time.perf_counter() + seconds
    while requests < requests_max and time.perf_counter() < end:
        requests += session.exchange()
    return requests


def _topic_to_read(load: Load, target: Target, cluster: Cluster) -> str:
    topic = f"{TOPICS}read-{load.batch_bytes}"
    created = kafka.create_topic(cluster, topic, 1)
    if not sum(kafka.end_offsets(cluster, created)):
        session = _produce(load, target, topic)
        for _ in range(_batches(load)):
            session.exchange()
        session.close()
    return topic


def _batches(load: Load) -> int:
    return _STORED_BYTES // load.batch_bytes


def _produce(load: Load, target: Target, topic: str) -> Session:
    batch, _ = load.batch()
    frames = [kafka.produce_request(_PRODUCE, index, topic, 0, "1", batch) for index in range(load.window)]
    counter = ProduceCounter(kafka.produce_layout(_PRODUCE, topic), load.window)
    return SocketSession(
        kafka_socket(target.endpoints.kafka, target.user), RingSource(frames), counter, window=load.window
    )


def _fetch(load: Load, target: Target, topic: str) -> Session:
    batch, records = load.batch()
    request = kafka.fetch_request(_FETCH, topic, 0, bytes_max=len(batch), wait_ms_max=_FETCH_WAIT_MS_MAX)
    source = FetchSource(request, records_per_batch=records, batches=_batches(load), first_batch=0)
    counter = FetchCounter(kafka.fetch_layout(_FETCH, topic))
    return SocketSession(kafka_socket(target.endpoints.kafka, target.user), source, counter)


def _http(_: Load, target: Target, topic: str) -> Session:
    address = target.endpoints.http
    assert address is not None
    body = compact({"topic": topic, "value": VALUE})
    request = http1.request("POST", "/v1/produce", address, body, authorization=target.user.authorization())
    sock = connect(address, target.user, timeout_ms=_TIMEOUT_MS)
    return SocketSession(sock, RingSource([request]), HttpCounter())


def _grpc(_: Load, target: Target, topic: str) -> Session:
    address = target.endpoints.grpc
    assert address is not None
    message = mq.PublishRequest(topic=topic, payload=VALUE.encode()).SerializeToString()
    return GrpcSession(address, target.user, message)


def _connect(_: Load, target: Target, __: str) -> Session:
    return LoginSession(target.endpoints.kafka, target.user)


LOADS = (
    Load("produce-100", "Kafka produce, acks=1, one record of 100 B per request, one at a time", _produce),
    Load("produce-100x16", "the same, 16 requests in flight", _produce, window=16),
    Load("produce-16k", "Kafka produce, acks=1, a batch of 16 KiB per request", _produce, batch_bytes=KIB16),
    Load("produce-1m", "Kafka produce, acks=1, a batch of 1 MiB per request", _produce, batch_bytes=MIB),
    Load("fetch-16k", "Kafka fetch, a batch of 16 KiB per response", _fetch, batch_bytes=KIB16, reads=True),
    Load("fetch-1m", "Kafka fetch, a batch of 1 MiB per response", _fetch, batch_bytes=MIB, reads=True),
    Load("http", "`POST /v1/produce` of one record of 100 B, on a connection that stays open", _http, Over.HTTP),
    Load("grpc", "Publish of one record of 100 B, a unary call", _grpc, Over.GRPC),
    Load(
        "connect",
        "a new Kafka connection: TLS handshake and SCRAM-SHA-256 login where there are these, and one ApiVersions request",
        _connect,
        has_records=False,
    ),
)
BY_NAME = {load.name: load for load in LOADS}
