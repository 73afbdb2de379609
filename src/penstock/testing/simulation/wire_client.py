"""Kafka's protocol from a client's side, over the simulated network: connections to nodes, and who leads what."""

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
    """The connection is gone, or was silent for too long: what was asked may have been done."""


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
        """Whether it can be asked."""
        return self._writer is not None

    async def connect(self) -> None:
        """Be connected."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, self._writer = await asyncio.open_connection(*self.address)
        except (OSError, TimeoutError) as error:
            raise Lost(str(error) or "silence") from None
        self._reading = asyncio.create_task(self._read(reader))

    async def call(self, key: ApiKey, version: int, request: msgspec.Struct) -> Any:
        """Ask, and wait."""
        return await self.wait(self.post(key, version, request))

    async def wait(self, answer: "asyncio.Future[Any]") -> Any:
        """For what was asked; a connection that is silent for too long is given up."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(answer)
        except TimeoutError:
            self.close()
            raise Lost("silence") from None

    def post(self, key: ApiKey, version: int, request: msgspec.Struct) -> "asyncio.Future[Any]":
        """Ask."""
        self.tell(key, version, request)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingAnswer(API[key], version, answer))
        return answer

    def tell(self, key: ApiKey, version: int, request: msgspec.Struct) -> None:
        """Say something that nobody answers."""
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
        """Let go."""
        if self._reading is not None:
            self._reading.cancel()
        self._lose()


@asynccontextmanager
async def linked(address: Address) -> AsyncIterator[KafkaLink]:
    """A connection to this node, closed at the end."""
    link = KafkaLink(address)
    await link.connect()
    try:
        yield link
    finally:
        link.close()


class Bootstrap:
    """Finds out who leads a partition, from whichever node answers. With ``topic_id`` it is of that topic alone, not of another that has its name later."""

    def __init__(self, nodes: Sequence[Address], random: Random, topic_id: bytes = UUID_ZERO) -> None:
        self._nodes = nodes
        self._random = random
        self.topic_id: Final = topic_id
        self.leader_epoch = -1
        """The latest that was heard of; a bootstrap is for one partition."""
        self.addresses: dict[int, Address] = {}
        """Of the nodes that were there when somebody was last asked."""

    @property
    def is_by_id(self) -> bool:
        """Whether it goes by the topic's id."""
        return self.topic_id != UUID_ZERO

    async def ask(self, key: ApiKey, version: int, request: msgspec.Struct) -> Any:
        """Ask some node, over a connection of its own."""
        async with linked(self._random.choice(self._nodes)) as link:
            return await link.call(key, version, request)

    async def metadata(self, topic: str) -> MetadataResponse:
        """What some node knows of a topic."""
        wanted = MetadataRequestTopic(self.topic_id, None if self.is_by_id else topic)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        answer: MetadataResponse = await self.ask(ApiKey.METADATA, _METADATA_VERSION, request)
        return answer

    async def leader(self, place: TopicPartition) -> Address | None:
        """Where the leader of a partition listens; None when nobody knows. Who tells of an older leader than is known is not believed."""
        answer = await self.metadata(place.topic)
        self.addresses = {node.node_id: Address(node.host, node.port) for node in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.partition_index == place.partition and partition.leader_epoch >= self.leader_epoch:
                    self.leader_epoch = partition.leader_epoch
                    return self.addresses.get(partition.leader_id)
        return None
