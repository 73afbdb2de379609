"""Sends records: collects them into a batch per partition, with a few requests in flight (``sending.py``).

There is no linger time and no background thread: a batch is sent when it is full, or by :meth:`Producer.flush`.
"""

from collections.abc import Callable, Sequence
from time import time
from typing import Final, Self

from penstock.client.cluster import Cluster, TopicPartition
from penstock.client.sending import DeliveredBatch, OutgoingBatch, Sender
from penstock.limits import KIB, MIB
from penstock.records.batch import Compression
from penstock.records.builder import BatchBuilder
from penstock.records.partitioner import RoundRobin, partition_for_key
from penstock.types import Acks

BATCH_BYTES: Final = 900 * KIB
"""Below the broker's default max.message.bytes, since compression may make a batch a little larger."""
BUFFER_BYTES_MAX: Final = 32 * MIB

Headers = Sequence[tuple[str, bytes | None]]


class Producer(Sender):
    """Collects records into batches and sends them. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: Acks = Acks.ALL,
        compression: Compression = Compression.NONE,
        idempotent: bool | None = None,
        batch_bytes: int = BATCH_BYTES,
        auto_create: bool = True,
        on_delivery: Callable[[DeliveredBatch], None] | None = None,
    ) -> None:
        super().__init__(cluster, acks=acks, idempotent=idempotent, auto_create=auto_create, on_delivery=on_delivery)
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._builders: dict[TopicPartition, BatchBuilder] = {}
        self._buffered_bytes = 0
        self._round_robin: dict[str, RoundRobin] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, a flush would raise another error that hides it.
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
        """Add a record, and send full batches; returns the partition. May raise errors of earlier records."""
        if partition is None:
            partition = self._choose_partition(topic, key)
        place = (topic, partition)
        if self._compression is Compression.NONE:
            # Checked before the batch gets a sequence number. The compressed size is not known yet.
            self._check_size(place, len(key or b"") + len(value or b""), 1)
        builder = self._builders.get(place)
        if builder is None:
            # So that a wrong topic or partition is reported with its first record.
            self._leader(place)
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
        """Send one record and wait; returns its partition and offset."""
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
        """Wait until all records are acknowledged; raises if one could not be delivered."""
        self._dispatch(list(self._builders))
        self._wait_for_all()

    def _choose_partition(self, topic: str, key: bytes | None) -> int:
        count = len(self._cluster.topic(topic, auto_create=self._auto_create).partitions)
        if key:
            return partition_for_key(key, count)
        return self._round_robin.setdefault(topic, RoundRobin()).partition(count)

    def _dispatch(self, places: Sequence[TopicPartition]) -> None:
        batches: list[OutgoingBatch] = []
        for place in places:
            builder = self._builders.pop(place)
            self._buffered_bytes -= builder.size_bytes
            batches.append(self._build(place, builder))
        self._dispatch_all(batches)

    def _build(self, place: TopicPartition, builder: BatchBuilder) -> OutgoingBatch:
        sequence = self._next_sequence(place, builder.count)
        data = builder.build(
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        return self._outgoing(place, data, builder.count)
