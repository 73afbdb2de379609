"""Divides what a query reads into tasks: one per partition, or more with ``minPartitions`` or ``maxRecordsPerPartition``.

Invariant: the tasks cover the ranges exactly, without gaps and overlaps. What the broker no longer has is read from the topic's lake, or
is reported as data loss.

Spark plans a DataFrame once and runs it each time it is used. So a task determines the end of a range up to the latest offset again, as
Spark's Kafka connector does: a DataFrame that is used again includes new records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.client.cluster import TopicPartition
from penstock.spark.errors import report_data_loss

if TYPE_CHECKING:
    from penstock.spark.lake.reading import LakeSplit
    from penstock.spark.source.offsets import Edges
    from penstock.spark.source.settings import SourceSettings


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``[from_offset, to_offset)`` of one partition.

    ``from_earliest``: it starts where the partition starts. ``to_latest``: it ends where the partition ends when it is read.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    from_earliest: bool = False
    to_latest: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it contains nothing, and will not."""
        return self.size <= 0 and not self.to_latest

    @property
    def size(self) -> int:
        """The number of offsets. There may be fewer records, because of compaction and transactions."""
        return self.to_offset - self.from_offset

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return (self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.from_offset}, {self.to_offset})"


class BrokerPart(InputPartition):
    """A task that reads a range from the broker."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(str(wanted))
        self.range = wanted


class LakePart(InputPartition):
    """A task that reads a part of a lake."""

    def __init__(self, topic: str, partition: int, split: LakeSplit) -> None:
        super().__init__(f"{topic}/{partition} from its lake")
        self.topic = topic
        self.partition = partition
        self.split = split


def divide(ranges: Sequence[OffsetRange], min_partitions: int | None, records_max: int | None) -> list[OffsetRange]:
    """The ranges that are not empty, divided so that none exceeds ``records_max`` and there are about ``min_partitions``.

    Small ranges stay whole and count as one; the others are divided in proportion to their size.
    """
    open_ended = [each for each in ranges if each.size <= 0 and each.to_latest]
    whole = [each for each in ranges if each.size > 0]
    if records_max is not None:
        whole = [part for each in whole for part in _cut(each, -(-each.size // records_max))]
    if min_partitions is not None and whole and len(whole) < min_partitions:
        whole = _cut_in_proportion(whole, min_partitions)
    return [*whole, *open_ended]


def tasks(edges: Edges, ranges: Sequence[OffsetRange], settings: SourceSettings) -> list[InputPartition]:
    """A task for each piece. What the broker has deleted is read from the lake, or is a data loss if there is none."""
    fail = settings.fail_on_data_loss
    wanted = [each for each in ranges if not each.is_empty]
    held = edges.held_from({each.place for each in wanted})
    parts: list[InputPartition] = []
    from_broker: list[OffsetRange] = []
    for each in wanted:
        first = held.get(each.place, 0)
        if each.from_offset >= first:
            from_broker.append(each)
            continue
        below = replace(each, to_offset=min(first, max(each.from_offset, each.to_offset)))
        archived = edges.tiers.splits(each.place, below.from_offset, below.to_offset)
        if archived:
            parts += [LakePart(each.topic, each.partition, split) for split in archived]
        elif not each.from_earliest:
            report_data_loss(
                f"{each.topic}/{each.partition} now starts at offset {first}: offsets {below.from_offset} to "
                f"{below.to_offset - 1}, which this query needs, were deleted.",
                fail=fail,
            )
        from_broker.append(replace(each, from_offset=first))
    cut = divide(from_broker, settings.min_partitions, settings.partition_records_max)
    parts += [BrokerPart(each) for each in cut]
    return parts


def _cut_in_proportion(whole: list[OffsetRange], count: int) -> list[OffsetRange]:
    total = sum(each.size for each in whole)
    small = {each for each in whole if _parts(each.size, total, count) == 1}
    large_total = total - sum(each.size for each in small)
    for_large = max(count - len(small), 1)
    return [
        part
        for each in whole
        for part in ([each] if each in small else _cut(each, _parts(each.size, large_total, for_large)))
    ]


def _parts(size: int, total: int, count: int) -> int:
    """The share of ``count`` that ``size`` has in ``total``, rounded half up, at least one."""
    return max((2 * size * count + total) // (2 * total), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """``parts`` pieces of nearly the same size, in order, without empty ones."""
    cut: list[OffsetRange] = []
    at = whole.from_offset
    for left in range(parts, 0, -1):
        until = at + (whole.to_offset - at) // left
        if until > at:
            first, last = not cut, left == 1
            cut.append(
                replace(
                    whole,
                    from_offset=at,
                    to_offset=until,
                    from_earliest=whole.from_earliest and first,
                    to_latest=whole.to_latest and last,
                )
            )
        at = until
    return cut
