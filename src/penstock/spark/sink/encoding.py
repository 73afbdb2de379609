"""Encodes rows as record batches: combines small pieces, and divides at the size that a topic accepts.

A batch is divided by its uncompressed size, so that it fits the topic's ``max.message.bytes`` with any codec. A larger record gets its own
batch, and the broker decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.limits import BATCH_RECORDS_MAX, KIB, MIB
from penstock.records.batch import read_header
from penstock.records.columnar import encode
from penstock.spark.sink.rows import HEADERS, KEY, TIMESTAMP, VALUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.records.batch import Compression

SHARE_BYTES: Final = 256 * KIB
"""What a partition should get at a time: a batch costs half a millisecond at any size, and a small one compresses badly."""
GATHERED_BYTES_MAX: Final = 32 * MIB
"""Arrow batches that a task holds to route together."""


def encoded(
    records: pa.RecordBatch, *, now_ms: int, compression: Compression, batch_bytes_max: int
) -> Iterator[tuple[bytearray, int]]:
    """Record batches, each with the number of its records."""
    names = records.schema.names
    batches = encode(
        value=records.column(VALUE),
        key=records.column(KEY) if KEY in names else None,
        headers=records.column(HEADERS) if HEADERS in names else None,
        timestamps_ms=records.column(TIMESTAMP) if TIMESTAMP in names else now_ms,
        compression=compression,
        batch_bytes_max=batch_bytes_max,
        batch_records_max=BATCH_RECORDS_MAX,
    )
    for batch in batches:
        yield batch, read_header(batch).record_count


def gathered(batches: Iterator[pa.RecordBatch], bytes_min: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer and larger batches."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= bytes_min:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
