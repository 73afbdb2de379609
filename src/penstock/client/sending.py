"""Requests under way: what every sender of batches has in common, however its batches come about.

With acks=all a sender is idempotent unless told otherwise, so that trying again never writes a batch twice and never reorders.

Invariant: batches of one partition are numbered, sent and sent again in the order in which they were given. So that holds
without idempotence too, one request at a time is under way then; with it, up to five (the broker remembers five).
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from penstock.address import Address
from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.connection import Connection, Ticket
from penstock.client.errors import (
    DUPLICATE_SEQUENCE_NUMBER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    BatchTooLarge,
    BrokerRefused,
    CannotConnect,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimeout,
    check,
)
from penstock.limits import KIB, REQUEST_BYTES_MAX
from penstock.records.builder import NO_SEQUENCE
from penstock.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)

IN_FLIGHT_MAX: Final = 5
NAMES_VERSION_MAX: Final = 12
"""Later versions name topics by their ids."""
SEQUENCE_SPAN: Final = 2**31
BATCH_BYTES_MAX: Final = REQUEST_BYTES_MAX - 4 * KIB
"""What a request of the largest size has room for, beside its header and the names in it."""


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
class OutgoingBatch:
    """A batch on its way."""

    place: TopicPartition
    data: bytearray
    record_count: int
    number: int
    """Among all of its sender's."""


@dataclass(frozen=True, slots=True)
class _Flight:
    connection: Connection
    ticket: Ticket
    batches: list[OutgoingBatch]


class Sender:
    """Batches out, acknowledgements in. Not safe to share between threads."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: Acks,
        idempotent: bool | None,
        auto_create: bool,
        in_flight_max: int = IN_FLIGHT_MAX,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._idempotent = acks is Acks.ALL if idempotent is None else idempotent
        if self._idempotent and acks is not Acks.ALL:
            raise ValueError("an idempotent producer needs acks=all")
        if not 1 <= in_flight_max <= IN_FLIGHT_MAX:
            raise ValueError(f"from 1 to {IN_FLIGHT_MAX} requests can be in flight, not {in_flight_max}")
        self._in_flight_max = in_flight_max if self._idempotent else 1
        self._auto_create = auto_create
        self._on_delivery = on_delivery
        self._in_flight: deque[_Flight] = deque()
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_EPOCH
        self._sequences: dict[TopicPartition, int] = {}
        self._batches_given = 0
        self.records_sent = 0
        """Records acknowledged (or, with acks=0, handed to the socket)."""

    def _delivered(self, batch: OutgoingBatch, base_offset: int) -> None:
        """A batch is acknowledged."""
        self.records_sent += batch.record_count
        if self._on_delivery is not None:
            self._on_delivery(Delivery(*batch.place, base_offset, batch.record_count))

    def _next_sequence(self, place: TopicPartition, record_count: int) -> int:
        """The number of the next batch's first record, and who sends it is known."""
        if not self._idempotent:
            return NO_SEQUENCE
        self._ensure_producer_id()
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = (sequence + record_count) % SEQUENCE_SPAN
        return sequence

    def _check_size(self, place: TopicPartition, size_bytes: int, record_count: int) -> None:
        """Refuse what a broker would hang up on: that looks like a broken connection, and would be tried again and again."""
        if size_bytes > BATCH_BYTES_MAX:
            topic, partition = place
            raise BatchTooLarge(f"{topic}/{partition}", record_count, size_bytes, BATCH_BYTES_MAX)

    # Sending

    def _leader(self, place: TopicPartition) -> Address:
        """Where the partition's leader listens; waited for while there is none. A wrong topic or partition is told at once."""
        return self._cluster.retry(partial(self._cluster.leader_address, *place, auto_create=self._auto_create))

    def _outgoing(self, place: TopicPartition, data: bytearray, record_count: int) -> OutgoingBatch:
        """The next batch."""
        self._batches_given += 1
        return OutgoingBatch(place, data, record_count, self._batches_given)

    def _dispatch_all(self, batches: Iterable[OutgoingBatch]) -> None:
        by_leader: dict[Address, list[OutgoingBatch]] = {}
        for batch in batches:
            by_leader.setdefault(self._leader(batch.place), []).append(batch)
        for address, sent in by_leader.items():
            # What a broken connection took with it is sent again first, or this would come before it.
            while len(self._in_flight) >= self._in_flight_max or any(
                not flight.connection.is_open for flight in self._in_flight
            ):
                self._land()
            try:
                self._send(self._cluster.connection_to(address), sent)
            except ClientError as error:
                self._recover(error, sent)

    def _send(self, connection: Connection, batches: list[OutgoingBatch]) -> None:
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

    def _land_all(self) -> None:
        """Return once everything that was sent is acknowledged; raises what could not be delivered."""
        while self._in_flight:
            self._land()

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

    def _settle(self, flight: _Flight) -> list[tuple[OutgoingBatch, BrokerRefused]]:
        """Take the answer in; what it refused comes back."""
        answer = flight.connection.receive(flight.ticket, ProduceResponse)
        results: dict[TopicPartition, ProduceResponsePartition] = {
            (topic.name, part.index): part for topic in answer.responses for part in topic.partition_responses
        }
        failed: list[tuple[OutgoingBatch, BrokerRefused]] = []
        for batch in flight.batches:
            result = results[batch.place]
            if result.error_code in (0, DUPLICATE_SEQUENCE_NUMBER):
                self._delivered(batch, result.base_offset)
            else:
                topic, partition = batch.place
                what = f"{topic}/{partition}"
                refusal = BrokerRefused(result.error_code, what, result.error_message, in_metadata=True)
                failed.append((batch, refusal))
        return failed

    def _recover(self, error: ClientError, batches: list[OutgoingBatch]) -> None:
        """Land everything, then send what failed again, one request at a time and in order."""
        # A leader that is not there has taken nothing, and another may soon lead.
        is_away = isinstance(error, CannotConnect) and not isinstance(error, NotKafka)
        retriable = error.retriable and (self._idempotent or not isinstance(error, ConnectionLost))
        if not retriable and not is_away:
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
        # A broker that has seen none of them yet would take a later one for the first.
        for batch in sorted(batches, key=lambda each: each.number):
            self._cluster.retry(
                partial(self._send_alone, batch), unknown_topics=self._auto_create, lost=self._idempotent
            )

    def _abandoned(self, error: ClientError) -> ClientError:
        # Answers still on their way would be taken for those of later requests.
        for flight in self._in_flight:
            flight.connection.close()
        self._in_flight.clear()
        return error

    def _send_alone(self, batch: OutgoingBatch) -> None:
        address = self._cluster.leader_address(*batch.place, auto_create=self._auto_create)
        self._send(self._cluster.connection_to(address), [batch])
        if self._acks is Acks.NONE:
            return
        flight = self._in_flight.popleft()
        for _, refusal in self._settle(flight):
            raise refusal

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
