"""Where a task's batches go: staged for the driver to commit, or produced directly to their topics.

Staged batches are in the sink's staging topic, which is invisible to others. A :class:`Staged` lists which of them belong to which
partition, in order. Batches that no commit names (of a task that failed or ran twice) remain invisible and are deleted with the next
commit.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """A task's message to the driver. Without parts, the task wrote nothing, or the batch was committed before."""

    sink: str
    batch_id: int
    staging_id: UUID
    """The staging topic with the parts; it is another one if the sink was deleted and created again."""
    parts: tuple[SinkPart, ...] = ()


class Outlet(Protocol):
    """Receives the batches of one task."""

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        """Send one batch. It may raise errors of earlier ones."""

    def finish(self) -> WriterCommitMessage:
        """Wait until the broker has everything."""


class StagingWriter:
    """Sends batches to the staging topic."""

    def __init__(self, cluster: Cluster, opened: OpenedSink, partition: int, batch_id: int) -> None:
        self._sender = BatchSender(cluster, Acks.ALL)
        self._place = opened.staging_topic, partition
        self._opened = opened
        self._batch_id = batch_id
        self._targets: list[TopicPartition] = []
        """Of each batch, in the order of sending."""

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        try:
            self._sender.send(*self._place, batch, record_count)
        except BatchTooLarge as error:
            # Users do not know the staging topic, so the error names the target.
            raise BatchTooLarge(f"{topic}/{partition}", record_count, error.size_bytes, error.bytes_max) from error
        self._targets.append((topic, partition))

    def finish(self) -> Staged:
        deliveries = self._sender.flush()
        assert len(deliveries) == len(self._targets), "flush returns a delivery for every batch"
        parts = tuple(parts_of(self._targets, deliveries))
        return Staged(self._opened.sink, self._batch_id, self._opened.staging_id, parts)


@dataclass(slots=True)
class Producing:
    """Sends batches to their topics: idempotent with acks=all, and visible at once."""

    sender: BatchSender

    def send(self, topic: str, partition: int, batch: bytearray, record_count: int) -> None:
        self.sender.send(topic, partition, batch, record_count)

    def finish(self) -> WriterCommitMessage:
        self.sender.flush()
        return WriterCommitMessage()


def parts_of(targets: Sequence[TopicPartition], deliveries: Sequence[DeliveredBatch]) -> list[SinkPart]:
    """The parts for each partition, from the target and the staged position of each batch."""
    staged: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for target, delivery in zip(targets, deliveries, strict=True):
        if delivery.base_offset < 0:
            raise ClientError(
                "The broker detected a duplicate staged batch, but does not know the offset of the first one: try again"
            )
        ranges = staged.setdefault(target, [])
        partition, start, count = ranges[-1] if ranges else (NO_PARTITION, 0, 0)
        if (partition, start + count) == (delivery.partition, delivery.base_offset):
            # Adjacent batches are one range, which makes the commit smaller.
            ranges[-1] = (partition, start, count + delivery.record_count)
        else:
            ranges.append((delivery.partition, delivery.base_offset, delivery.record_count))
    return [SinkPart(topic, partition, ranges) for (topic, partition), ranges in staged.items()]
