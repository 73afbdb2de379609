"""What the tables other than ``records`` have in common: their options, their columns, and that they cannot be streamed.

A query can ask for some of the columns only, with ``.schema(...)``. What fills the others is then not fetched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar, NoReturn, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.connections import connected
from penstock.spark.errors import OptionError
from penstock.spark.schema import RECORDS_WITH_HEADERS, arrow_schema, check_columns
from penstock.spark.tables.options import SELECTS_TOPICS, TableOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Row = dict[str, object]
Columns = dict[str, pa.Array]


class Table(ABC):
    """Base of the tables."""

    name: ClassVar[str]
    columns: ClassVar[StructType]
    takes: ClassVar[frozenset[str]]
    """The table's own options, in lower case."""
    needs: ClassVar[tuple[str, ...]] = ()

    def schema(self, options: Mapping[str, str]) -> StructType:
        """All columns."""
        self._checked(options)
        return self.columns

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """Read the wanted columns once."""
        checked = self._checked(options)
        check_columns(schema, self.name, self.columns)
        return self._reader(checked, schema)

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> NoReturn:  # noqa: ARG002  Spark's signature
        """Refuse: rows change after they were read."""
        raise OptionError(
            f"Table {self.name} is a snapshot and cannot be read as a stream: use spark.read, or foreachBatch to read it again for each batch. Only the table records can be streamed."
        )

    def _checked(self, options: Mapping[str, str]) -> TableOptions:
        checked = TableOptions(self.name, options, self.takes)
        for name in self.needs:
            checked.require(name)
        return checked

    @abstractmethod
    def _reader(self, options: TableOptions, schema: StructType) -> DataSourceReader: ...


class SnapshotTable(Table):
    """A short table, fetched by one task."""

    def _reader(self, options: TableOptions, schema: StructType) -> DataSourceReader:
        return _SnapshotReader(self, options, schema)

    @abstractmethod
    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """The rows now. Columns that are not wanted may be left out."""


class _SnapshotReader(DataSourceReader):
    """Fetches the rows when its task runs, so that a query that runs twice gets two answers."""

    def __init__(self, table: SnapshotTable, options: TableOptions, schema: StructType) -> None:
        self._table = table
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  there is one
        with connected(self._options.given):
            rows = self._table.rows(self._options, frozenset(self._schema.names))
        target = arrow_schema(self._schema)
        arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


class RecordsBackedReader(DataSourceReader):
    """Reads records as the table ``records`` does, and makes the rows of another table from them."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = frozenset(schema.names)
        self._records = self._records_reader()

    @abstractmethod
    def _records_reader(self) -> DataSourceReader | None:
        """What reads the records, made with :meth:`_reading`. None if there are none to read."""

    @abstractmethod
    def _rows(self, batches: Iterator[pa.RecordBatch], stack: ExitStack) -> Iterator[Columns]:
        """The columns of the table for each batch of records that is not empty."""

    def _reading(self, columns: set[str], options: Mapping[str, str]) -> DataSourceReader:
        from penstock.spark.source.table import RecordsTable

        own = SELECTS_TOPICS | {"table", "http", "group"}
        passed_on = {name: value for name, value in self._options.given.items() if name not in own}
        schema = StructType([field for field in RECORDS_WITH_HEADERS.fields if field.name in columns])
        return RecordsTable().reader({**passed_on, **options, "includeHeaders": "true"}, schema)

    def partitions(self) -> list[InputPartition]:
        """The tasks of the table ``records``. If there are none, Spark makes one without a range."""
        return [] if self._records is None else list(self._records.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._records is None:
            return
        target = arrow_schema(self._schema)
        with ExitStack() as stack:
            batches = cast("Iterator[pa.RecordBatch]", self._records.read(partition))
            for columns in self._rows((batch for batch in batches if batch.num_rows), stack):
                arrays = [_one_array(columns[field.name]).cast(field.type) for field in target]
                yield pa.RecordBatch.from_arrays(arrays, schema=target)


def timestamps(milliseconds: pa.Array) -> pa.Array:
    """Unix milliseconds as Spark's timestamps."""
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
