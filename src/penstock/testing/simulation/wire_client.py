"""A Kafka client on the simulated network: connections to nodes, and the leaders of partitions."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from penstock.address import Address
from penstock.testing.simulation.history import TopicPartition
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_frame_size, decode_response_header, frame_request
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.kafka.primitives import UUID_ZERO

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 4.0
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
_METADATA_VERSION: Final = 12


class Lost(Exception):
    """The connection is lost, or a request timed out: the outcome is unknown."""


class _PendingAnswer(NamedTuple):
    api: Api
    version: int
    answer: "asyncio.Future[Any]"


class KafkaLink:
    """One connection to one node."""

    def __init__(self, address: Address) -> None:
        self.address: Final = address
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: deque[_PendingAnswer] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._correlation_id = 0

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._writer is not None

    async def connect(self) -> None:
        """Connect."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, self._writer = await asyncio.open_connection(*self.address)
        except (OSError, TimeoutError) as error:
            raise Lost(str(error) or "silence") from None
        self._reading = asyncio.create_task(self._read(reader))

    async def call(self, key: ApiKey, version: int, request: msgspec.Struct) -> Any:
        """Send a request and wait for the response."""
        return await self.wait(self.post(key, version, request))

    async def wait(self, answer: "asyncio.Future[Any]") -> Any:
        """Wait for a response; after a timeout the connection is closed."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(answer)
        except TimeoutError:
            self.close()
            raise Lost("silence") from None

    def post(self, key: ApiKey, version: int, request: msgspec.Struct) -> "asyncio.Future[Any]":
        """Send a request."""
        self.tell(key, version, request)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingAnswer(API[key], version, answer))
        return answer

    def tell(self, key: ApiKey, version: int, request: msgspec.Struct) -> None:
        """Send a request without a response."""
        if self._writer is None:
            raise Lost("closed")
        self._correlation_id += 1
        header = RequestHeader(int(key), version, self._correlation_id, "simulated")
        self._writer.writelines(frame_request(header, API[key].encode_request(request, version)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = decode_frame_size(await reader.readexactly(4), 0, _FRAME_BYTES_MAX)
                body = memoryview(await reader.readexactly(size))
                api, version, answer = self._waiting.popleft()
                _, position = decode_response_header(body, 0, api.response_header_version(version))
                message = api.decode_response(body, position, version)
                if not answer.done():
                    answer.set_result(message)
        except (OSError, EOFError):
            self._lose()

    def _lose(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.answer.done():
                each.answer.set_exception(Lost("the connection is gone"))
                each.answer.exception()

    def close(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
        self._lose()


@asynccontextmanager
async def linked(address: Address) -> AsyncIterator[KafkaLink]:
    """A connection to this node, closed at the end of the block."""
    link = KafkaLink(address)
    await link.connect()
    try:
        yield link
    finally:
        link.close()


class Bootstrap:
    """Finds the leader of a partition by asking random nodes. With ``topic_id`` only of that topic, not of a later one with its name."""

    def __init__(self, nodes: Sequence[Address], random: Random, topic_id: bytes = UUID_ZERO) -> None:
        self._nodes = nodes
        self._random = random
        self.topic_id: Final = topic_id
        self.leader_epoch = -1
        """The latest known epoch; a bootstrap is for one partition."""
        self.addresses: dict[int, Address] = {}
        """The nodes in the last response."""

    @property
    def is_by_id(self) -> bool:
        """Whether it uses the topic's id."""
        return self.topic_id != UUID_ZERO

    async def ask(self, key: ApiKey, version: int, request: msgspec.Struct) -> Any:
        """Send a request to a random node, over a new connection."""
        async with linked(self._random.choice(self._nodes)) as link:
            return await link.call(key, version, request)

    async def metadata(self, topic: str) -> MetadataResponse:
        """The metadata of a topic, from a random node."""
        wanted = MetadataRequestTopic(self.topic_id, None if self.is_by_id else topic)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        answer: MetadataResponse = await self.ask(ApiKey.METADATA, _METADATA_VERSION, request)
        return answer

    async def leader(self, place: TopicPartition) -> Address | None:
        """The address of the leader; None if it is unknown. A response with an older leader epoch is ignored."""
        answer = await self.metadata(place.topic)
        self.addresses = {node.node_id: Address(node.host, node.port) for node in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.partition_index == place.partition and partition.leader_epoch >= self.leader_epoch:
                    self.leader_epoch = partition.leader_epoch
                    return self.addresses.get(partition.leader_id)
        return None
