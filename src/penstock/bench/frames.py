"""Request frames packed by hand, and where in an answer the fields lie that a measurement must check.

Invariant: for one topic name and one version, every successful Produce answer has the same length and layout, so answers are counted
by length and checked by slices, at no cost per record. Versions: Produce 7 and 9, Fetch 11 and 12; the newer of each is what clients
of today send, the older is for brokers that lack flexible versions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
CLIENT_ID = b"penstock-bench"
CORRELATION_AT = 8  # in a request frame, after size, API key and version


class Api(IntEnum):
    """The API keys that the load generator sends."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20


PRODUCE_VERSIONS = (9, 7)
FETCH_VERSIONS = (12, 11)
_PRODUCE_FLEXIBLE = 9
_FETCH_FLEXIBLE = 12


class Acks(IntEnum):
    """What a producer waits for, as on the wire."""

    LEADER = 1
    ALL = -1

    @property
    def label(self) -> str:
        """The value as people write it."""
        return "all" if self is Acks.ALL else "1"


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """Layout of a successful Produce answer, counted from its size field."""

    frame_bytes: int
    error_at: int


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Layout of a Fetch answer for one partition, up to the length of its records."""

    top_error_at: int
    partition_error_at: int
    records_length_at: int
    flexible: bool

    @property
    def head_bytes(self) -> int:
        """Enough of an answer to read the length of its records, whatever that length's own width."""
        return self.records_length_at + 5


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A Fetch frame and where its offset is patched."""

    frame: bytes
    offset_at: int


def uvarint(value: int) -> bytes:
    """An unsigned variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The unsigned variable-length integer at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def string(text: str) -> bytes:
    """A string of the older versions."""
    raw = text.encode()
    return _I16.pack(len(raw)) + raw


def _compact(raw: bytes) -> bytes:
    return uvarint(len(raw) + 1) + raw


def request(api: Api, version: int, correlation_id: int, body: bytes, *, flexible: bool = False) -> bytes:
    """A whole request frame, size included."""
    head = (
        struct.pack(">hhih", api, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID + (b"\x00" if flexible else b"")
    )
    return _I32.pack(len(head) + len(body)) + head + body


def produce_request(
    version: int, correlation_id: int, topic: str, partition: int, acks: Acks, batch: bytes, *, timeout_ms: int = 30_000
) -> bytes:
    """A Produce frame with one batch. The batch lies before the frame's last `produce_tail_bytes` bytes."""
    name = topic.encode()
    if version >= _PRODUCE_FLEXIBLE:
        parts = (
            b"\x00",
            struct.pack(">hi", acks, timeout_ms),
            uvarint(2),
            _compact(name),
            uvarint(2),
            _I32.pack(partition),
        )
        body = b"".join(parts) + _compact(batch) + bytes(produce_tail_bytes(version))
        return request(Api.PRODUCE, version, correlation_id, body, flexible=True)
    head = struct.pack(">hhii", -1, acks, timeout_ms, 1) + _I16.pack(len(name)) + name
    body = head + struct.pack(">iii", 1, partition, len(batch)) + batch
    return request(Api.PRODUCE, version, correlation_id, body)


def produce_tail_bytes(version: int) -> int:
    """What follows the batch in a Produce frame: the empty tag sections of partition, topic and request."""
    return 3 if version >= _PRODUCE_FLEXIBLE else 0


def produce_answer(version: int, topic: str) -> ProduceAnswer:
    """Where things lie in the answer to `produce_request`."""
    name_bytes = len(topic.encode())
    if version >= _PRODUCE_FLEXIBLE:
        error_at = 4 + 4 + 1 + 1 + len(uvarint(name_bytes + 1)) + name_bytes + 1 + 4
        # After the error: offset, append time, log start, no record errors, no message, three tag sections, throttle time.
        return ProduceAnswer(error_at + 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1, error_at)
    error_at = 4 + 4 + 4 + 2 + name_bytes + 4 + 4
    return ProduceAnswer(error_at + 2 + 8 + 8 + 8 + 4, error_at)


def fetch_request(
    version: int, correlation_id: int, topic: str, partition: int, *, answer_bytes_max: int, wait_ms_max: int
) -> FetchRequest:
    """A Fetch frame for one partition, without a session, that waits for one byte at least."""
    name = topic.encode()
    limits = struct.pack(">iiiibii", -1, wait_ms_max, 1, answer_bytes_max, 0, 0, -1)
    # Current leader epoch unknown; then offset, last fetched epoch (flexible only), log start, limit of this partition.
    if version >= _FETCH_FLEXIBLE:
        before = limits + uvarint(2) + _compact(name) + uvarint(2) + struct.pack(">ii", partition, -1)
        after = struct.pack(">iqi", -1, -1, answer_bytes_max) + b"\x00\x00" + uvarint(1) + _compact(b"") + b"\x00"
    else:
        before = limits + struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, -1)
        after = struct.pack(">qi", -1, answer_bytes_max) + _I32.pack(0) + _I16.pack(0)
    flexible = version >= _FETCH_FLEXIBLE
    frame = request(Api.FETCH, version, correlation_id, before + bytes(8) + after, flexible=flexible)
    return FetchRequest(frame, len(frame) - len(after) - 8)


def fetch_answer(version: int, topic: str) -> FetchAnswer:
    """Where things lie in the answer to `fetch_request`."""
    name_bytes = len(topic.encode())
    if version >= _FETCH_FLEXIBLE:
        top_error_at = 4 + 4 + 1 + 4
        error_at = top_error_at + 2 + 4 + 1 + len(uvarint(name_bytes + 1)) + name_bytes + 1 + 4
        # Error, high watermark, stable offset, log start, aborted (null or empty: one byte), preferred replica.
        return FetchAnswer(top_error_at, error_at, error_at + 2 + 8 + 8 + 8 + 1 + 4, flexible=True)
    top_error_at = 4 + 4 + 4
    error_at = top_error_at + 2 + 4 + 4 + 2 + name_bytes + 4 + 4
    return FetchAnswer(top_error_at, error_at, error_at + 2 + 8 + 8 + 8 + 4 + 4, flexible=False)


def records_span(layout: FetchAnswer, answer: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Where the records of a Fetch answer begin, and how many bytes they are."""
    if layout.flexible:
        length, at = read_uvarint(answer, layout.records_length_at)
        return at, length - 1
    (length,) = _I32.unpack_from(answer, layout.records_length_at)
    return layout.records_length_at + 4, length


def create_topics_request(correlation_id: int, topics: list[tuple[str, int]], *, timeout_ms: int = 60_000) -> bytes:
    """CreateTopics 4 with as many replicas as the broker gives unasked; `topics` are names and partition counts."""
    body = _I32.pack(len(topics))
    for name, partitions in topics:
        body += string(name) + struct.pack(">ihii", partitions, -1, 0, 0)
    return request(Api.CREATE_TOPICS, 4, correlation_id, body + struct.pack(">ib", timeout_ms, 0))


def delete_topics_request(correlation_id: int, names: list[str], *, timeout_ms: int = 60_000) -> bytes:
    """DeleteTopics 3."""
    body = _I32.pack(len(names)) + b"".join(string(name) for name in names) + _I32.pack(timeout_ms)
    return request(Api.DELETE_TOPICS, 3, correlation_id, body)


def metadata_request(correlation_id: int, names: list[str]) -> bytes:
    """Metadata 4, creating nothing."""
    body = _I32.pack(len(names)) + b"".join(string(name) for name in names) + b"\x00"
    return request(Api.METADATA, 4, correlation_id, body)


def api_versions_request(correlation_id: int) -> bytes:
    """ApiVersions 0, which every broker answers."""
    return request(Api.API_VERSIONS, 0, correlation_id, b"")


def list_offsets_request(correlation_id: int, topic: str, partitions: list[int]) -> bytes:
    """ListOffsets 1 for the end of some partitions of a topic."""
    body = struct.pack(">ii", -1, 1) + string(topic) + _I32.pack(len(partitions))
    body += b"".join(struct.pack(">iq", partition, -1) for partition in partitions)
    return request(Api.LIST_OFFSETS, 1, correlation_id, body)


class Reader:
    """Reads an answer of the older versions from front to back."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, shape: struct.Struct) -> int:
        (value,) = shape.unpack_from(self._data, self._at)
        self._at += shape.size
        return int(value)

    def i8(self) -> int:
        """One byte."""
        self._at += 1
        return self._data[self._at - 1]

    def i16(self) -> int:
        """Two bytes, signed."""
        return self._take(_I16)

    def i32(self) -> int:
        """Four bytes, signed."""
        return self._take(_I32)

    def i64(self) -> int:
        """Eight bytes, signed."""
        return self._take(_I64)

    def text(self) -> str | None:
        """A string, or None where it is null."""
        length = self.i16()
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at].decode()
