"""Table ``queue``: the unfinished records of one queue, with how each stands. The options ``topic`` and ``group`` say which.

The records are read by columns, as table ``records`` reads them; how they stand comes over HTTP, for those that something happened to.
Both change while they are read: a record that was finished in between is left out, and no record is shown twice. ``until`` is when
a lease or a wait ends; ``attempts`` counts deliveries.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.client import RequestRefused
from penstock.client.discovery import NoHttpListener
from penstock.spark.errors import OptionError
from penstock.spark.schema import HEADERS, RECORDS_WITH_HEADERS
from penstock.spark.tables.columns import batch_of, timestamps, wanted_columns
from penstock.spark.tables.options import TableOptions
from penstock.spark.tables.snapshot import refuse_stream
from penstock.spark.tables.states import QueueStates, Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.operations.queues import QueueStatus

UNTOUCHED: Final = "untouched"
_STATE_COLUMNS: Final = frozenset({"state", "owner", "attempts", "until", "last_error"})
_OF_RECORDS: Final = frozenset({"key", "value", "timestamp", "headers"})
_READING: Final = frozenset({"minpartitions", "maxrecordsperpartition", "kafkaconsumer.polltimeoutms"})


class QueueTable:
    """A row for each unfinished record."""

    name: ClassVar[str] = "queue"
    takes: ClassVar[frozenset[str]] = _READING | {"topic", "group"}
    columns: ClassVar[StructType] = StructType(
        [
            StructField("topic", StringType()),
            StructField("group", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("state", StringType()),
            StructField("owner", StringType()),
            StructField("attempts", IntegerType()),
            StructField("until", TimestampType()),
            StructField("last_error", StringType()),
            StructField("timestamp", TimestampType()),
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("headers", HEADERS),
        ]
    )

    def schema(self, options: Mapping[str, str]) -> StructType:
        """All columns."""
        self._checked(options)
        return self.columns

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """Reads from each partition's floor to its end."""
        return QueueReader(self._checked(options), wanted_columns(self.name, self.columns, schema))

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> NoReturn:  # noqa: ARG002  Spark's signature
        """There is nothing to follow."""
        refuse_stream(self.name)

    def _checked(self, options: Mapping[str, str]) -> TableOptions:
        checked = TableOptions(self.name, options, self.takes)
        checked.require("topic")
        checked.require("group")
        return checked


class QueueReader(DataSourceReader):
    """Lets table records read what is not finished, and puts beside it how it stands."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._topic = options.require("topic")
        self._group = options.require("group")
        self._records = self._records_reader(self._queue())

    def _queue(self) -> QueueStatus:
        try:
            with self._options.queue_admin() as admin:
                return admin.queue(self._topic, self._group)
        except NoHttpListener as error:
            raise OptionError(
                "Table queue needs the broker's HTTP API, which is off: start the broker with --http HOST:PORT, or set its address with the option http"
            ) from error
        except RequestRefused as refused:
            raise OptionError(
                f"Queue {self._topic} of group {self._group} does not exist: {refused.sentence}"
            ) from refused

    def _records_reader(self, queue: QueueStatus) -> DataSourceReader | None:
        from penstock.spark.source.table import RecordsTable

        if all(part.floor >= part.end for part in queue.partitions):
            return None
        wanted = frozenset(self._schema.names)
        needed = {"partition", "offset"} | (wanted & _OF_RECORDS)
        kept = {
            name: value
            for name, value in self._options.given.items()
            if name not in ("table", "http", "topic", "group")
        }
        options = {
            **kept,
            "subscribe": self._topic,
            "startingOffsets": json.dumps(
                {self._topic: {str(part.partition): part.floor for part in queue.partitions}}
            ),
            "endingOffsets": json.dumps(
                {self._topic: {str(part.partition): max(part.floor, part.end) for part in queue.partitions}}
            ),
            "includeHeaders": "true",
            # What retention takes from the topic meanwhile is not in the queue any more either.
            "failOnDataLoss": "false",
        }
        schema = StructType([field for field in RECORDS_WITH_HEADERS.fields if field.name in needed])
        return RecordsTable().reader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Those of table records; Spark makes an empty one of none."""
        return [] if self._records is None else list(self._records.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Unfinished records of a part of a partition."""
        if self._records is None:
            return
        with self._options.queue_admin() as admin:
            states = QueueStates(admin, self._topic, self._group)
            for batch in self._records.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                if batch.num_rows:
                    yield self._with_states(batch, states)

    def _with_states(self, batch: pa.RecordBatch, states: QueueStates) -> pa.RecordBatch:
        offsets: NDArray[np.int64] = np.asarray(batch.column("offset"), dtype=np.int64)
        window = states.window(batch.column("partition")[0].as_py(), int(offsets.min()), int(offsets.max()))
        unfinished = ~window.finished(offsets)
        batch, offsets = batch.filter(pa.array(unfinished)), offsets[unfinished]
        columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["topic"] = pa.repeat(pa.scalar(self._topic), batch.num_rows)
        columns["group"] = pa.repeat(pa.scalar(self._group), batch.num_rows)
        if _STATE_COLUMNS & set(self._schema.names):
            columns |= _state_columns(window, offsets)
        return batch_of(columns, self._schema)


def _state_columns(window: Window, offsets: NDArray[np.int64]) -> dict[str, pa.Array]:
    """How each record stands: one that nothing happened to is untouched."""
    places = window.places(offsets)
    touched = window.touched
    state = pa.array([each.state.value for each in touched], pa.string()).take(places)
    attempts = pa.array([each.attempts for each in touched], pa.int32()).take(places)
    return {
        "state": pc.fill_null(state, UNTOUCHED),
        "attempts": pc.fill_null(attempts, 0),
        "owner": pa.array([each.owner for each in touched], pa.string()).take(places),
        "until": timestamps(pa.array([each.until_ms for each in touched], pa.int64()).take(places)),
        "last_error": pa.array([each.last_error or None for each in touched], pa.string()).take(places),
    }
