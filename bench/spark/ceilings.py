"""A source and a sink that do nothing: what Spark itself can take from Python and give to it, with no decoding at all.

The source yields one ready-made batch again and again, with the columns of a topic; the sink reads what it is given and counts it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
BATCH_ROWS = 65_536


@dataclass
class Share(InputPartition):
    """How many rows a task yields."""

    rows: int


def ready_batch(rows: int, value_bytes: int) -> pa.RecordBatch:
    """A batch as the source of Penstock makes it."""
    stamp = pa.scalar(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", tz="UTC"))
    return pa.record_batch(
        [
            pa.array([b"key-%05d" % (number % 99_999) for number in range(rows)], pa.binary()),
            pa.array([bytes([number % 251]) * value_bytes for number in range(rows)], pa.binary()),
            pa.repeat(pa.scalar("orders"), rows),
            pa.repeat(pa.scalar(0, pa.int32()), rows),
            pa.array(range(rows), pa.int64()),
            pa.repeat(stamp, rows),
            pa.repeat(pa.scalar(0, pa.int32()), rows),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
    )


_READY: dict[int, pa.RecordBatch] = {}
"""Made once in a worker, which Spark uses again."""


def ready_rows(rows: int, value_bytes: int) -> Iterator[pa.RecordBatch]:
    """``rows`` rows, in batches that are all the same one."""
    if value_bytes not in _READY:
        _READY[value_bytes] = ready_batch(BATCH_ROWS, value_bytes)
    batch = _READY[value_bytes]
    for start in range(0, rows, BATCH_ROWS):
        yield batch.slice(0, min(BATCH_ROWS, rows - start))


class CeilingReader(DataSourceReader):
    """Reads ``rows`` rows in ``tasks`` tasks."""

    def __init__(self, rows: int, tasks: int, value_bytes: int) -> None:
        self.rows, self.tasks, self.value_bytes = rows, tasks, value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [Share(self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return ready_rows(partition.rows, self.value_bytes)


class CeilingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same as a stream, ``per_trigger`` rows a batch."""

    def __init__(self, rows: int, tasks: int, value_bytes: int, per_trigger: int) -> None:
        self.rows, self.tasks, self.value_bytes, self.per_trigger = rows, tasks, value_bytes, per_trigger

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  Spark's name
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802  Spark's
        return {"row": min(self.rows, start["row"] + self.per_trigger)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The end is known."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Share((end["row"] - start["row"]) // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return ready_rows(partition.rows, self.value_bytes)


@dataclass
class Counted(WriterCommitMessage):
    """What a task was given."""

    rows: int


class CeilingWriter(DataSourceArrowWriter):
    """Takes every batch and forgets it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))


class CeilingSource(DataSource):
    """``format("ceiling")``; registered by the run, for it is no part of the product."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "ceiling"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.rows = int(options.get("rows", 0))
        self.tasks = int(options.get("tasks", 1))
        self.value_bytes = int(options.get("valueBytes", 100))

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  one schema
        return CeilingReader(self.rows, self.tasks, self.value_bytes)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  Spark's
        return CeilingStream(self.rows, self.tasks, self.value_bytes, int(self.options["perTrigger"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002  Spark's
        return CeilingWriter()
