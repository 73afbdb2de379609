"""Producers and readers of a simulated cluster. They behave as Kafka's: idempotent, five requests in flight, retries in order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from penstock.address import Address
from penstock.errors import Reason
from penstock.gateways.kafka.errors import CODES
from penstock.limits import MIB
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.records.records import read_records
from penstock.testing.simulation.history import History, TopicPartition
from penstock.testing.simulation.wire_client import ANSWER_SECONDS, Bootstrap, KafkaLink, Lost, linked
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import FetchRequest, FetchRequestPartition, FetchRequestTopic
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponsePartition,
)

PRODUCE_VERSION: Final = 9
PRODUCE_BY_ID_VERSION: Final = 13
FETCH_VERSION: Final = 12
FETCH_BY_ID_VERSION: Final = 13
INIT_VERSION: Final = 4
IN_FLIGHT_MAX: Final = 5
_TIMEOUT_MS: Final = 3_000
BACKOFF_SECONDS: Final = 0.1
_OUT_OF_ORDER: Final = CODES[Reason.OUT_OF_ORDER_SEQUENCE]
_DUPLICATE: Final = CODES[Reason.DUPLICATE_SEQUENCE]
_OUT_OF_RANGE: Final = CODES[Reason.OFFSET_OUT_OF_RANGE]
_FATAL: Final = {
    CODES[Reason.UNKNOWN_PRODUCER_ID]: "does not know the producer",
    CODES[Reason.INVALID_PRODUCER_EPOCH]: "takes the producer for an older one",
    CODES[Reason.CORRUPT_RECORDS]: "calls a batch damaged",
    CODES[Reason.INVALID_RECORD]: "calls a batch invalid",
    CODES[Reason.UNKNOWN]: "has failed",
}
"""Errors that a correct producer never receives."""


class Batch(NamedTuple):
    """Records that are sent together."""

    number: int
    """How many batches were made before it."""
    sequence: int
    values: Sequence[bytes]
    data: bytes


class _UnderWay(NamedTuple):
    batch: Batch
    answer: "asyncio.Future[Any]"
    until: float


class PartitionClient:
    """A client of one partition that works until it is finished."""

    def __init__(
        self, name: str, place: TopicPartition, bootstrap: Bootstrap, history: History, random: Random
    ) -> None:
        self.name: Final = name
        self.place: Final = place
        self._bootstrap = bootstrap
        self._history = history
        self._random = random
        self._is_finishing = False

    def finish(self) -> None:
        """Begin nothing new."""
        self._is_finishing = True

    async def _at_leader(self, work: Callable[[KafkaLink], Awaitable[None]]) -> None:
        """Work over a connection to the leader, if there is one; then pause."""
        try:
            address = await self._bootstrap.leader(self.place)
            if address is not None:
                async with linked(address) as link:
                    await work(link)
        except Lost as lost:
            self._history.note("lost", self.name, lost)
        await asyncio.sleep(BACKOFF_SECONDS)


class SimulatedProducer(PartitionClient):
    """Sends to one partition until it is finished. acks=all, idempotent."""

    def __init__(
        self, name: str, place: TopicPartition, bootstrap: Bootstrap, history: History, random: Random
    ) -> None:
        super().__init__(name, place, bootstrap, history, random)
        self._id = -1
        self._sequence = 0
        self._unacknowledged: deque[Batch] = deque()
        self._woken = asyncio.Event()
        self.is_done = False
        """Whether it is finished and everything is acknowledged."""

    def finish(self) -> None:
        super().finish()
        self._woken.set()

    async def run(self, pause_seconds: float) -> None:
        """Produce."""
        while self._id < 0:
            try:
                await self._init()
            except Lost:
                await asyncio.sleep(BACKOFF_SECONDS)
        making = asyncio.create_task(self._make(pause_seconds))
        while not (self._is_finishing and not self._unacknowledged):
            await self._at_leader(self._send)
        making.cancel()
        self.is_done = True

    async def _init(self) -> None:
        request = InitProducerIdRequest(None, 60_000)
        answer = await self._bootstrap.ask(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request)
        if answer.error_code:
            raise Lost(f"Error {answer.error_code}")
        self._id = answer.producer_id
        self._history.note("producer id", self.name, self._id)

    async def _make(self, pause_seconds: float) -> None:
        number = made = 0
        while not self._is_finishing:
            if len(self._unacknowledged) < 4 * IN_FLIGHT_MAX:
                values = values_to_send(self.name, number, self._random)
                number += len(values)
                data = bytes(
                    builder_of(values).build(producer_id=self._id, producer_epoch=0, base_sequence=self._sequence)
                )
                self._unacknowledged.append(Batch(made, self._sequence, values, data))
                made += 1
                self._sequence += len(values)
                self._history.sends(self.name, self.place, values)
                self._woken.set()
            await asyncio.sleep(self._random.random() * 2 * pause_seconds)

    async def _send(self, link: KafkaLink) -> None:
        """Send everything that is not acknowledged, in order, until something fails."""
        loop = asyncio.get_running_loop()
        under_way: deque[_UnderWay] = deque()
        last = -1
        while True:
            for batch in self._unacknowledged:
                # A leader recognizes only the last few batches as duplicates. So no batch is sent so far after one that may have to be
                # repeated, even if batches in between are acknowledged.
                if batch.sequence > last and batch.number - self._unacknowledged[0].number < IN_FLIGHT_MAX:
                    answer = link.post(ApiKey.PRODUCE, *produce_request(self.place, self._bootstrap, batch.data, -1))
                    answer.add_done_callback(lambda _: self._woken.set())
                    under_way.append(_UnderWay(batch, answer, loop.time() + ANSWER_SECONDS))
                    last = batch.sequence
            if under_way and under_way[0].answer.done():
                if not self._answered(*under_way.popleft()[:2]):
                    break
            elif not under_way and self._is_finishing:
                return
            else:
                self._woken.clear()
                await self._wait(link, under_way[0].until if under_way else None)
        for each in under_way:
            await link.wait(each.answer)
            self._answered(each.batch, each.answer)

    async def _wait(self, link: KafkaLink, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._woken.wait()
        except TimeoutError:
            link.close()
            raise Lost("silence") from None

    def _answered(self, batch: Batch, future: "asyncio.Future[Any]") -> bool:
        answer: ProduceResponsePartition = future.result().responses[0].partition_responses[0]
        code = answer.error_code
        if code in (0, _DUPLICATE):
            offset = answer.base_offset if not code and answer.base_offset >= 0 else None
            self._history.was_acknowledged(self.name, self.place, offset, batch.values)
            self._unacknowledged.remove(batch)
            return True
        self._history.note("refused", self.name, self.place, batch.values[0].decode(), code)
        if code in _FATAL:
            self._history.violate(
                f"the leader of {self.place} {_FATAL[code]} {self.name}, at sequence {batch.sequence}"
            )
        if code == _OUT_OF_ORDER and batch is self._unacknowledged[0]:
            self._history.violate(
                f"the leader of {self.place} lacks what is before sequence {batch.sequence} of {self.name}, which was acknowledged"
            )
        return False


class SimulatedReader:
    """Reads one partition from its beginning. With a rack it reads from a follower there, if the leader redirects it to one."""

    def __init__(
        self, name: str, place: TopicPartition, bootstrap: Bootstrap, history: History, rack: str = ""
    ) -> None:
        self.name: Final = name
        self.place: Final = place
        self._bootstrap = bootstrap
        self._history = history
        self._rack = rack
        self._sent_to: Address | None = None
        """The follower that the leader redirected it to."""
        self.offset = 0
        """The next offset to read."""
        self._connections = 0

    async def run(self) -> None:
        """Read forever."""
        while True:
            try:
                address = await self._bootstrap.leader(self.place)
                if address is not None:
                    await self._read_from(address)
                    while (follower := self._sent_to) is not None:
                        self._sent_to = None
                        await self._read_from(follower, is_leader=False)
            except Lost:
                pass
            await asyncio.sleep(BACKOFF_SECONDS)

    async def _read_from(self, address: Address, *, is_leader: bool = True) -> None:
        async with linked(address) as link:
            self._connections += 1
            while await self._read(link, is_leader):
                pass

    async def _read(self, link: KafkaLink, is_leader: bool) -> bool:
        answer = (await link.call(ApiKey.FETCH, *self._request())).responses[0].partitions[0]
        if answer.error_code:
            self._history.note("not read", self.name, self.place, self.offset, answer.error_code)
            if answer.error_code == _OUT_OF_RANGE and is_leader:
                self._history.violate(
                    f"{self.place} has no offset {self.offset} any more, up to which {self.name} read"
                )
            return False
        if answer.preferred_read_replica >= 0:
            self._sent_to = self._bootstrap.addresses.get(answer.preferred_read_replica)
            self._history.note("sent on", self.name, self.place, answer.preferred_read_replica)
            return False
        self._history.sees_high_watermark((self.name, self._connections), self.place, answer.high_watermark)
        for offset, value in values_of(answer.records or b""):
            if offset >= self.offset:
                self._history.reads(self.name, self.place, offset, value)
                self.offset = offset + 1
        return True

    def _request(self) -> tuple[int, FetchRequest]:
        bootstrap = self._bootstrap
        partition = FetchRequestPartition(
            partition=self.place.partition,
            current_leader_epoch=bootstrap.leader_epoch,
            fetch_offset=self.offset,
            partition_max_bytes=MIB,
        )
        topic = FetchRequestTopic(bootstrap.topic_id, self.place.topic, [partition])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=MIB, topics=[topic], rack_id=self._rack)
        return FETCH_BY_ID_VERSION if bootstrap.is_by_id else FETCH_VERSION, request


def values_to_send(name: str, number: int, random: Random) -> list[bytes]:
    """The next records of a producer."""
    return [f"{name}-{number + each:06d}".encode() for each in range(random.choice((1, 1, 1, 3)))]


def builder_of(values: Sequence[bytes]) -> BatchBuilder:
    """A builder with these records."""
    builder = BatchBuilder()
    for value in values:
        builder.add(1_750_000_000_000, None, value)
    return builder


def produce_request(place: TopicPartition, bootstrap: Bootstrap, data: bytes, acks: int) -> tuple[int, ProduceRequest]:
    """A produce request for a partition, with the topic's name or id, as the bootstrap uses it."""
    partition = ProduceRequestPartition(index=place.partition, records=bytearray(data))
    topic = ProduceRequestTopic(bootstrap.topic_id, place.topic, [partition])
    version = PRODUCE_BY_ID_VERSION if bootstrap.is_by_id else PRODUCE_VERSION
    return version, ProduceRequest(acks=acks, timeout_ms=_TIMEOUT_MS, topic_data=[topic])


def values_of(data: Any) -> list[tuple[int, bytes]]:
    """The offsets and values of the records in some batches."""
    view = memoryview(data)
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(view):
        size = read_header(view, position).size_bytes
        if position + size > len(view):
            break
        records = read_records(view[position : position + size], MIB)
        found += [(record.offset, record.value or b"") for record in records]
        position += size
    return found
