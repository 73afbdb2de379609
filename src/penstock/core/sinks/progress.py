"""How much of an intent is in a target already.

The log's own memory of producers knows, as long as it has the sink's: the epoch is the intent's own, so the last sequence is
the number of records appended. That memory is forgotten after a day without an append (or when too many others came), and an
intent may be older than that after a long stop; then the batches themselves are looked at, from where the target ended when
the intent was made.
"""

from typing import Final

from penstock.core.partition import Partition
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.batch import read_header

_READ_BYTES: Final = 4 * MIB


def records_appended(partition: Partition, producer_id: int, producer_epoch: int, from_offset: int) -> int:
    """How many records of an intent the partition has. Nothing of it may be on its way to the disk."""
    known = partition.log.producers.get(producer_id)
    if known is not None:
        epoch, last_sequence = known[:2]
        return last_sequence + 1 if epoch == producer_epoch else 0
    return _found(partition, producer_id, producer_epoch, from_offset)


def _found(partition: Partition, producer_id: int, producer_epoch: int, from_offset: int) -> int:
    log = partition.log
    offset, end = max(from_offset, log.start_offset), log.written_offset
    count = 0
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
            position += header.size_bytes
        offset = next_offset
    return count
