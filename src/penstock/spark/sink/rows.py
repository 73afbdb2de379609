"""Converts the columns of a DataFrame to the columns of records.

The columns are those of Kafka: ``value``, and optionally ``key``, ``headers``, ``topic`` and ``partition``. Others are ignored, as in
Spark's Kafka connector; ``timestamp`` is used only with the option ``keepTimestamp``. A :class:`RowLayout` is made on the driver, where a
wrong column is reported before anything runs, and is used by every task.

Invariant: the columns of one :class:`SinkRows` have equal lengths, and rows stay in Spark's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE: Final = "value"
KEY: Final = "key"
HEADERS: Final = "headers"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
TIMESTAMP: Final = "timestamp"


class RowError(ValueError):
    """A row names no topic, or a partition that does not exist."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The index of the column for each field of a record; None if there is no such column."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows of a DataFrame, ready to be routed. ``records`` has the columns value, key, headers and timestamp that exist."""

    records: pa.RecordBatch
    topics: pa.Array | None
    partitions: pa.Array | None


def layout_of(schema: StructType, *, topic_given: bool, keep_timestamp: bool) -> RowLayout:
    """The columns of the fields; OptionError if one is missing or has the wrong type."""
    if not topic_given and TOPIC not in schema.fieldNames():
        raise OptionError(
            "The topic to write to is missing: set the option 'topic', or add a column 'topic' of type string"
        )
    if VALUE not in schema.fieldNames():
        raise OptionError(
            f"The required column 'value' is missing (there are: {', '.join(schema.fieldNames()) or 'none'}): "
            'add it, for example with selectExpr("to_json(struct(*)) AS value")'
        )
    # As in Spark's Kafka connector, the option takes precedence, and the column is not checked.
    topic = None if topic_given else _place(schema, TOPIC, "string", lambda kind: isinstance(kind, StringType))
    key = _place(schema, KEY, "string or binary", _is_bytes)
    value = _place(schema, VALUE, "string or binary", _is_bytes)
    assert value is not None
    headers = _place(schema, HEADERS, "array<struct<key: string, value: binary>>", _is_headers)
    partition = _place(schema, PARTITION, "int", lambda kind: isinstance(kind, IntegerType))
    timestamp = None
    if keep_timestamp:
        timestamp = _place(schema, TIMESTAMP, "timestamp", _is_timestamp)
        if timestamp is None:
            raise OptionError("keepTimestamp is on, but there is no column 'timestamp': add it, or remove the option")
    return RowLayout(value=value, key=key, headers=headers, topic=topic, partition=partition, timestamp=timestamp)


def rows_of(batch: pa.RecordBatch, layout: RowLayout, now_ms: int) -> SinkRows:
    """The fields of records in a batch from Spark, without copying rows."""
    names, columns = [VALUE], [_as_binary(batch.column(layout.value))]
    if layout.key is not None:
        names.append(KEY)
        columns.append(_as_binary(batch.column(layout.key)))
    if layout.headers is not None:
        names.append(HEADERS)
        columns.append(batch.column(layout.headers))
    if layout.timestamp is not None:
        names.append(TIMESTAMP)
        columns.append(_as_milliseconds(batch.column(layout.timestamp), now_ms))
    return SinkRows(
        pa.RecordBatch.from_arrays(columns, names=names),
        None if layout.topic is None else batch.column(layout.topic),
        None if layout.partition is None else batch.column(layout.partition),
    )


def _as_binary(column: pa.Array) -> pa.Array:
    # A string has the same bytes, and from the large types only the offsets change.
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _as_milliseconds(column: pa.Array, now_ms: int) -> pa.Array:
    # As int64, because a cast between units refuses to round.
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).view(pa.int64())
    # Round down, not towards zero, also before 1970.
    floored = np.floor_divide(pc.fill_null(micros, pa.scalar(now_ms * 1000, pa.int64())).to_numpy(), 1000)
    return pa.array(floored, pa.int64())


def _place(schema: StructType, name: str, wanted: str, fits: Callable[[DataType], bool]) -> int | None:
    if name not in schema.fieldNames():
        return None
    place = schema.fieldNames().index(name)
    kind = schema[place].dataType
    if not fits(kind):
        raise OptionError(f"The column {name!r} has type {kind.simpleString()}, but must be {wanted}: cast it")
    return place


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType))


def _is_timestamp(kind: DataType) -> bool:
    return isinstance(kind, (TimestampType, TimestampNTZType))


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )
