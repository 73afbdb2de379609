"""The status of a partition as its leader reports it: where it begins and ends, and how many of one producer's records it has.

The coordinator of a group, a produce key or a sink may not lead the partition, and its own copy may lag. So it asks the leader.

The log remembers each producer's last sequence number, and a sink starts every commit with a new producer epoch and sequence 0.
So the last sequence number gives the number of records appended. The log forgets a producer after a day without an append, or when
there are too many others, and a commit may be older than that after a long stop. Then the batches themselves are read, from the
offset at which the commit began.
"""

from typing import Final, NamedTuple

from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.batch import batches_in
from penstock.types import NO_PRODUCER_ID

_READ_BYTES: Final = 4 * MIB


class ProducerQuery(NamedTuple):
    """One epoch of a producer; it has no records before ``from_offset``."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    from_offset: int = 0


NO_PRODUCER = ProducerQuery()


class LeaderStatus(NamedTuple):
    """What a leader reports of its partition."""

    start_offset: int
    high_watermark: int
    appended: int = 0
    """Records of the producer in the query, committed or not."""
    is_settled: int = 1
    """Whether all of those are committed, so that every later leader has them too. 0 or 1, as all fields are numbers."""


def partition_status(partition: Partition, producer: ProducerQuery = NO_PRODUCER) -> LeaderStatus:
    """The status of a partition that this node leads. No append of the producer may be waiting to be written."""
    start_offset, high_watermark = partition.log.start_offset, partition.high_watermark
    if producer.producer_id == NO_PRODUCER_ID:
        return LeaderStatus(start_offset, high_watermark)
    appended, end_offset = _appended(partition, producer)
    return LeaderStatus(start_offset, high_watermark, appended, int(end_offset <= high_watermark))


def _appended(partition: Partition, producer: ProducerQuery) -> tuple[int, int]:
    """The number of the producer's records, and the offset after the last one; 0 if there are none, or the log does not know."""
    known = partition.log.producers.get(producer.producer_id)
    if known is None:
        return _read_appended(partition, producer)
    epoch, last_sequence, _, batches = known
    if epoch != producer.producer_epoch:
        return 0, 0
    if not batches:
        return last_sequence + 1, 0
    first, last, base_offset = batches[-1]
    return last_sequence + 1, base_offset + last - first + 1


def _read_appended(partition: Partition, producer: ProducerQuery) -> tuple[int, int]:
    log = partition.log
    offset, end = max(producer.from_offset, log.start_offset), log.written_offset
    count = end_offset = 0
    while offset < end:
        try:
            data, next_offset = log.read(offset, _READ_BYTES, end)
        except PenstockError as error:
            if error.reason is not Reason.CORRUPT_RECORDS:
                raise
            # A damaged batch counts too: the sequence numbers of later batches include it.
            offset += 1
            continue
        for header, _ in batches_in(data):
            if (header.producer_id, header.producer_epoch) == (producer.producer_id, producer.producer_epoch):
                count = max(count, header.last_sequence + 1)
                end_offset = header.next_offset
        offset = next_offset
    return count, end_offset
