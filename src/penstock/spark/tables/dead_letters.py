"""Table ``dead_letters``: records that exhausted their attempts, with where they came from and what was wrong.

A dead letter of topic ``orders`` is a record of topic ``dlq.orders`` whose headers tell its story; here they are columns. The option
``topic`` (or ``subscribe``, ``subscribePattern``) names the topics that dead letters came from; without it all are shown. ``topic``,
``partition``, ``offset`` and ``group`` are where the record was and who gave it up; ``dlq_topic``, ``dlq_partition`` and ``dlq_offset`` where it lies.
``state`` is ``open`` until it is redriven or purged, then ``finished``; null where a broker without its HTTP listener cannot tell.

The records are read by columns, as table ``records`` reads them, with its options for that (``minPartitions`` and so on).
"""

from __future__ import annotations

from contextlib import ExitStack
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

from penstock.client import GroupAdmin, RequestRefused
from penstock.client.discovery import NoHttpListener
from penstock.limits import TOPIC_NAME_CHARS_MAX
from penstock.spark.connections import patiently
from penstock.spark.errors import OptionError
from penstock.spark.schema import HEADERS, RECORDS_WITH_HEADERS
from penstock.spark.tables.columns import batch_of, timestamps, wanted_columns
from penstock.spark.tables.headers import HeaderColumns
from penstock.spark.tables.options import SELECTS_TOPICS, TableOptions
from penstock.spark.tables.snapshot import refuse_stream
from penstock.spark.tables.states import MOVING, QueueStates, Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

PREFIX: Final = "dlq."
REDRIVE_GROUP: Final = "penstock.redrive"
"""Has finished, in a dead-letter topic, what was redriven or purged."""
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
"""Headers that the broker put on when the record died. The others are the record's own."""

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
"""Options of table records that say how, and not what, it reads."""
_NOT_FOUND: Final = 404


def dead_letter_topic(topic: str) -> str:
    """Where the dead letters of a topic lie; its own name will do too."""
    return topic if topic.startswith(PREFIX) else (PREFIX + topic)[:TOPIC_NAME_CHARS_MAX]


class DeadLettersTable:
    """A row for each record of each dead-letter topic."""

    name: ClassVar[str] = "dead_letters"
    takes: ClassVar[frozenset[str]] = SELECTS_TOPICS | _READING
    columns: ClassVar[StructType] = StructType(
        [
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("group", StringType()),
            StructField("reason", StringType()),
            StructField("attempts", IntegerType()),
            StructField("died_at", TimestampType()),
            StructField("state", StringType()),
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("headers", HEADERS),
            StructField("timestamp", TimestampType()),
            StructField("dlq_topic", StringType()),
            StructField("dlq_partition", IntegerType()),
            StructField("dlq_offset", LongType()),
        ]
    )

    def schema(self, options: Mapping[str, str]) -> StructType:
        """All columns."""
        TableOptions(self.name, options, self.takes)
        return self.columns

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        """Reads the dead-letter topics that there are now."""
        checked = TableOptions(self.name, options, self.takes)
        return DeadLettersReader(checked, wanted_columns(self.name, self.columns, schema))

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> NoReturn:  # noqa: ARG002  Spark's signature
        """Their states change behind a stream's back."""
        refuse_stream(self.name)


class DeadLettersReader(DataSourceReader):
    """Lets table records read the dead-letter topics, and turns what it reads into dead letters."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        wanted = frozenset(schema.names)
        needed = {"topic", "partition", "offset"}
        needed |= wanted & {"key", "value", "timestamp"}
        needed |= {"headers"} if wanted & _FROM_HEADERS else set()
        needed |= {"timestamp"} if "died_at" in wanted else set()
        topics = self._topics()
        self._records = self._records_reader(topics, needed) if topics else None

    def _topics(self) -> list[str]:
        there = patiently(self._options.given, lambda cluster: cluster.describe(None).topics)
        named = self._options.named_topics
        if named is None:
            dead = sorted(name for name in there if name.startswith(PREFIX))
            meant = set(self._options.selects(name.removeprefix(PREFIX) for name in dead))
            return [name for name in dead if name.removeprefix(PREFIX) in meant]
        for name in named:
            if name not in there and dead_letter_topic(name) not in there:
                raise OptionError(
                    f"Topic {name!r} does not exist, and has no dead letters: there is no {dead_letter_topic(name)!r}"
                )
        return sorted({dead_letter_topic(name) for name in named} & there.keys())

    def _records_reader(self, topics: list[str], needed: set[str]) -> DataSourceReader:
        from penstock.spark.source.table import RecordsTable

        kept = {
            name: value for name, value in self._options.given.items() if name not in SELECTS_TOPICS | {"table", "http"}
        }
        # As it is written: a topic's name may hold whatever a comma-separated list can.
        options = {**kept, "subscribe": ",".join(topics), "includeHeaders": "true"}
        schema = StructType([field for field in RECORDS_WITH_HEADERS.fields if field.name in needed])
        return RecordsTable().reader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Those of table records; Spark makes an empty one of none."""
        return [] if self._records is None else list(self._records.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Dead letters of a part of a partition."""
        if self._records is None:
            return
        with ExitStack() as stack:
            states = _States(self._options, stack) if "state" in self._schema.names else None
            for batch in self._records.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                if batch.num_rows:
                    yield batch_of(_columns(batch, frozenset(self._schema.names), states), self._schema)


def _columns(batch: pa.RecordBatch, wanted: frozenset[str], states: _States | None) -> dict[str, pa.Array]:
    """What a batch of records says, where it says nothing (anyone may write to the topic) it belongs to where it lies."""
    columns: dict[str, pa.Array] = {
        "dlq_topic": batch.column("topic"),
        "dlq_partition": batch.column("partition"),
        "dlq_offset": batch.column("offset"),
    }
    for name in ("key", "value", "timestamp"):
        if name in batch.schema.names:
            columns[name] = batch.column(name)
    if "headers" in batch.schema.names:
        said = HeaderColumns(batch.column("headers"))
        lies_in = pc.replace_substring_regex(batch.column("topic").cast(pa.string()), "^dlq\\.", "")
        made: dict[str, pa.Array] = {}
        if "died_at" in wanted:
            there = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            made["died_at"] = timestamps(said.number(ROUTED_AT_MS, there))
        if "attempts" in wanted:
            made["attempts"] = pc.min_element_wise(
                said.number(ATTEMPTS, pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)), np.iinfo(np.int32).max
            )
        if "partition" in wanted:
            made["partition"] = pc.min_element_wise(
                said.number(ORIGINAL_PARTITION, batch.column("partition")), np.iinfo(np.int32).max
            )
        if "topic" in wanted:
            made["topic"] = _or_else(said.text(ORIGINAL_TOPIC), lies_in)
        if "offset" in wanted:
            made["offset"] = said.number_if_there(ORIGINAL_OFFSET, 0)
        if "group" in wanted:
            made["group"] = said.text(ORIGINAL_GROUP)
        if "reason" in wanted:
            unknown = pa.repeat(pa.scalar(UNKNOWN_REASON), batch.num_rows)
            made["reason"] = _or_else(said.text(LAST_ERROR), unknown)
        if "headers" in wanted:
            made["headers"] = said.without(STORY)
        columns |= made
    if states is not None:
        columns["state"] = states.of(batch)
    return columns


def _or_else(text: pa.Array, otherwise: pa.Array) -> pa.Array:
    """The text where there is any."""
    is_text = pc.fill_null(pc.greater(pc.binary_length(text), 0), False)
    return pc.if_else(is_text, text, otherwise)


class _States:
    """Which dead letters are open, as the group that redrives has it."""

    def __init__(self, options: TableOptions, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._queues: dict[str, QueueStates | None] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._no_http = False
        """Then what lies above the committed offset cannot be known."""

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
            # Nobody ever redrove any: the group's offsets alone say what is finished.
            self._queues[topic] = None
            return None

    def _committed_at(self, topic: str, partition: int) -> int:
        place = (topic, partition)
        if place not in self._committed:
            found = GroupAdmin(self._options.cluster()).offsets(REDRIVE_GROUP, [place]).get(place)
            self._committed[place] = 0 if found is None else found.offset
        return self._committed[place]
