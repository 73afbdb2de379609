"""Kafka requests that are encoded once, the layout of their responses, and the topics of the rows.

Invariant: for one topic name and one version, every successful Produce response has the same length and layout, so responses are counted
by length and checked by slices, at no cost per record. The position of a field is found by encoding the message with two values of it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.client import Admin, At, Cluster, list_offsets
from penstock.records.builder import BatchBuilder
from penstock.types import Buffer
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from penstock.wire.kafka.headers import RequestHeader, frame, frame_request
from penstock.wire.kafka.primitives import read_uvarint
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

CLIENT_ID = "penstock-bench"
PRODUCE_VERSION_MAX = 9
FETCH_VERSION_MAX = 12
"""Later versions identify topics by id, or have responses without a constant layout."""
_ACKS = {"1": 1, "all": -1}
_CONNECT_S_MAX = 10.0
_READY_MS_MAX = 60_000


def connect(address: Address) -> socket.socket:
    """A connection without Nagle's delay."""
    try:
        sock = socket.create_connection(address, timeout=_CONNECT_S_MAX)
    except OSError as error:
        raise BenchError(
            f"Cannot connect to {address}: {error.strerror or error}; is the broker running there?"
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


# Topics


@dataclass(frozen=True, slots=True)
class BenchTopic:
    """A topic that was created for a measurement, and the leader of each partition."""

    name: str
    leaders: tuple[Address, ...]


def create_topic(cluster: Cluster, name: str, partitions: int) -> BenchTopic:
    """Create a topic and wait until the leader of every partition answers for it."""
    Admin(cluster).create_topic(name, partitions=partitions, exists_ok=True)
    places = {(name, partition): At.LATEST for partition in range(partitions)}
    # Metadata may list a leader a moment before that broker knows it.
    cluster.retry(lambda: list_offsets(cluster, places), unknown_topics=True, timeout_ms=_READY_MS_MAX)
    return BenchTopic(name, tuple(cluster.leader_address(*place) for place in places))


def end_offsets(cluster: Cluster, topic: BenchTopic) -> list[int]:
    """The offset after the last record, by partition."""
    places = {(topic.name, partition): At.LATEST for partition in range(len(topic.leaders))}
    return [found.offset for _, found in sorted(list_offsets(cluster, places).items())]


def version_for(cluster: Cluster, leader: Address, key: ApiKey, version_max: int) -> int:
    """The newest version of an API that the leader and the rows support."""
    return cluster.connection_to(leader).version_for(API[key], version_max)


# Batches


def batch_of(values: list[bytes], timestamp_ms: int = 0) -> bytearray:
    """A batch of records without keys."""
    builder = BatchBuilder()
    for value in values:
        builder.add(timestamp_ms, None, value)
    return builder.build()


def batch_filling(batch_bytes_max: int, value: bytes, timestamp_ms: int) -> tuple[bytearray, int]:
    """The largest batch of equal records within `batch_bytes_max` (0: of one record), and its number of records."""
    if not batch_bytes_max:
        return batch_of([value], timestamp_ms), 1
    builder = BatchBuilder()
    while builder.size_bytes <= batch_bytes_max:
        builder.add(timestamp_ms, None, value)
    if builder.count == 1:
        raise BenchError(
            f"A record of {len(value)} bytes does not fit into a batch of {batch_bytes_max} bytes: use smaller values"
        )
    return batch_of([value] * (builder.count - 1), timestamp_ms), builder.count - 1


# Frames


@dataclass(frozen=True, slots=True)
class ProduceLayout:
    """The layout of a successful Produce response, from its size field on."""

    frame_bytes: int
    error_at: int


@dataclass(frozen=True, slots=True)
class FetchLayout:
    """The layout of a Fetch response for one partition, up to the length of its records."""

    errors_at: tuple[int, int]
    records_length_at: int
    is_flexible: bool

    @property
    def head_bytes(self) -> int:
        """Enough of a response to read the length of its records, however wide that length is."""
        return self.records_length_at + 5

    def check(self, response: bytes | bytearray) -> None:
        """Fail when the response reports an error."""
        for at in self.errors_at:
            if code := int.from_bytes(response[at : at + 2], "big", signed=True):
                raise BenchError(f"The broker refused a fetch request with error code {code}; see its log")

    def records_span(self, response: bytes | bytearray) -> tuple[int, int]:
        """Where the records begin, and how many bytes they are."""
        at = self.records_length_at
        if self.is_flexible:
            length, at = read_uvarint(response, at)
            return at, length - 1
        return at + 4, int.from_bytes(response[at : at + 4], "big", signed=True)


@dataclass(frozen=True, slots=True)
class FetchFrame:
    """A Fetch request, and the position of its offset."""

    frame: bytes
    offset_at: int


def produce_request(version: int, correlation_id: int, topic: str, partition: int, acks: str, batch: Buffer) -> bytes:
    """A Produce frame with one batch."""
    part = ProduceRequestPartition(index=partition, records=batch)
    topics = [ProduceRequestTopic(name=topic, partition_data=[part])]
    request = ProduceRequest(acks=_ACKS[acks], timeout_ms=30_000, topic_data=topics)
    return _request(ApiKey.PRODUCE, version, correlation_id, request)


def produce_layout(version: int, topic: str) -> ProduceLayout:
    """The layout of the response to `produce_request`."""

    def response(error_code: int) -> bytes:
        part = ProduceResponsePartition(error_code=error_code)
        topics = [ProduceResponseTopic(name=topic, partition_responses=[part])]
        return _response(ApiKey.PRODUCE, version, ProduceResponse(responses=topics))

    return ProduceLayout(len(response(0)), _difference(response(0), response(-1)))


def fetch_request(version: int, topic: str, partition: int, *, bytes_max: int, wait_ms_max: int) -> FetchFrame:
    """A Fetch frame for one partition, without a session, that waits for at least one byte."""

    def request(offset: int) -> bytes:
        part = FetchRequestPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
        topics = [FetchRequestTopic(topic=topic, partitions=[part])]
        message = FetchRequest(max_wait_ms=wait_ms_max, min_bytes=1, max_bytes=bytes_max, topics=topics)
        return _request(ApiKey.FETCH, version, 0, message)

    return FetchFrame(request(0), _difference(request(0), request(-1)))


def fetch_layout(version: int, topic: str) -> FetchLayout:
    """The layout of the response to `fetch_request`."""

    def response(error_code: int = 0, partition_error_code: int = 0, records: bytes | None = b"") -> bytes:
        part = FetchResponsePartition(error_code=partition_error_code, records=records)
        message = FetchResponse(error_code=error_code, responses=[FetchResponseTopic(topic=topic, partitions=[part])])
        return _response(ApiKey.FETCH, version, message)

    good = response()
    errors_at = _difference(good, response(error_code=-1)), _difference(good, response(partition_error_code=-1))
    is_flexible = API[ApiKey.FETCH].response_header_version(version) == 1
    return FetchLayout(errors_at, _difference(good, response(records=None)), is_flexible)


def _request(key: ApiKey, version: int, correlation_id: int, message: Any) -> bytes:
    header = RequestHeader(int(key), version, correlation_id, CLIENT_ID)
    return b"".join(frame_request(header, API[key].encode_request(message, version)))


def _response(key: ApiKey, version: int, message: Any) -> bytes:
    api = API[key]
    return b"".join(frame(0, api.response_header_version(version), api.encode_response(message, version)))


def _difference(one: bytes, other: bytes) -> int:
    """The first position at which two frames of the same length differ."""
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
