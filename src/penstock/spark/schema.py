"""The columns of a record as Spark sees them: those of Spark's own Kafka connector, name by name and type by type.

A query that specifies a schema gets only the columns that it names, in its order. The others are never decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType

from penstock.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_ARRAYS: Final = {"headers": HEADERS, "integers": ArrayType(IntegerType(), False)}


def columns_of(text: str) -> StructType:
    """The columns in a text such as ``"topic string not null, offset long"``. Spark's own parser of DDL needs Java, which tasks lack."""
    columns = StructType()
    for column in text.split(","):
        name, kind, *not_null = column.split()
        columns.add(name, _ARRAYS.get(kind, kind), nullable=not not_null)
    return columns


RECORDS: Final = columns_of(
    "key binary, value binary, topic string, partition integer, offset long, timestamp timestamp, timestampType integer"
)
RECORDS_WITH_HEADERS: Final = StructType([*RECORDS.fields, StructField("headers", HEADERS)])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches with these columns. It compares them for equality."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))


def check_columns(schema: StructType, table: str = "records", columns: StructType = RECORDS_WITH_HEADERS) -> None:
    """Refuse a query's schema with a column that the table lacks or has in another type."""
    for field in schema.fields:
        if field.name not in columns.names:
            raise OptionError(
                f"Unknown column {field.name!r}: the columns of table {table} are {', '.join(columns.names)}"
            )
        kind, wanted = columns[field.name].dataType.simpleString(), field.dataType.simpleString()
        if kind != wanted:
            raise OptionError(
                f"In table {table}, column {field.name} is {kind}, not {wanted}: write {field.name} {kind} in the schema, and cast the column in the query, for example CAST({field.name} AS STRING)"
            )
