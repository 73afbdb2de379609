"""Sends records: gathers them into a batch per partition, and keeps a few requests under way.

There is no linger and no background thread: a batch leaves when it is full, or at :meth:`Producer.flush`. With acks=all the
producer is idempotent unless told otherwise, so that trying again never writes a batch twice and never reorders.

Invariant: batches of one partition are numbered, sent and sent again in the order in which their records were given. So
that holds without idempotence too, one request at a time is under way then; with it, up to five (the broker remembers five).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from time import time
from typing import Final, NamedTuple, Self

from penstock.address import Address
from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.connection import Connection, Ticket
from penstock.client.errors import (
    DUPLICATE_SEQUENCE_NUMBER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    BrokerRefused,
    ClientError,
    ConnectionLost,
    RequestTimeout,
    check,
)
from penstock.limits import KIB, MIB
from penstock.records.batch import Compression
from penstock.records.builder import NO_SEQUENCE, BatchBuilder
from penstock.records.partitioner import RoundRobin, partition_for_key
from penstock.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)

BATCH_BYTES: Final = 900 * KIB
"""Below the broker's default max.message.bytes, with room for what a codec may add."""
BUFFER_BYTES_MAX: Final = 32 * MIB
IN_FLIGHT_MAX: Final = 5
NAMES_VERSION_MAX: Final = 12
"""Later versions name topics by their ids."""
SEQUENCE_SPAN: Final = 2**31

Headers = Sequence[tuple[str, bytes | None]]


class Acks(IntEnum):
    """What a produce waits for."""

    NONE = 0
    LEADER = 1
    ALL = -1


class Delivery(NamedTuple):
    """A batch that was acknowledged; with acks=0 the offset is -1, for nobody said."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class _Batch:
    place: TopicPartition
    data: bytearray
    record_count: int


@dataclass(frozen=True, slots=True)
class _Flight:
    connection: Connection
    ticket: Ticket
    batches: list[_Batch]


class Producer:
    """Records in, batches out. Not safe to share between threads."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: Acks = Acks.ALL,
        compression: Compression = Compression.NONE,
        idempotent: bool | None = None,
        batch_bytes: int = BATCH_BYTES,
        auto_create: bool = True,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._compression = compression
        self._idempotent = acks is Acks.ALL if idempotent is None else idempotent
        if self._idempotent and acks is not Acks.ALL:
            raise ValueError("an idempotent producer needs acks=all")
        self._batch_bytes = batch_bytes
        self._auto_create = auto_create
        self._on_delivery = on_delivery
        self._builders: dict[TopicPartition, BatchBuilder] = {}
        self._buffered_bytes = 0
        self._in_flight: deque[_Flight] = deque()
        self._round_robin: dict[str, RoundRobin] = {}
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_EPOCH
        self._sequences: dict[TopicPartition, int] = {}
        self.records_sent = 0
        """Records acknowledged (or, with acks=0, handed to the socket)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error flushing would raise another one over it.
        if kind is None:
            self.flush()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Take a record, and send what is full; returns the partition. Errors of earlier records may come up here."""
        if partition is None:
            partition = self._choose_partition(topic, key)
        place = (topic, partition)
        builder = self._builders.get(place)
        if builder is None:
            # Asked for now, so that a wrong topic or partition is told with its first record.
            self._cluster.leader_address(topic, partition, auto_create=self._auto_create)
            builder = self._builders[place] = BatchBuilder()
        size_before = builder.size_bytes
        builder.add(int(time() * 1000) if timestamp_ms is None else timestamp_ms, key, value, headers)
        self._buffered_bytes += builder.size_bytes - size_before
        if builder.size_bytes >= self._batch_bytes:
            self._dispatch([place])
        elif self._buffered_bytes >= BUFFER_BYTES_MAX:
            self._dispatch(list(self._builders))
        return partition

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> tuple[int, int]:
        """Send one record and wait; its partition and offset."""
        self.flush()
        offsets: list[int] = []
        before, self._on_delivery = self._on_delivery, lambda delivery: offsets.append(delivery.base_offset)
        try:
            chosen = self.send(topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
            self.flush()
        finally:
            self._on_delivery = before
        return chosen, offsets[-1]

    def flush(self) -> None:
        """Return once everything given is acknowledged; raises what could not be delivered."""
        self._dispatch(list(self._builders))
        while self._in_flight:
            self._land()

    def _choose_partition(self, topic: str, key: bytes | None) -> int:
        count = len(self._cluster.topic(topic, auto_create=self._auto_create).partitions)
        if key:
            return partition_for_key(key, count)
        return self._round_robin.setdefault(topic, RoundRobin()).partition(count)

    # Sending

    def _dispatch(self, places: Sequence[TopicPartition]) -> None:
        by_leader: dict[Address, list[_Batch]] = {}
        for place in places:
            builder = self._builders.pop(place)
            self._buffered_bytes -= builder.size_bytes
            batch = self._build(place, builder)
            by_leader.setdefault(self._cluster.leader_address(*place, auto_create=self._auto_create), []).append(batch)
        for address, batches in by_leader.items():
            while len(self._in_flight) >= (IN_FLIGHT_MAX if self._idempotent else 1):
                self._land()
            try:
                self._send(self._cluster.connection_to(address), batches)
            except ClientError as error:
                self._recover(error, batches)

    def _build(self, place: TopicPartition, builder: BatchBuilder) -> _Batch:
        sequence = NO_SEQUENCE
        if self._idempotent:
            self._ensure_producer_id()
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = (sequence + builder.count) % SEQUENCE_SPAN
        data = builder.build(
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        return _Batch(place, data, builder.count)

    def _send(self, connection: Connection, batches: list[_Batch]) -> None:
        topics: dict[str, list[ProduceRequestPartition]] = {}
        for batch in batches:
            entry = ProduceRequestPartition(index=batch.place[1], records=batch.data)
            topics.setdefault(batch.place[0], []).append(entry)
        request = ProduceRequest(
            acks=int(self._acks),
            timeout_ms=self._cluster.timeout_ms,
            topic_data=[ProduceRequestTopic(name=name, partition_data=entries) for name, entries in topics.items()],
        )
        answered = self._acks is not Acks.NONE
        ticket = connection.send(request, version_max=NAMES_VERSION_MAX, answered=answered)
        if answered:
            self._in_flight.append(_Flight(connection, ticket, batches))
        else:
            for batch in batches:
                self._delivered(batch, NO_OFFSET)

    # Landing

    def _land(self) -> None:
        """Wait for the oldest request under way; send again what a moment may cure."""
        flight = self._in_flight.popleft()
        try:
            failed = self._settle(flight)
        except (ConnectionLost, RequestTimeout) as error:
            self._recover(error, flight.batches)
            return
        if failed:
            self._recover(failed[0][1], [batch for batch, _ in failed])

    def _settle(self, flight: _Flight) -> list[tuple[_Batch, BrokerRefused]]:
        """Take the answer in; what it refused comes back."""
        answer = flight.connection.receive(flight.ticket, ProduceResponse)
        results: dict[TopicPartition, ProduceResponsePartition] = {
            (topic.name, part.index): part for topic in answer.responses for part in topic.partition_responses
        }
        failed: list[tuple[_Batch, BrokerRefused]] = []
        for batch in flight.batches:
            result = results[batch.place]
            if result.error_code in (0, DUPLICATE_SEQUENCE_NUMBER):
                self._delivered(batch, result.base_offset)
            else:
                topic, partition = batch.place
                failed.append((batch, BrokerRefused(result.error_code, f"{topic}/{partition}", result.error_message)))
        return failed

    def _recover(self, error: ClientError, batches: list[_Batch]) -> None:
        """Land everything, then send what failed again, one request at a time and in order."""
        retriable = error.retriable and (self._idempotent or not isinstance(error, ConnectionLost))
        if not retriable:
            raise self._abandoned(error)
        while self._in_flight:
            flight = self._in_flight.popleft()
            try:
                refused = self._settle(flight)
            except (ConnectionLost, RequestTimeout):
                batches = [*batches, *flight.batches]
                continue
            for batch, refusal in refused:
                # A gap is what the batches behind a failed one must run into; it closes when that one is sent again.
                if not refusal.retriable and refusal.code != OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise self._abandoned(refusal)
                batches = [*batches, batch]
        for batch in batches:
            self._cluster.retry(partial(self._send_alone, batch), unknown_topics=self._auto_create)

    def _abandoned(self, error: ClientError) -> ClientError:
        # Answers still on their way would be taken for those of later requests.
        for flight in self._in_flight:
            flight.connection.close()
        self._in_flight.clear()
        return error

    def _send_alone(self, batch: _Batch) -> None:
        address = self._cluster.leader_address(*batch.place, auto_create=self._auto_create)
        self._send(self._cluster.connection_to(address), [batch])
        flight = self._in_flight.popleft()
        for _, refusal in self._settle(flight):
            raise refusal

    def _delivered(self, batch: _Batch, base_offset: int) -> None:
        self.records_sent += batch.record_count
        if self._on_delivery is not None:
            self._on_delivery(Delivery(*batch.place, base_offset, batch.record_count))

    def _ensure_producer_id(self) -> None:
        if self._producer_id != NO_PRODUCER_ID:
            return
        from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest, InitProducerIdResponse

        def attempt() -> None:
            request = InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=60_000,
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_EPOCH,
            )
            answer = self._cluster.any_connection().call(request, InitProducerIdResponse)
            check(answer.error_code, "producer id")
            self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch

        self._cluster.retry(attempt)
