"""How a partition stands by its leader: where it begins and ends, and how much of what one producer had to append is there.

For whoever speaks for a group, a produce key or a sink and does not lead the partition: a copy may be behind, its leader is not.
"""

from typing import NamedTuple

from penstock.core.partitions.partition import Partition
from penstock.core.sinks.progress import records_appended
from penstock.types import NO_PRODUCER_ID


class ProducerQuery(NamedTuple):
    """One epoch of a producer, none of whose records lies before ``from_offset``."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    from_offset: int = 0


NO_PRODUCER = ProducerQuery()


class PartitionStatus(NamedTuple):
    """What a leader says of its partition."""

    start_offset: int
    high_watermark: int
    appended: int = 0
    """Records of the producer that was asked for, committed or not."""
    is_settled: int = 1
    """Whether all of those are committed (0 or 1, as everything here is a number): then whoever leads next has them too."""


def partition_status(partition: Partition, producer: ProducerQuery = NO_PRODUCER) -> PartitionStatus:
    """Of a partition that is led here."""
    start_offset, high_watermark = partition.log.start_offset, partition.high_watermark
    if producer.producer_id == NO_PRODUCER_ID:
        return PartitionStatus(start_offset, high_watermark)
    appended, end_offset = records_appended(partition, *producer)
    return PartitionStatus(start_offset, high_watermark, appended, int(end_offset <= high_watermark))
