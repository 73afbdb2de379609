"""The columns of a record as Spark sees them: those of Spark's own Kafka connector, name by name and type by type.

A query that names a schema gets those of the columns that it names, in its order; the others are then never decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

RECORDS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
RECORDS_WITH_HEADERS: Final = StructType([*RECORDS.fields, StructField("headers", HEADERS)])
_KNOWN: Final = {field.name: field.dataType for field in RECORDS_WITH_HEADERS.fields}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches with these columns; it compares them for equality."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))


def check_columns(schema: StructType) -> None:
    """Refuse columns that a record does not have, and types that it has them not in."""
    for field in schema.fields:
        known = _KNOWN.get(field.name)
        if known is None:
            raise OptionError(f"Unknown column {field.name!r}: the columns of a record are {', '.join(_KNOWN)}")
        if field.dataType.simpleString() != known.simpleString():
            raise OptionError(
                f"The column {field.name} is {known.simpleString()}, not {field.dataType.simpleString()}: keep the type in the schema and cast it in the query, for example CAST({field.name} AS STRING)"
            )
