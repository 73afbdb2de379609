"""Sends batches with several requests in flight, and sends them again after a failure.

With acks=all, a sender is idempotent by default, so that a retry never writes a batch twice or reorders batches.

Invariant: the batches of one partition are numbered, sent and sent again in their order. Without idempotence, this allows only one
request in flight; with it, up to five (the broker remembers five).
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from penstock.records.batch import NO_SEQUENCE
from penstock.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID, Acks
from penstock.wire.kafka import produce_generated as wire

IN_FLIGHT_MAX: Final = 5
NAMES_VERSION_MAX: Final = 12
"""Later versions name topics by their ids."""
SEQUENCE_SPAN: Final = 2**31
BATCH_BYTES_MAX: Final = REQUEST_BYTES_MAX - 4 * KIB
"""The largest batch that fits into a request with its header and names."""
_REQUIRED_ACKS: Final = {Acks.NONE: 0, Acks.LEADER: 1, Acks.ALL: -1}


class DeliveredBatch(NamedTuple):
    """A batch that was acknowledged; with acks=0, its offset is not known and -1."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch that is not acknowledged yet."""

    place: TopicPartition
    data: bytearray
    record_count: int
    number: int
    """Its number among all batches of the sender."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A request in flight."""

    connection: Connection
    ticket: Ticket
    batches: list[OutgoingBatch]


class Sender:
    """Sends batches and receives their acknowledgements. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: Acks,
        idempotent: bool | None,
        auto_create: bool,
        in_flight_max: int = IN_FLIGHT_MAX,
        on_delivery: Callable[[DeliveredBatch], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._idempotent = acks is Acks.ALL if idempotent is None else idempotent
        if self._idempotent and acks is not Acks.ALL:
            raise ValueError("An idempotent producer needs acks=all")
        if not 1 <= in_flight_max <= IN_FLIGHT_MAX:
            raise ValueError(f"From 1 to {IN_FLIGHT_MAX} requests can be in flight, not {in_flight_max}")
        self._in_flight_max = in_flight_max if self._idempotent else 1
        self._auto_create = auto_create
        self._on_delivery = on_delivery
        self._in_flight: deque[_InFlight] = deque()
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_EPOCH
        self._sequences: dict[TopicPartition, int] = {}
        self._batches_given = 0
        self.records_sent = 0
        """Records acknowledged, or with acks=0, written to the socket."""

    def _delivered(self, batch: OutgoingBatch, base_offset: int) -> None:
        """Called for each acknowledged batch."""
        self.records_sent += batch.record_count
        if self._on_delivery is not None:
            self._on_delivery(DeliveredBatch(*batch.place, base_offset, batch.record_count))

    def _next_sequence(self, place: TopicPartition, record_count: int) -> int:
        """The sequence number of the first record of the next batch. Requests a producer id first, if there is none yet."""
        if not self._idempotent:
            return NO_SEQUENCE
        self._ensure_producer_id()
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = (sequence + record_count) % SEQUENCE_SPAN
        return sequence

    def _check_size(self, place: TopicPartition, size_bytes: int, record_count: int) -> None:
        """Refuse a batch for which a broker would close the connection, since it would be sent again and again."""
        if size_bytes > BATCH_BYTES_MAX:
            topic, partition = place
            raise BatchTooLarge(f"{topic}/{partition}", record_count, size_bytes, BATCH_BYTES_MAX)

    # Sending

    def _leader(self, place: TopicPartition) -> Address:
        """The address of the partition's leader. Waits while there is none; a wrong topic or partition raises at once."""
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
            # The batches of a broken connection are sent again first, to keep the order.
            while len(self._in_flight) >= self._in_flight_max or any(
                not request.connection.is_open for request in self._in_flight
            ):
                self._wait_for_oldest()
            try:
                self._send(self._cluster.connection_to(address), sent)
            except ClientError as error:
                self._recover(error, sent)

    def _send(self, connection: Connection, batches: list[OutgoingBatch]) -> None:
        topics: dict[str, list[wire.ProduceRequestPartition]] = {}
        for batch in batches:
            entry = wire.ProduceRequestPartition(index=batch.place[1], records=batch.data)
            topics.setdefault(batch.place[0], []).append(entry)
        request = wire.ProduceRequest(
            acks=_REQUIRED_ACKS[self._acks],
            timeout_ms=self._cluster.timeout_ms,
            topic_data=[
                wire.ProduceRequestTopic(name=name, partition_data=entries) for name, entries in topics.items()
            ],
        )
        answered = self._acks is not Acks.NONE
        ticket = connection.send(request, version_max=NAMES_VERSION_MAX, answered=answered)
        if answered:
            self._in_flight.append(_InFlight(connection, ticket, batches))
        else:
            for batch in batches:
                self._delivered(batch, NO_OFFSET)

    # Acknowledgements

    def _wait_for_all(self) -> None:
        """Wait until everything that was sent is acknowledged; raises if a batch cannot be delivered."""
        while self._in_flight:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        """Wait for the oldest request in flight; send its batches again after a temporary failure."""
        request = self._in_flight.popleft()
        try:
            failed = self._settle(request)
        except (ConnectionLost, RequestTimeout) as error:
            self._recover(error, request.batches)
            return
        if failed:
            self._recover(failed[0][1], [batch for batch, _ in failed])

    def _settle(self, request: _InFlight) -> list[tuple[OutgoingBatch, BrokerRefused]]:
        """Receive the response; the batches that were refused are returned."""
        answer = request.connection.receive(request.ticket, wire.ProduceResponse)
        results: dict[TopicPartition, wire.ProduceResponsePartition] = {
            (topic.name, part.index): part for topic in answer.responses for part in topic.partition_responses
        }
        failed: list[tuple[OutgoingBatch, BrokerRefused]] = []
        for batch in request.batches:
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
        """Wait for everything in flight, then send the failed batches again, one request at a time and in order."""
        # A leader that is down has stored nothing, and another may be elected soon.
        is_away = isinstance(error, CannotConnect) and not isinstance(error, NotKafka)
        retriable = error.retriable and (self._idempotent or not isinstance(error, ConnectionLost))
        if not retriable and not is_away:
            raise self._abandoned(error)
        while self._in_flight:
            request = self._in_flight.popleft()
            try:
                refused = self._settle(request)
            except (ConnectionLost, RequestTimeout):
                batches = [*batches, *request.batches]
                continue
            for batch, refusal in refused:
                # Batches after a failed one are out of order until the failed one is sent again.
                if not refusal.retriable and refusal.code != OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise self._abandoned(refusal)
                batches = [*batches, batch]
        # In order, since a broker accepts any batch of a new producer as the first one.
        for batch in sorted(batches, key=lambda each: each.number):
            self._cluster.retry(
                partial(self._send_alone, batch), unknown_topics=self._auto_create, lost=self._idempotent
            )

    def _abandoned(self, error: ClientError) -> ClientError:
        # Responses that are still in flight would be taken for those of later requests.
        for request in self._in_flight:
            request.connection.close()
        self._in_flight.clear()
        return error

    def _send_alone(self, batch: OutgoingBatch) -> None:
        address = self._cluster.leader_address(*batch.place, auto_create=self._auto_create)
        self._send(self._cluster.connection_to(address), [batch])
        if self._acks is Acks.NONE:
            return
        for _, refusal in self._settle(self._in_flight.popleft()):
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
