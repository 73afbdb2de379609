"""A table's columns: those that a query wants of it, and the Arrow batch that holds them.

A query says with ``.schema(...)`` that it wants some of the columns only; what fills the others is then not asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.errors import OptionError
from penstock.spark.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType


def wanted_columns(table: str, columns: StructType, schema: StructType) -> StructType:
    """What a query's schema asks for; OptionError when the table has no such column, or has it in another type."""
    for field in schema.fields:
        if field.name not in columns.names:
            raise OptionError(
                f"Unknown column {field.name!r}: the columns of table {table} are {', '.join(columns.names)}"
            )
        kind = columns[field.name].dataType
        if field.dataType.simpleString() != kind.simpleString():
            raise OptionError(
                f"Column {field.name} of table {table} is {kind.simpleString()}, not {field.dataType.simpleString()}:"
                f" write {field.name} {kind.simpleString()} in the schema, and CAST it in the query"
            )
    return schema


def batch_of(columns: Mapping[str, pa.Array | pa.ChunkedArray], schema: StructType) -> pa.RecordBatch:
    """The wanted columns, in their order, in exactly the types that Spark takes."""
    target = arrow_schema(schema)
    arrays = [_one_array(columns[field.name]).cast(field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def batch_of_rows(rows: Sequence[Mapping[str, object]], schema: StructType) -> pa.RecordBatch:
    """The same from rows: for tables that are short."""
    target = arrow_schema(schema)
    arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def timestamps(milliseconds: pa.Array) -> pa.Array:
    """Unix milliseconds as Spark's timestamps."""
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
