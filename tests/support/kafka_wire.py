"""Kafka's protocol by hand: frames a test makes itself, over a blocking socket or inside the test's own event loop.

No client library stands between: a test decides what is sent, in how many pieces, and when the answers are read.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.records.builder import build_batch
from penstock.records.records import Record, read_records
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.create_topics_generated import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
)
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from penstock.wire.kafka.headers import RequestHeader, decode_response_header, frame_request
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from tests.support.kafka_node import KafkaNode
from tests.support.listeners import plain

NOW_MS = 1_700_000_000_000
SECONDS_MAX = 30.0
"""Whatever a test waits for; no test waits this long unless it fails."""


def encode(key: int, request: Any, version: int, correlation_id: int = 0, client_id: str | None = "raw") -> bytes:
    """A whole request frame."""
    header = RequestHeader(int(key), version, correlation_id, client_id)
    return b"".join(frame_request(header, API[key].encode_request(request, version)))


def decode(key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Correlation id and body of an answer without its length; every byte must be used."""
    api = API[key]
    correlation_id, position = decode_response_header(frame, 0, api.response_header_version(version))
    return correlation_id, api.decode_response(frame, position, version)


def batch(*values: bytes | None, key: bytes | None = b"k", timestamp_ms: int = NOW_MS, **fields: Any) -> bytes:
    """A record batch as a producer sends it."""
    return bytes(build_batch([Record(n, timestamp_ms, key, value) for n, value in enumerate(values)], **fields))


def produce(
    topic: str | bytes, *batches: bytes | None, acks: int = -1, partition: int = 0, timeout_ms: int = 30_000
) -> ProduceRequest:
    """A request of one topic, by name or id, with one partition for each batch."""
    partitions = [ProduceRequestPartition(partition + n, records) for n, records in enumerate(batches)]
    if isinstance(topic, bytes):
        asked = ProduceRequestTopic(topic_id=topic, partition_data=partitions)
    else:
        asked = ProduceRequestTopic(name=topic, partition_data=partitions)
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[asked])


def produced(response: ProduceResponse) -> ProduceResponsePartition:
    """The one partition of an answer."""
    [topic] = response.responses
    [partition] = topic.partition_responses
    return partition


def fetch(
    topic: str | bytes,
    *offsets: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 10_000_000,
    partition: int = 0,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **fields: Any,
) -> FetchRequest:
    """A request of one topic, by name or id, with one partition for each offset; without a session unless told."""
    partitions = [
        FetchRequestPartition(
            partition=partition + n,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for n, offset in enumerate(offsets)
    ]
    if isinstance(topic, bytes):
        asked = FetchRequestTopic(topic_id=topic, partitions=partitions)
    else:
        asked = FetchRequestTopic(topic=topic, partitions=partitions)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=[asked] if offsets else [], **fields
    )


def fetched(response: FetchResponse) -> FetchResponsePartition:
    """The one partition of an answer."""
    [topic] = response.responses
    [partition] = topic.partitions
    return partition


def values(records: Any) -> list[bytes | None]:
    """The values in batches back to back."""
    return [record.value for record in opened(records)]


def opened(records: Any) -> list[Record]:
    """The records in batches back to back."""
    data = bytes(records or b"")
    found: list[Record] = []
    while data:
        size = 12 + struct.unpack_from(">i", data, 8)[0]
        found += read_records(data[:size], 100_000_000)
        data = data[size:]
    return found


def create(name: str, partitions: int = 1, **configs: str) -> CreateTopicsRequest:
    """A topic; configs with underscores for dots."""
    wanted = [CreateTopicsRequestConfig(key.replace("_", "."), value) for key, value in configs.items()]
    return CreateTopicsRequest([CreateTopicsRequestTopic(name, partitions, 1, [], wanted)], timeout_ms=10_000)


async def until(check: Callable[[], object]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(SECONDS_MAX):
        while not check():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


class RawClient:
    """A blocking connection. ``receive`` gives the frames as they come."""

    def __init__(self, bootstrap: str, *, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.socket(socket.AF_INET)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(SECONDS_MAX)
        self.socket.connect((host, int(port)))
        self._next_id = 0

    def send(self, key: int, request: Any, version: int) -> int:
        """Send a request; its correlation id."""
        self._next_id += 1
        self.socket.sendall(encode(key, request, version, self._next_id))
        return self._next_id

    def receive(self) -> bytes:
        """The next frame, without its length; EOFError when the broker closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def answer(self, key: int, version: int) -> tuple[int, Any]:
        """Correlation id and body of the next answer."""
        return decode(key, version, self.receive())

    def ask(self, key: int, request: Any, version: int) -> Any:
        """Send a request and read its answer."""
        sent = self.send(key, request, version)
        correlation_id, response = self.answer(key, version)
        assert correlation_id == sent
        return response

    def closed_by_peer(self) -> bool:
        """Wait for the broker to close; False when bytes come instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Go without a good-bye: the broker sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


class WireNode(KafkaNode):
    """A node that listens, in the test's own event loop, so that a test sees both ends."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.gateway = KafkaGateway(self.broker, self.gateway.turn, self.settings.limits)
        listener = plain("kafka")
        self.address = listener.address
        await self.gateway.start(listener)
        self._stack.push_async_callback(self.gateway.stop, 1.0)
        return self

    async def connect(self) -> "WireClient":
        """A client, closed with the node."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port, limit=1 << 28)
        client = WireClient(reader, writer)
        self._stack.push_async_callback(client.close)
        return client

    def connections(self) -> list[KafkaConnection]:
        """The broker's side of all connections."""
        return list(self.gateway._connections)


class WireClient:
    """A connection in the test's event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._next_id = 0

    def send(self, key: int, request: Any, version: int, *, client_id: str | None = "raw") -> int:
        """Send a request; its correlation id."""
        self._next_id += 1
        self.writer.write(encode(key, request, version, self._next_id, client_id))
        return self._next_id

    def send_all(self, requests: Iterable[tuple[int, Any, int]]) -> list[int]:
        """Many requests in one write; their correlation ids."""
        sent = []
        frames = []
        for key, request, version in requests:
            self._next_id += 1
            sent.append(self._next_id)
            frames.append(encode(key, request, version, self._next_id))
        self.writer.write(b"".join(frames))
        return sent

    async def receive(self) -> bytes:
        """The next frame, without its length; IncompleteReadError or ConnectionError when the broker closed."""
        async with asyncio.timeout(SECONDS_MAX):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def answer(self, key: int, version: int) -> tuple[int, Any]:
        """Correlation id and body of the next answer."""
        return decode(key, version, await self.receive())

    async def ask(self, key: int, request: Any, version: int) -> Any:
        """Send a request and read its answer."""
        sent = self.send(key, request, version)
        correlation_id, response = await self.answer(key, version)
        assert correlation_id == sent
        return response

    async def closed_by_peer(self) -> bool:
        """Wait for the broker to close; False when bytes come instead."""
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        """Good-bye; harmless when the broker was quicker."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


PRODUCE, FETCH, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA
