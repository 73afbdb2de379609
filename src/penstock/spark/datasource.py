"""``format("penstock")``: reads and writes topics, and reads the state of queues, groups and topics as tables.

Spark makes a data source from the options of a query and asks it for a schema, a reader or a writer, which do the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.tables import table_named

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    """The data source. The option ``table`` selects one of its tables, by default the records of topics."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "penstock"

    def schema(self) -> StructType:
        return table_named(self.options).schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return table_named(self.options).reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        return table_named(self.options).stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's
        from penstock.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
