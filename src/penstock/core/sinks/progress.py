"""How much of an intent is in a target already.

The log's own memory of producers knows, as long as it has the sink's: the epoch is the intent's own, so the last sequence is
the number of records appended. That memory is forgotten after a day without an append (or when too many others came), and an
intent may be older than that after a long stop; then the batches themselves are looked at, from where the target ended when
the intent was made.
"""

from typing import Final, NamedTuple

from penstock.core.partitions.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.batch import read_header

_READ_BYTES: Final = 4 * MIB


class Progress(NamedTuple):
    """How much there is."""

    records: int
    end_offset: int
    """Behind the last of them; 0 when there is none, or the log does not know."""


NOTHING: Final = Progress(0, 0)


def records_appended(partition: Partition, producer_id: int, producer_epoch: int, from_offset: int) -> Progress:
    """How many records of an intent the partition has. Nothing of it may be on its way to the disk."""
    known = partition.log.producers.get(producer_id)
    if known is None:
        return _found(partition, producer_id, producer_epoch, from_offset)
    epoch, last_sequence, _, batches = known
    if epoch != producer_epoch:
        return NOTHING
    if not batches:
        return Progress(last_sequence + 1, 0)
    first, last, base_offset = batches[-1]
    return Progress(last_sequence + 1, base_offset + last - first + 1)


def _found(partition: Partition, producer_id: int, producer_epoch: int, from_offset: int) -> Progress:
    log = partition.log
    offset, end = max(from_offset, log.start_offset), log.written_offset
    count = end_offset = 0
    while offset < end:
        try:
            data, next_offset = log.read(offset, _READ_BYTES, end)
        except PenstockError as error:
            if error.reason is not Reason.CORRUPT_RECORDS:
                raise
            # A damaged batch is there all the same, and those behind it say how far it went.
            offset += 1
            continue
        view = memoryview(data)
        position = 0
        while position < len(view):
            header = read_header(view, position)
            if header.producer_id == producer_id and header.producer_epoch == producer_epoch:
                count = max(count, header.last_sequence + 1)
                end_offset = header.next_offset
            position += header.size_bytes
        offset = next_offset
    return Progress(count, end_offset)
