"""Reads a lake as a table: all rows, or the records of a topic by offset, also as a stream that ends.

For the rows of any lake, there is one task per file. The records of one topic (option ``topic``) are in order by partition and offset, and
can be a stream: from ``startingOffsets`` to ``endingOffsets`` (JSON by partition; by default all that the lake has now),
``maxOffsetsPerTrigger`` at a time. A stream does not include later records: it is for replays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.spark.errors import OptionError
from penstock.spark.lake.datasource import lake_of
from penstock.spark.lake.layout import folder_values
from penstock.spark.lake.reading import SPLIT_ROWS, LakeSplit, plan_splits, read_split
from penstock.spark.lake.store import open_uri, path_in
from penstock.spark.schema import RECORDS_WITH_HEADERS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.options import SparkOptions

BATCH_ROWS: Final = 65_536
JsonOffsets = dict[str, int]
"""By partition, as text, as in a checkpoint."""


class SplitPart(InputPartition):
    """A task that reads records by offset."""

    def __init__(self, split: LakeSplit) -> None:
        super().__init__(f"{split.topic}/{split.partition} [{split.from_offset}, {split.to_offset})")
        self.split = split


class FilePart(InputPartition):
    """A task that reads a file."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri


def schema_of(options: SparkOptions) -> StructType:
    """The columns: those of ``format("penstock")`` with the option ``topic``, else those of the lake."""
    if options.get("topic"):
        return RECORDS_WITH_HEADERS
    from pyspark.sql.pandas.types import from_arrow_schema

    found = lake_of(options).schema()
    if found is None:
        raise OptionError(f"{options.get('path')} is empty, so its columns are unknown: specify them with .schema(...)")
    return from_arrow_schema(found)


class LakeReader(DataSourceReader):
    """A lake as a table."""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        topic = self._options.get("topic")
        if not topic:
            return [FilePart(uri) for uri in lake_of(self._options).uris()]
        return _parts(self._options, *_bounds(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task."""
        return _read(partition, self._schema)


class LakeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The records of a topic in a lake, as a stream that ends as specified, or where the lake ends when it starts."""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        if not options.get("topic"):
            raise OptionError(
                "Only a single topic of a lake can be read as a stream: set the option topic, or read the lake as a table"
            )
        self._options = options
        self._schema = schema
        self._end: JsonOffsets | None = None

    def initialOffset(self) -> JsonOffsets:  # noqa: N802  Spark's name
        """Where a new query starts."""
        return _dump(_bounds(self._options)[0])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """The limit of a micro-batch."""
        most = self._options.integer("maxOffsetsPerTrigger", at_least=1)
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix where the stream ends."""
        self._ends()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802  Spark's name
        """Where the next micro-batch ends. The limit is used up partition by partition."""
        ends = self._ends()
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached: JsonOffsets = {}
        for partition in sorted(ends, key=int):
            at = start.get(partition, ends[partition])
            step = max(ends[partition] - at, 0)
            if left is not None:
                step = min(step, left)
                left -= step
            reached[partition] = at + step
        return reached

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802  Spark's name
        """For the progress report."""
        return self._ends()

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """The tasks of one micro-batch."""
        # One per partition, because a sink keeps the order of a task.
        return _parts(self._options, _load(start), _load(end), split_rows=sys.maxsize)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task."""
        return _read(partition, self._schema)

    def commit(self, end: JsonOffsets) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

    def _ends(self) -> JsonOffsets:
        if self._end is None:
            self._end = _dump(_bounds(self._options)[1])
        return self._end


def _bounds(options: SparkOptions) -> tuple[dict[int, int], dict[int, int]]:
    """The start and the end of each partition that the options select, limited to what the lake has."""
    has: dict[int, tuple[int, int]] = {}
    for file in lake_of(options).files(options["topic"]):
        first, end = has.get(file.partition, (file.first_offset, 0))
        has[file.partition] = (min(first, file.first_offset), max(end, file.last_offset + 1))
    starts, ends = _offsets(options, "startingOffsets"), _offsets(options, "endingOffsets")
    selected = starts.keys() | ends.keys() or has.keys()
    begin = {p: max(has[p][0], starts.get(p, 0)) for p in sorted(selected & has.keys())}
    return begin, {p: max(min(has[p][1], ends.get(p, has[p][1])), start) for p, start in begin.items()}


def _offsets(options: SparkOptions, name: str) -> dict[int, int]:
    text = options.get(name)
    if not text or text in ("earliest", "latest"):
        return {}
    return options.json(name, dict[int, int], '{"0": 100}')


def _dump(offsets: Mapping[int, int]) -> JsonOffsets:
    return {str(partition): offset for partition, offset in offsets.items()}


def _load(offsets: JsonOffsets) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}


def _parts(
    options: SparkOptions, start: Mapping[int, int], end: Mapping[int, int], split_rows: int = SPLIT_ROWS
) -> list[InputPartition]:
    files = lake_of(options).files(options["topic"])
    parts: list[InputPartition] = []
    for partition, to_offset in sorted(end.items()):
        of_partition = [file for file in files if file.partition == partition]
        splits = plan_splits(of_partition, start.get(partition, 0), to_offset, split_rows)
        parts += [SplitPart(split) for split in splits]
    return parts


def _read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    wanted = arrow_schema(schema)
    if isinstance(partition, SplitPart):
        for batch in read_split(partition.split, wanted.names, BATCH_ROWS):
            yield batch.cast(wanted)
        return
    assert isinstance(partition, FilePart)
    folders = folder_values(path_in(partition.uri))
    with open_uri(partition.uri) as source:
        parquet = pq.ParquetFile(source)
        there = [name for name in wanted.names if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=there):
            yield pa.RecordBatch.from_arrays([_column(batch, field, folders) for field in wanted], schema=wanted)


def _column(batch: pa.RecordBatch, field: pa.Field, folders: Mapping[str, str | None]) -> pa.Array:
    if field.name in batch.schema.names:
        found = batch.column(field.name)
        return found if found.type.equals(field.type) else found.cast(field.type)
    value = folders.get(field.name)
    return pa.repeat(pa.scalar(value, pa.string()).cast(field.type), batch.num_rows)
