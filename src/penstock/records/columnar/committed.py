"""Which batches a reader of committed records sees: Kafka's rule for aborted transactions and control batches.

A fetch response lists its aborted transactions: producer and first offset. From that offset on a producer's transactional
batches are skipped, up to its abort marker. Control batches contain no records for readers.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from penstock.records.batch import BatchHeader
from penstock.records.records import open_records, read_spans
from penstock.types import NO_PRODUCER_ID, Buffer

Batch = tuple[BatchHeader, Buffer]

_CONTROL_KEY: Final = Struct(">hh")
"""Version and type of a control record."""
_ABORT: Final = 0


def visible(batches: Iterable[Batch], aborted: Sequence[tuple[int, int]], bytes_max: int) -> list[Batch]:
    """The batches that a reader sees. ``aborted`` is (producer id, first offset)."""
    seen: list[Batch] = []
    to_come = sorted(aborted, key=lambda one: one[1], reverse=True)
    aborting: set[int] = set()
    for header, data in batches:
        if header.producer_id != NO_PRODUCER_ID:
            while to_come and to_come[-1][1] < header.next_offset:
                aborting.add(to_come.pop()[0])
            if header.is_control and _is_abort(header, data, bytes_max):
                aborting.discard(header.producer_id)
        if not header.is_control and not (header.is_transactional and header.producer_id in aborting):
            seen.append((header, data))
    return seen


def _is_abort(header: BatchHeader, data: Buffer, bytes_max: int) -> bool:
    for _, _, _, _, _, key, _, _ in read_spans(open_records(data, header, bytes_max), header):
        return key is not None and len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT
    return False
