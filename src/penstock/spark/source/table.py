"""The table ``records``, the default of ``format("penstock")``: the records of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.options import options_of
from penstock.spark.schema import RECORDS, RECORDS_WITH_HEADERS, check_columns
from penstock.spark.source.settings import batch_settings, check_general, include_headers, stream_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class RecordsTable:
    """The records of the topics that a query selects."""

    name = "records"

    def schema(self, options: Mapping[str, str]) -> StructType:
        """Its columns. Wrong options are refused here, before anything runs."""
        given = options_of(options)
        check_general(given)
        return RECORDS_WITH_HEADERS if include_headers(given) else RECORDS

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """Reads it once, with filters from Spark if the query requests that."""
        from penstock.spark.source.batch import FilteringRecordsReader, RecordsReader
        from penstock.spark.source.pushdown import is_wanted

        check_columns(schema)
        settings = batch_settings(options_of(options))
        return (FilteringRecordsReader if is_wanted(settings.options) else RecordsReader)(settings, schema)

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
        """Reads it as a stream."""
        from penstock.spark.source.stream import RecordsStreamReader

        check_columns(schema)
        return RecordsStreamReader(stream_settings(options_of(options)), schema)
