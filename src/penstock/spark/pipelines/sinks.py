"""Sinks in Spark: a writer for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.model import Mode, SinkKind, SinkTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RECORD_COLUMNS: Final = frozenset({"key", "value", "headers"})
"""Rows with only these columns are records."""


def writer_of(frame: DataFrame, sink: SinkTable, brokers: Mapping[str, str], *, query_name: str) -> DataStreamWriter:
    """The writer of one sink. ``query_name`` is the name of its query."""
    if not frame.isStreaming:
        raise PipelineUsageError(
            f"{sink.from_} is not a stream, because all its sources are static; remove static from one source"
        )
    options = {name: str(value) for name, value in sink.options.items()}
    if sink.kind is SinkKind.TOPIC:
        writer = _any_mode_writer(as_records(frame, sink), sink, brokers, options, query_name)
    elif sink.kind is SinkKind.CONSOLE:
        writer = frame.writeStream.format("console").option("truncate", "false")
    elif sink.kind is SinkKind.PARQUET:
        writer = frame.writeStream.format("parquet").option("path", sink.path)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
    else:
        writer = _lake_writer(frame, sink)
    return writer.outputMode(sink.mode.value).options(**options)


def topic_writer(frame: DataFrame, topic: str, brokers: Mapping[str, str]) -> DataStreamWriter:
    """A writer of records to a topic."""
    return frame.writeStream.format("penstock").options(**brokers).option("topic", topic)


def as_records(frame: DataFrame, sink: SinkTable) -> DataFrame:
    """Rows as records: by the sink's expressions, else unchanged if they are records, else as JSON.

    JSON does not include the columns of the record (``_offset`` and so on), and ``_key`` becomes the key.
    """
    from pyspark.sql import functions as f

    names = set(frame.columns)
    are_records = "value" in names and names <= RECORD_COLUMNS and not sink.value
    columns: list[Column] = []
    if sink.key:
        columns.append(f.expr(sink.key).alias("key"))
    elif are_records and "key" in names:
        columns.append(f.col("key"))
    elif "_key" in names:
        columns.append(f.col("_key").alias("key"))
    if sink.value:
        columns.append(f.expr(sink.value).alias("value"))
    elif are_records:
        columns.append(f.col("value"))
    else:
        plain = [f.col(f"`{name}`") for name in frame.columns if not name.startswith("_")]
        columns.append(f.to_json(f.struct(*(plain or [f.col("*")]))).alias("value"))
    if sink.headers:
        columns.append(f.expr(sink.headers).alias("headers"))
    elif are_records and "headers" in names:
        columns.append(f.col("headers"))
    return frame.select(*columns)


def _any_mode_writer(
    frame: DataFrame, sink: SinkTable, brokers: Mapping[str, str], options: dict[str, str], query_name: str
) -> DataStreamWriter:
    if sink.mode is Mode.APPEND:
        return topic_writer(frame, sink.topic, brokers)
    # Spark allows only append mode for sinks in Python, but all three for a function of each batch.
    from penstock.spark.sink.each_batch import each_batch

    given = {**options, **brokers, "topic": sink.topic}
    return frame.writeStream.foreachBatch(each_batch(given, query_name=query_name))


def _lake_writer(frame: DataFrame, sink: SinkTable) -> DataStreamWriter:
    writer = frame.writeStream.format("penstock-lake").option("path", sink.path).option("lake", sink.kind.value)
    return writer.option("partitionBy", ",".join(sink.partition_by)) if sink.partition_by else writer
