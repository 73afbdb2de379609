"""Table ``queue``: the unfinished records of one queue with their state. The options ``topic`` and ``group`` select the queue.

Records are read as columns, as the table ``records`` does. States come from the HTTP API, for the records that have one. Both change
while they are read: a record that is finished in between is left out, and no record is returned twice. ``until`` is the end of a lease
or a backoff; ``attempts`` counts deliveries.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client import RequestRefused
from penstock.client.discovery import NoHttpListener
from penstock.spark.errors import OptionError
from penstock.spark.schema import columns_of
from penstock.spark.tables.states import QueueStates, Window
from penstock.spark.tables.table import Columns, RecordsBackedReader, Table, timestamps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from numpy.typing import NDArray
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from penstock.operations.queues import QueueStatus
    from penstock.spark.tables.options import TableOptions

UNTOUCHED: Final = "untouched"
_STATE_COLUMNS: Final = frozenset({"state", "owner", "attempts", "until", "last_error"})
_OF_RECORDS: Final = frozenset({"key", "value", "timestamp", "headers"})
_READING: Final = frozenset({"minpartitions", "maxrecordsperpartition", "kafkaconsumer.polltimeoutms"})


class QueueTable(Table):
    """A row for each unfinished record."""

    name: ClassVar[str] = "queue"
    takes: ClassVar[frozenset[str]] = _READING | {"topic", "group"}
    needs: ClassVar[tuple[str, ...]] = ("topic", "group")
    columns: ClassVar[StructType] = columns_of(
        "topic string, group string, partition integer, offset long, state string, owner string, attempts integer,"
        "until timestamp, last_error string, timestamp timestamp, key binary, value binary, headers headers"
    )

    def _reader(self, options: TableOptions, schema: StructType) -> DataSourceReader:
        return QueueReader(options, schema)


class QueueReader(RecordsBackedReader):
    """Reads each partition from its floor to its end, and adds the state of each record."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._topic = options.require("topic")
        self._group = options.require("group")
        super().__init__(options, schema)

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

    def _records_reader(self) -> DataSourceReader | None:
        partitions = self._queue().partitions
        if all(part.floor >= part.end for part in partitions):
            return None
        starts = {str(part.partition): part.floor for part in partitions}
        ends = {str(part.partition): max(part.floor, part.end) for part in partitions}
        options = {
            "subscribe": self._topic,
            "startingOffsets": json.dumps({self._topic: starts}),
            "endingOffsets": json.dumps({self._topic: ends}),
            # What retention deletes from the topic meanwhile is no longer in the queue either.
            "failOnDataLoss": "false",
        }
        return self._reading({"partition", "offset"} | (self._wanted & _OF_RECORDS), options)

    def _rows(self, batches: Iterator[pa.RecordBatch], stack: ExitStack) -> Iterator[Columns]:
        states = QueueStates(stack.enter_context(self._options.queue_admin()), self._topic, self._group)
        for batch in batches:
            yield self._with_states(batch, states)

    def _with_states(self, batch: pa.RecordBatch, states: QueueStates) -> Columns:
        offsets: NDArray[np.int64] = np.asarray(batch.column("offset"), dtype=np.int64)
        window = states.window(batch.column("partition")[0].as_py(), int(offsets.min()), int(offsets.max()))
        unfinished = ~window.finished(offsets)
        batch, offsets = batch.filter(pa.array(unfinished)), offsets[unfinished]
        columns: Columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["topic"] = pa.repeat(pa.scalar(self._topic), batch.num_rows)
        columns["group"] = pa.repeat(pa.scalar(self._group), batch.num_rows)
        if _STATE_COLUMNS & self._wanted:
            columns |= _state_columns(window, offsets)
        return columns


def _state_columns(window: Window, offsets: NDArray[np.int64]) -> Columns:
    """The state of each record. One that was never delivered is untouched."""
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
