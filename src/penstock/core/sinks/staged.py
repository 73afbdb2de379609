"""Reading what is staged: whole batches, one after the other, a bounded piece of the file at a time."""

from collections.abc import Iterator
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.log.log import Log
from penstock.records.batch import BatchHeader, read_header

_READ_BYTES: Final = 1 * MIB


def batches_in(log: Log, start: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches from offset ``start`` up to ``end``.

    OFFSET_OUT_OF_RANGE when they are not there, INVALID_REQUEST when the range begins or ends within a batch.
    """
    offset = start
    while offset < end:
        if end > log.written_offset:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"offsets {start} to {end - 1} are not staged: the staging log ends at {log.written_offset}; stage the "
                "batch again and commit that",
            )
        data, _ = log.read(offset, _READ_BYTES, end)
        view = memoryview(data)
        position = 0
        while position < len(view):
            header = read_header(view, position)
            if header.base_offset != offset:
                raise _within(offset)
            size = header.size_bytes
            yield header, view[position : position + size]
            position += size
            offset = header.next_offset
        if not position:
            raise _within(end)


def _within(offset: int) -> PenstockError:
    return PenstockError(
        Reason.INVALID_REQUEST,
        f"staged offset {offset} is inside a batch; specify whole batches, with the base offset and the number of records from the produce response",
    )
