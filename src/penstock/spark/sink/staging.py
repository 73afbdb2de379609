"""Where a task's batches go: staged for the driver to commit, or straight to their topics.

Staged batches lie in the sink's staging topic, which nobody else is shown. A :class:`Staged` says which of them belong to which partition,
in order; what no commit names (of a task that failed, or ran twice) is never seen and goes with the next commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from pyspark.sql.datasource import WriterCommitMessage

from penstock.client.batches import BatchSender
from penstock.client.errors import BatchTooLarge, ClientError
from penstock.operations.sinks import SinkPart
from penstock.types import Acks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.cluster import Cluster, TopicPartition
    from penstock.client.sending import DeliveredBatch
    from penstock.operations.sinks import OpenedSink

NO_PARTITION: Final = -1


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task tells the driver. Without parts it wrote nothing, or the batch was committed before."""

    sink: str
    batch_id: int
    staging_id: UUID
    """In which life of the staging topic the parts lie."""
    parts: tuple[SinkPart, ...] = ()


@dataclass(frozen=True)
class Delivered(WriterCommitMessage):
    """What a task tells that produced by itself."""

    records: int


class Outlet(Protocol):
    """Takes the batches of one task."""

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        """Take one batch; errors of earlier ones may come up here."""

    def finish(self) -> WriterCommitMessage:
        """Return once everything is with the broker."""


class StagingWriter:
    """Batches into the staging topic."""

    def __init__(self, cluster: Cluster, opened: OpenedSink, partition: int, batch_id: int) -> None:
        self._sender = BatchSender(cluster, Acks.ALL)
        self._place = opened.staging_topic, partition
        self._opened = opened
        self._batch_id = batch_id
        self._targets: list[TopicPartition] = []
        """Of each batch, in the order in which they were sent."""

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        try:
            self._sender.send(*self._place, batch, record_count)
        except BatchTooLarge as error:
            # Nobody knows the staging topic; where the rows were to go says which they are.
            raise BatchTooLarge(f"{topic}/{partition}", record_count, error.size_bytes, error.bytes_max) from error
        self._targets.append((topic, partition))

    def finish(self) -> Staged:
        deliveries = self._sender.flush()
        assert len(deliveries) == len(self._targets), "flush tells of every batch since the last one"
        parts = tuple(parts_of(self._targets, deliveries))
        return Staged(self._opened.sink, self._batch_id, self._opened.staging_id, parts)


@dataclass(slots=True)
class Producing:
    """Batches straight into their topics: idempotent with acks=all, and seen at once."""

    sender: BatchSender
    records: int = field(default=0)

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        self.sender.send(topic, partition, batch, record_count)
        self.records += record_count

    def finish(self) -> Delivered:
        self.sender.flush()
        return Delivered(self.records)


def parts_of(targets: Sequence[TopicPartition], deliveries: Sequence[DeliveredBatch]) -> list[SinkPart]:
    """What goes to each partition, from where each batch was to go and where it lies."""
    staged: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for target, delivery in zip(targets, deliveries, strict=True):
        if delivery.base_offset < 0:
            raise ClientError(
                "The broker detected a duplicate staged batch, but does not know the offset of the first one: try again"
            )
        ranges = staged.setdefault(target, [])
        partition, start, count = ranges[-1] if ranges else (NO_PARTITION, 0, 0)
        if (partition, start + count) == (delivery.partition, delivery.base_offset):
            # Batches that touch are one range: a commit names fewer of them.
            ranges[-1] = (partition, start, count + delivery.record_count)
        else:
            ranges.append((delivery.partition, delivery.base_offset, delivery.record_count))
    return [SinkPart(topic, partition, ranges) for (topic, partition), ranges in staged.items()]
