"""Sends prepared batches in order, with sequence numbers and a few requests in flight, without decoding or combining them.

For callers that encode many records at once (the Spark sink) and need the offset of each batch.

Invariant: :meth:`BatchSender.flush` returns every batch since the last flush, in the order of :meth:`BatchSender.send`. A batch
that was sent again because there was no response is stored and returned once.
"""

from struct import Struct
from typing import Final, Self

from penstock.client.cluster import Cluster
from penstock.client.sending import IN_FLIGHT_MAX, DeliveredBatch, OutgoingBatch, Sender
from penstock.records.batch import HEADER_BYTES, set_producer
from penstock.types import Acks

_RECORD_COUNT: Final = Struct(">i")
_RECORD_COUNT_AT: Final = 57


class BatchSender(Sender):
    """Sends batches and returns their offsets. ``send`` waits while ``in_flight_max`` requests are in flight, which bounds the memory."""

    def __init__(
        self,
        cluster: Cluster,
        acks: Acks = Acks.ALL,
        in_flight_max: int = IN_FLIGHT_MAX,
        *,
        auto_create: bool = False,
    ) -> None:
        super().__init__(cluster, acks=acks, idempotent=None, auto_create=auto_create, in_flight_max=in_flight_max)
        self._deliveries: list[tuple[int, DeliveredBatch]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, a flush would raise another error that hides it.
        if kind is None:
            self._wait_for_all()

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        """Send a whole batch (base offset 0, no producer). The caller must not use its buffer afterwards.

        Sets its producer, sequence and checksum. May raise errors of earlier batches, and BatchTooLarge for a batch that does not fit into a request.
        """
        if len(batch) < HEADER_BYTES or _RECORD_COUNT.unpack_from(batch, _RECORD_COUNT_AT)[0] != record_count:
            raise ValueError(f"Not a batch of {record_count} records")
        place = topic, partition
        self._check_size(place, len(batch), record_count)
        # Before the batch gets a sequence number, so that a wrong topic or partition leaves no gap.
        self._leader(place)
        sequence = self._next_sequence(place, record_count)
        if sequence >= 0:
            set_producer(batch, self._producer_id, self._producer_epoch, sequence)
        self._dispatch_all([self._outgoing(place, batch, record_count)])

    def flush(self) -> list[DeliveredBatch]:
        """Wait until all batches are acknowledged, and return their offsets; raises if one could not be delivered."""
        self._wait_for_all()
        # A batch that was sent again may have been acknowledged after later ones.
        delivered, self._deliveries = sorted(self._deliveries), []
        return [delivery for _, delivery in delivered]

    def _delivered(self, batch: OutgoingBatch, base_offset: int) -> None:
        super()._delivered(batch, base_offset)
        self._deliveries.append((batch.number, DeliveredBatch(*batch.place, base_offset, batch.record_count)))
