"""Table ``dead_letters``: records that exhausted their attempts, with their origin and the last error.

A dead letter of the topic ``orders`` is a record of the topic ``dlq.orders`` whose headers describe what happened; here they are columns.
The option ``topic`` (or ``subscribe``, ``subscribePattern``) selects the original topics, by default all. ``topic``, ``partition``,
``offset`` and ``group`` are the record's origin and the group that failed to process it; ``dlq_topic``, ``dlq_partition`` and
``dlq_offset`` are its current position. ``state`` is ``open`` until the record is redriven or purged, then ``finished``, and null if it is
unknown because the broker has no HTTP listener.

Records are read as columns, as the table ``records`` does, with its options (``minPartitions`` and so on).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client import GroupAdmin, RequestRefused
from penstock.client.discovery import NoHttpListener
from penstock.limits import TOPIC_NAME_CHARS_MAX
from penstock.spark.connections import with_retries
from penstock.spark.errors import OptionError
from penstock.spark.schema import columns_of
from penstock.spark.tables.headers import HeaderColumns
from penstock.spark.tables.options import SELECTS_TOPICS, TableOptions
from penstock.spark.tables.states import MOVING, QueueStates, Window
from penstock.spark.tables.table import Columns, RecordsBackedReader, Table, timestamps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from numpy.typing import NDArray
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

PREFIX: Final = "dlq."
REDRIVE_GROUP: Final = "penstock.redrive"
"""The group for which redriven and purged records of a dead-letter topic are finished."""
UNKNOWN_REASON: Final = "unknown"
OPEN: Final = "open"
FINISHED: Final = "finished"

ORIGINAL_TOPIC: Final = "original_topic"
ORIGINAL_PARTITION: Final = "original_partition"
ORIGINAL_OFFSET: Final = "original_offset"
ORIGINAL_GROUP: Final = "original_group"
ATTEMPTS: Final = "attempts"
LAST_ERROR: Final = "last_error"
ROUTED_AT_MS: Final = "routed_at_ms"
STORY: Final = frozenset(
    {
        ORIGINAL_TOPIC,
        ORIGINAL_PARTITION,
        ORIGINAL_OFFSET,
        ORIGINAL_GROUP,
        ATTEMPTS,
        LAST_ERROR,
        ROUTED_AT_MS,
        "penstock.move_id",
    }
)
"""Headers that the broker added when the record failed for the last time. The others are the record's own."""

_FROM_HEADERS: Final = frozenset({"topic", "partition", "offset", "group", "reason", "attempts", "died_at", "headers"})
_READING: Final = frozenset(
    {
        "minpartitions",
        "maxrecordsperpartition",
        "failondataloss",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    }
)
"""Options of the table ``records`` that control how, and not what, it reads."""
_NOT_FOUND: Final = 404


def dead_letter_topic(topic: str) -> str:
    """The dead-letter topic of a topic; its own name is accepted too."""
    return topic if topic.startswith(PREFIX) else (PREFIX + topic)[:TOPIC_NAME_CHARS_MAX]


class DeadLettersTable(Table):
    """A row for each record of each dead-letter topic."""

    name: ClassVar[str] = "dead_letters"
    takes: ClassVar[frozenset[str]] = SELECTS_TOPICS | _READING
    columns: ClassVar[StructType] = columns_of(
        "topic string, partition integer, offset long, group string, reason string, attempts integer, died_at timestamp,"
        "state string, key binary, value binary, headers headers, timestamp timestamp,"
        "dlq_topic string, dlq_partition integer, dlq_offset long"
    )

    def _reader(self, options: TableOptions, schema: StructType) -> DataSourceReader:
        return DeadLettersReader(options, schema)


class DeadLettersReader(RecordsBackedReader):
    """Reads the dead-letter topics that exist now."""

    def _records_reader(self) -> DataSourceReader | None:
        topics = self._topics()
        if not topics:
            return None
        needed = {"topic", "partition", "offset"} | (self._wanted & {"key", "value", "timestamp"})
        if self._wanted & _FROM_HEADERS:
            needed.add("headers")
        if "died_at" in self._wanted:
            needed.add("timestamp")
        return self._reading(needed, {"subscribe": ",".join(topics)})

    def _topics(self) -> list[str]:
        there = with_retries(self._options.given, lambda cluster: cluster.describe(None).topics)
        named = self._options.named_topics
        if named is None:
            dead = sorted(name for name in there if name.startswith(PREFIX))
            selected = set(self._options.selects(name.removeprefix(PREFIX) for name in dead))
            return [name for name in dead if name.removeprefix(PREFIX) in selected]
        for name in named:
            if name not in there and dead_letter_topic(name) not in there:
                raise OptionError(
                    f"Topic {name!r} does not exist, and has no dead letters: there is no {dead_letter_topic(name)!r}"
                )
        return sorted({dead_letter_topic(name) for name in named} & there.keys())

    def _rows(self, batches: Iterator[pa.RecordBatch], stack: ExitStack) -> Iterator[Columns]:
        states = _States(self._options, stack) if "state" in self._wanted else None
        for batch in batches:
            columns = _columns(batch, self._wanted)
            if states is not None:
                columns["state"] = states.of(batch)
            yield columns


def _columns(batch: pa.RecordBatch, wanted: frozenset[str]) -> Columns:
    """The columns of a batch. A record without the headers, which anyone may write, has its current position as its origin."""
    columns: Columns = {f"dlq_{name}": batch.column(name) for name in ("topic", "partition", "offset")}
    for name in ("key", "value", "timestamp"):
        if name in batch.schema.names:
            columns[name] = batch.column(name)
    if "headers" not in batch.schema.names:
        return columns
    headers = HeaderColumns(batch.column("headers"))
    if "died_at" in wanted:
        written = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        columns["died_at"] = timestamps(headers.number(ROUTED_AT_MS, written))
    if "attempts" in wanted:
        columns["attempts"] = pc.min_element_wise(
            headers.number(ATTEMPTS, pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)), np.iinfo(np.int32).max
        )
    if "partition" in wanted:
        columns["partition"] = pc.min_element_wise(
            headers.number(ORIGINAL_PARTITION, batch.column("partition")), np.iinfo(np.int32).max
        )
    if "topic" in wanted:
        without_prefix = pc.replace_substring_regex(batch.column("topic").cast(pa.string()), "^dlq\\.", "")
        columns["topic"] = _or_else(headers.text(ORIGINAL_TOPIC), without_prefix)
    if "offset" in wanted:
        columns["offset"] = headers.number_if_there(ORIGINAL_OFFSET, 0)
    if "group" in wanted:
        columns["group"] = headers.text(ORIGINAL_GROUP)
    if "reason" in wanted:
        columns["reason"] = _or_else(headers.text(LAST_ERROR), pa.repeat(pa.scalar(UNKNOWN_REASON), batch.num_rows))
    if "headers" in wanted:
        columns["headers"] = headers.without(STORY)
    return columns


def _or_else(text: pa.Array, otherwise: pa.Array) -> pa.Array:
    """The text if it is not empty."""
    is_text = pc.fill_null(pc.greater(pc.binary_length(text), 0), False)
    return pc.if_else(is_text, text, otherwise)


class _States:
    """Which dead letters are open, according to the group that redrives."""

    def __init__(self, options: TableOptions, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._queues: dict[str, QueueStates | None] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._no_http = False
        """Then the state above the committed offset is unknown."""

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """The state of each record; a batch is of one partition."""
        topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
        offsets: NDArray[np.int64] = np.asarray(batch.column("offset"), dtype=np.int64)
        window = self._window(topic, partition, int(offsets.min()), int(offsets.max()))
        if window is not None:
            moving = pa.array([each.state.value == MOVING for each in window.touched], pa.bool_())
            finished = pc.or_(
                pa.array(window.finished(offsets)), pc.fill_null(moving.take(window.places(offsets)), False)
            )
            return pc.if_else(finished, FINISHED, OPEN)
        below = pa.array(offsets < self._committed_at(topic, partition))
        return pc.if_else(below, pa.scalar(FINISHED), pa.scalar(None if self._no_http else OPEN, pa.string()))

    def _window(self, topic: str, partition: int, first: int, last: int) -> Window | None:
        if topic not in self._queues:
            try:
                admin = self._stack.enter_context(self._options.queue_admin())
            except NoHttpListener:
                self._no_http = True
                self._queues[topic] = None
            else:
                self._queues[topic] = QueueStates(admin, topic, REDRIVE_GROUP)
        queue = self._queues[topic]
        if queue is None:
            return None
        try:
            return queue.window(partition, first, last)
        except RequestRefused as refused:
            if refused.status != _NOT_FOUND:
                raise
            # None was ever redriven: only the group's offsets show what is finished.
            self._queues[topic] = None
            return None

    def _committed_at(self, topic: str, partition: int) -> int:
        place = (topic, partition)
        if place not in self._committed:
            found = GroupAdmin(self._options.cluster()).offsets(REDRIVE_GROUP, [place]).get(place)
            self._committed[place] = 0 if found is None else found.offset
        return self._committed[place]
