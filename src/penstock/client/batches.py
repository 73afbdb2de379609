"""Sends prepared batches in order, with sequence numbers and a few requests in flight, without decoding or combining them.

For callers that encode many records at once (the Spark sink) and need the offset of each batch.

Invariant: :meth:`BatchSender.flush` tells of every batch since the last one, in the order of :meth:`BatchSender.send`; a batch
that was sent again for want of an answer is told, and stored, once.
"""

from struct import Struct
from typing import Final, Self

from penstock.client.cluster import Cluster
from penstock.client.sending import IN_FLIGHT_MAX, Acks, Delivery, OutgoingBatch, Sender
from penstock.records.batch import HEADER_BYTES, set_producer

__all__ = ["Acks", "BatchSender", "Delivery"]

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
        self._deliveries: list[tuple[int, Delivery]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error flushing would raise another one over it.
        if kind is None:
            self._land_all()

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        """Take one whole batch (base offset 0, no producer), which is the sender's own from now on.

        Its producer, its sequence and its checksum are set. Errors of earlier batches may come up here.
        ``BatchTooLarge`` at once for one that no request can carry.
        """
        if len(batch) < HEADER_BYTES or _RECORD_COUNT.unpack_from(batch, _RECORD_COUNT_AT)[0] != record_count:
            raise ValueError(f"this is not a batch of {record_count} records")
        place = topic, partition
        self._check_size(place, len(batch), record_count)
        # Asked for now, so that a wrong topic or partition is told before the batch has a number.
        self._leader(place)
        sequence = self._next_sequence(place, record_count)
        if sequence >= 0:
            set_producer(batch, self._producer_id, self._producer_epoch, sequence)
        self._dispatch_all([self._outgoing(place, batch, record_count)])

    def flush(self) -> list[Delivery]:
        """Wait until all batches are acknowledged, and return their offsets; raises if one could not be delivered."""
        self._land_all()
        # A batch that was sent again came in behind those that were sent after it.
        delivered, self._deliveries = sorted(self._deliveries), []
        return [delivery for _, delivery in delivered]

    def _delivered(self, batch: OutgoingBatch, base_offset: int) -> None:
        super()._delivered(batch, base_offset)
        self._deliveries.append((batch.number, Delivery(*batch.place, base_offset, batch.record_count)))
