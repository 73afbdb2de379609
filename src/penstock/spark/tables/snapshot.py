"""A short table: what the broker says at this moment, fetched by one task. Nothing in it can be followed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.connections import connected
from penstock.spark.errors import OptionError
from penstock.spark.tables.columns import batch_of_rows, wanted_columns
from penstock.spark.tables.options import TableOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

Row = dict[str, object]


def refuse_stream(table: str) -> NoReturn:
    """Say that there is nothing to follow."""
    raise OptionError(
        f"Table {table} is a snapshot and cannot be read as a stream: use spark.read, or foreachBatch to read it again for each batch. Only the table records can be streamed."
    )


class SnapshotTable(ABC):
    """Base of the short tables."""

    name: ClassVar[str]
    columns: ClassVar[StructType]
    takes: ClassVar[frozenset[str]] = frozenset()
    """Options beside those that every table has, in lower case."""

    def schema(self, options: Mapping[str, str]) -> StructType:
        """All columns."""
        TableOptions(self.name, options, self.takes)
        return self.columns

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """Reads all in one task."""
        checked = TableOptions(self.name, options, self.takes)
        return SnapshotReader(self, checked, wanted_columns(self.name, self.columns, schema))

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> NoReturn:  # noqa: ARG002  Spark's signature
        """There is nothing to follow."""
        refuse_stream(self.name)

    @abstractmethod
    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """What there is now; columns that are not wanted may be left out."""


class SnapshotReader(DataSourceReader):
    """Asks when its one task runs, so that a query that is run twice is answered twice."""

    def __init__(self, table: SnapshotTable, options: TableOptions, schema: StructType) -> None:
        self._table = table
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  there is one
        """The whole table."""
        with connected(self._options.given):
            rows = self._table.rows(self._options, frozenset(self._schema.names))
        yield batch_of_rows(rows, self._schema)
