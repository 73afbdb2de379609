"""Reads the records of a lake: splits of an offset range, each in the order of its offsets.

Files of one partition can overlap (a late record is in the folder of an earlier day), so overlapping files are merged as they are read,
with a few row groups in memory. Every offset comes once, because a split takes only its own range of each file. Files that another program
rewrote (Delta's OPTIMIZE) may be unordered; then only each batch is sorted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.errors import LOG
from penstock.spark.lake.layout import OFFSET, PARTITION, RECORDS, TIMESTAMP, TOPIC, StoredFile
from penstock.spark.lake.store import open_uri

SPLIT_ROWS: Final = 2_000_000
"""About the number of rows that one task reads."""
BATCH_ROWS: Final = 10_000
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LakeSplit:
    """The records of a partition with ``from_offset <= offset < to_offset``, and the files that may contain them."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    files: tuple[StoredFile, ...]
    whole: bool = True
    """Whether a file that cannot be read is an error, or only a warning."""

    @property
    def rows(self) -> int:
        """About the number of records, at most the size of the range."""
        return min(self.to_offset - self.from_offset, sum(file.rows for file in self.files))


def plan_splits(
    files: Iterable[StoredFile], from_offset: int, to_offset: int, split_rows: int = SPLIT_ROWS
) -> list[LakeSplit]:
    """The range of one partition in splits of about ``split_rows``, divided between files if possible."""
    wanted = sorted(
        (file for file in files if file.first_offset < to_offset and file.last_offset >= from_offset),
        key=lambda file: (file.first_offset, file.last_offset),
    )
    splits: list[LakeSplit] = []
    group: list[StoredFile] = []
    start = from_offset
    for file in wanted:
        ends_before = not group or max(each.last_offset for each in group) < file.first_offset
        if group and ends_before and sum(each.rows for each in group) >= split_rows:
            splits.append(LakeSplit(file.topic, file.partition, start, file.first_offset, tuple(group)))
            start, group = file.first_offset, []
        group.append(file)
    if group:
        splits.append(LakeSplit(group[0].topic, group[0].partition, start, to_offset, tuple(group)))
    return splits


def read_split(split: LakeSplit, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The records of a split in the order of their offsets, with exactly these columns of the source."""
    pending = list(split.files)
    while pending:
        overlapping = [pending.pop(0)]
        while pending and pending[0].first_offset <= max(file.last_offset for file in overlapping):
            overlapping.append(pending.pop(0))
        streams = [_read_existing(file, split, columns, batch_rows) for file in overlapping]
        for batch in streams[0] if len(streams) == 1 else _merge(streams):
            yield batch.select(list(columns))


def find_time(files: Iterable[StoredFile], timestamp_ms: int) -> int | None:
    """The first offset of a partition at or after this time; None if there is none."""
    # Columns contain microseconds, and a time may be any number of milliseconds.
    moment_us = min(max(timestamp_ms * 1000, _INT64_MIN), _INT64_MAX)
    found: int | None = None
    for file in sorted(files, key=lambda each: each.first_offset):
        if found is not None and file.first_offset >= found:
            break
        # A file that starts later may have an earlier match, because the offsets of days overlap.
        found = _find_time_in(file, moment_us, found)
    return found


def _find_time_in(file: StoredFile, moment_us: int, found: int | None) -> int | None:
    """The smallest offset of the file's matches and ``found``."""
    with open_uri(file.uri) as source:
        parquet = pq.ParquetFile(source)
        for group in _groups_with(parquet, TIMESTAMP, moment_us, None):
            if found is not None and not _may_have(parquet, group, OFFSET, 0, found - 1):
                continue
            table = parquet.read_row_group(group, columns=[PARTITION, OFFSET, TIMESTAMP])
            late = pc.and_(
                pc.greater_equal(table.column(TIMESTAMP).cast(pa.int64()), moment_us),
                pc.equal(table.column(PARTITION), file.partition),
            )
            first = pc.min(table.column(OFFSET).filter(late)).as_py()
            if first is not None:
                found = int(first) if found is None else min(found, int(first))
    return found


def _read_existing(
    file: StoredFile, split: LakeSplit, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    try:
        yield from _read_file(file, split, columns, batch_rows)
    except (OSError, pa.ArrowException) as error:
        if split.whole:
            raise
        LOG.warning(
            "%s cannot be read (%s); the query continues without it, because failOnDataLoss is false", file.uri, error
        )


def _read_file(file: StoredFile, split: LakeSplit, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    with open_uri(file.uri) as source:
        parquet = pq.ParquetFile(source)
        there = [name for name in dict.fromkeys([*columns, OFFSET, PARTITION]) if name in parquet.schema_arrow.names]
        groups = list(_groups_with(parquet, OFFSET, split.from_offset, split.to_offset - 1))
        for batch in parquet.iter_batches(batch_size=batch_rows, row_groups=groups, columns=there):
            wanted = _wanted(batch, split)
            if wanted.num_rows:
                yield _as_source(wanted, split, columns)


def _groups_with(parquet: pq.ParquetFile, column: str, low: int, high: int | None) -> Iterator[int]:
    """The row groups that may contain a value from ``low`` to ``high``."""
    return (group for group in range(parquet.num_row_groups) if _may_have(parquet, group, column, low, high))


def _may_have(parquet: pq.ParquetFile, group: int, column: str, low: int, high: int | None) -> bool:
    # Nested columns have several leaves, whose names are paths.
    at = next(n for n in range(len(parquet.schema)) if parquet.schema.column(n).path == column)
    statistics = parquet.metadata.row_group(group).column(at).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    least, most = statistics.min_raw, statistics.max_raw
    return bool(most >= low and (high is None or least <= high))


def _wanted(batch: pa.RecordBatch, split: LakeSplit) -> pa.RecordBatch:
    offsets = batch.column(OFFSET).to_numpy()
    partitions = batch.column(PARTITION).to_numpy()
    keep = (offsets >= split.from_offset) & (offsets < split.to_offset) & (partitions == split.partition)
    if not keep.all():
        batch = batch.filter(pa.array(keep))
        offsets = offsets[keep]
    if len(offsets) > 1 and (np.diff(offsets) < 0).any():
        batch = batch.take(pa.array(np.argsort(offsets, kind="stable")))
    return batch


def _as_source(batch: pa.RecordBatch, split: LakeSplit, columns: Sequence[str]) -> pa.RecordBatch:
    names = list(dict.fromkeys([*columns, OFFSET]))
    made = []
    for name in names:
        kind = RECORDS.field(name).type
        if name == TOPIC:
            made.append(pa.repeat(pa.scalar(split.topic), batch.num_rows))
        elif name in batch.schema.names:
            column = batch.column(name)
            made.append(column if column.type.equals(kind) else column.cast(kind))
        else:
            made.append(pa.nulls(batch.num_rows, kind))
    return pa.RecordBatch.from_arrays(made, schema=pa.schema([RECORDS.field(name) for name in names]))


def _merge(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge ordered streams into one, with a batch of each in memory."""
    heads = [(batch, stream) for stream in streams if (batch := next(stream, None)) is not None]
    while heads:
        # No stream can return another offset up to the smallest of the last offsets.
        safe = min(batch.column(OFFSET)[-1].as_py() for batch, _ in heads)
        ready: list[pa.RecordBatch] = []
        left: list[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]] = []
        for batch, stream in heads:
            count = int(np.searchsorted(batch.column(OFFSET).to_numpy(), safe, side="right"))
            if count:
                ready.append(batch.slice(0, count))
            rest = batch.slice(count) if count < batch.num_rows else next(stream, None)
            if rest is not None:
                left.append((rest, stream))
        heads = left
        table = pa.Table.from_batches(ready)
        if len(ready) > 1:
            table = table.take(pa.array(np.argsort(table.column(OFFSET).to_numpy(), kind="stable")))
        yield from table.combine_chunks().to_batches()
