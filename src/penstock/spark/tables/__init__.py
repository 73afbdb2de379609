"""What ``format("penstock")`` shows as tables: the records of topics, and what the broker knows of queues, groups and topics.

The option ``table`` names one. A module here is one table; the records of topics are ``penstock.spark.source``. A table is imported
when it is asked for: Spark's Python workers start anew now and then, and need one of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

RECORDS: Final = "records"
TABLES: Final = {
    RECORDS: ("penstock.spark.source.table", "RecordsTable"),
    "dead_letters": ("penstock.spark.tables.dead_letters", "DeadLettersTable"),
    "queue": ("penstock.spark.tables.queue", "QueueTable"),
    "groups": ("penstock.spark.tables.groups", "GroupsTable"),
    "topics": ("penstock.spark.tables.topics", "TopicsTable"),
    "partitions": ("penstock.spark.tables.topics", "PartitionsTable"),
}


class BrokerTable(Protocol):
    """What the data source asks of a table. The options are those of the query, as Spark hands them over."""

    name: str

    def schema(self, options: Mapping[str, str]) -> StructType:
        """Its columns, when the query does not say which it wants."""
        ...

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """What reads it once."""
        ...

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
        """What follows it; refused with a sentence where there is nothing to follow."""
        ...


def table_named(options: Mapping[str, str]) -> BrokerTable:
    """The table that the option ``table`` names: ``records`` unless told."""
    wanted = next((value for name, value in options.items() if name.lower() == "table"), RECORDS)
    found = TABLES.get(wanted.strip().lower().replace("-", "_"))
    if found is None:
        raise ValueError(f"Unknown table {wanted!r}: the option table must be one of {', '.join(TABLES)}")
    module, kind = found
    return cast("BrokerTable", getattr(import_module(module), kind)())
