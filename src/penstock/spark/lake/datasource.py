"""``format("penstock-lake")``: writes rows to a lake, each batch of a query once, and reads them. No JAR.

Options: ``path`` (a folder or URI), ``lake`` (parquet, delta, iceberg), ``partitionBy`` (columns, separated by commas; by default topic and
day for records of topics), ``catalog.*`` (of an Iceberg catalog). When reading, ``topic`` selects the records of one topic.

An archive also sets ``archive.group`` and ``kafka.bootstrap.servers``: then this group commits offsets after their records are in the lake.
Invariant: the group's offset of a partition is never above what the lake has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.spark.errors import OptionError
from penstock.spark.lake.formats import LakeError, LakeFormat, format_named
from penstock.spark.lake.lake import SINGLE_WRITE, Lake, open_lake
from penstock.spark.lake.layout import LakeFile, LakeLayout, layout_for
from penstock.spark.lake.store import absolute
from penstock.spark.lake.task_files import task_files
from penstock.spark.options import SparkOptions, options_of
from penstock.spark.schema import arrow_schema
from penstock.spark.task_properties import query_and_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

_CATALOG: Final = "catalog."


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """The files that one task wrote."""

    query: str
    files: tuple[LakeFile, ...]


class LakeDataSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "penstock-lake"

    def schema(self) -> StructType:
        from penstock.spark.lake.source import schema_of

        return schema_of(options_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.lake.source import LakeReader

        return LakeReader(options_of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from penstock.spark.lake.source import LakeStreamReader

        return LakeStreamReader(options_of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LakeBatchWriter:
        return LakeBatchWriter(_target(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:  # noqa: N802  Spark's
        return LakeStreamWriter(_target(self.options, schema, overwrite=overwrite))


@dataclass(frozen=True)
class LakeTarget:
    """Where rows go. Pickled to the tasks; each process opens the lake itself."""

    options: SparkOptions
    layout: LakeLayout

    def open(self) -> Lake:
        """The lake."""
        return lake_of(self.options)

    def write(self, query: str, batch: int, rows: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """One task's rows."""
        files = task_files(_path(self.options), _format(self.options), self.layout, query, batch)
        return WrittenFiles(query, tuple(files.write(rows)))

    def commit(self, query: str, batch: int, files: Sequence[LakeFile]) -> None:
        """On the driver: commit all tasks' files, then the group's offsets."""
        lake, now_ms = self.open(), int(datetime.now(UTC).timestamp() * 1000)
        group = self.options.get("archive.group")
        if not group or not self.layout.is_records:
            lake.commit(self.layout, query, batch, files, now_ms)
            return
        from penstock.spark.lake.archiving import check_same, commit_archived

        check_same(self.options, lake, {file.topic for file in files if file.topic is not None})
        done = lake.commit(self.layout, query, batch, files, now_ms)
        commit_archived(self.options, group, done.ends, lake)


class LakeStreamWriter(DataSourceStreamArrowWriter):
    """Of a streaming query: exactly once, because Spark repeats a batch with the same number."""

    def __init__(self, target: LakeTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """In a task."""
        found = query_and_batch()
        if found is None:
            raise LakeError("Spark did not identify the query and the batch; writing to a lake needs Spark 4.3")
        return self._target.write(*found, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """On the driver, once all tasks are done."""
        query, files = _collected(messages)
        if query is not None:
            self._target.commit(query, batchId, files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """On the driver, when a task or the commit failed."""
        query, files = _collected(messages)
        if query is not None:
            self._target.open().abort(query, batchId, files)


class LakeBatchWriter(DataSourceArrowWriter):
    """Of a batch write: all of it or nothing."""

    def __init__(self, target: LakeTarget) -> None:
        self._target = target
        self._query = f"{SINGLE_WRITE}{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """In a task."""
        return self._target.write(self._query, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, once all tasks are done."""
        self._target.commit(self._query, 0, _collected(messages)[1])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed."""
        self._target.open().abort(self._query, 0, _collected(messages)[1])


def lake_of(options: SparkOptions) -> Lake:
    """The lake of these options."""
    catalog = {name[len(_CATALOG) :]: value for name, value in options.items() if name.startswith(_CATALOG)}
    return open_lake(_path(options), _format(options), catalog)


def _format(options: SparkOptions) -> LakeFormat:
    return format_named(options.get("lake", "parquet"))


def _path(options: SparkOptions) -> str:
    path = options.get("path", "")
    if not path:
        raise OptionError('Set the option path to the lake: a folder, or a URI such as "s3://bucket/lake"')
    return path


def _target(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeTarget:
    if overwrite:
        raise OptionError('A lake supports only appends: write with mode("append")')
    options = options_of(given)
    folders = [name.strip() for name in options.get("partitionBy", "").split(",") if name.strip()]
    # A relative path refers to the driver's folder; tasks may run in another.
    options = SparkOptions({**options, "path": absolute(_path(options))})
    target = LakeTarget(options, layout_for(arrow_schema(schema), folders))
    target.open().prepare(target.layout)
    return target


def _collected(messages: Sequence[WriterCommitMessage | None]) -> tuple[str | None, list[LakeFile]]:
    written = [each for each in messages if isinstance(each, WrittenFiles)]
    return (written[0].query if written else None), [file for each in written for file in each.files]
