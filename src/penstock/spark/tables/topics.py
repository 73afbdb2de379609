"""Tables ``topics`` and ``partitions``: how many records and bytes there are, from when to when, and how fast they come and go.

Offsets, sizes and times are asked for over the Kafka protocol, so they are there for any broker; ``segments`` and what is ``per_second``
(over the last minute) come over HTTP and are null where there is none. A time is that of a record: the first is the first record's that has
one, the last the greatest of all.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.client import Admin, At, RequestRefused, list_offsets, watermarks
from penstock.spark.errors import OptionError
from penstock.spark.tables.options import SELECTS_TOPICS
from penstock.spark.tables.snapshot import Row, SnapshotTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.client import TopicInfo, TopicPartition
    from penstock.operations.topics import TopicStats
    from penstock.spark.tables.options import TableOptions

_RATES: Final = ("records_in_per_second", "bytes_in_per_second", "records_out_per_second", "bytes_out_per_second")
_BY_HTTP: Final = frozenset({"segments", *_RATES})
_FROM_ANY_TIME_MS: Final = 0


class PartitionsTable(SnapshotTable):
    """A row for each partition."""

    name: ClassVar[str] = "partitions"
    takes: ClassVar[frozenset[str]] = SELECTS_TOPICS
    columns: ClassVar[StructType] = StructType(
        [
            StructField("topic", StringType(), False),
            StructField("partition", IntegerType(), False),
            StructField("leader", IntegerType()),
            StructField("replicas", ArrayType(IntegerType(), False)),
            StructField("in_sync", ArrayType(IntegerType(), False)),
            StructField("start", LongType()),
            StructField("end", LongType()),
            StructField("records", LongType()),
            StructField("bytes", LongType()),
            StructField("segments", LongType()),
            StructField("first_timestamp", TimestampType()),
            StructField("last_timestamp", TimestampType()),
        ]
    )

    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """Of all topics, or of those that are meant."""
        return [row for _, rows, _ in _look(options, wanted) for row in rows]


class TopicsTable(SnapshotTable):
    """A row for each topic."""

    name: ClassVar[str] = "topics"
    takes: ClassVar[frozenset[str]] = SELECTS_TOPICS
    columns: ClassVar[StructType] = StructType(
        [
            StructField("topic", StringType(), False),
            StructField("partitions", IntegerType(), False),
            StructField("internal", BooleanType(), False),
            StructField("records", LongType()),
            StructField("bytes", LongType()),
            StructField("segments", LongType()),
            StructField("first_timestamp", TimestampType()),
            StructField("last_timestamp", TimestampType()),
            *(StructField(name, DoubleType()) for name in _RATES),
        ]
    )

    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """All, or those that are meant."""
        return [
            {
                "topic": info.name,
                "partitions": len(rows),
                "internal": info.internal,
                "records": _sum(rows, "records"),
                "bytes": _sum(rows, "bytes"),
                "segments": None if numbers is None else numbers.segments,
                "first_timestamp": _of_all(min, rows, "first_timestamp"),
                "last_timestamp": _of_all(max, rows, "last_timestamp"),
                **{name: None if numbers is None else getattr(numbers, name) for name in _RATES},
            }
            for info, rows, numbers in _look(options, wanted)
        ]


def _look(options: TableOptions, wanted: frozenset[str]) -> Iterable[tuple[TopicInfo, list[Row], TopicStats | None]]:
    """Each topic that is meant with its partitions, and with its numbers when they are wanted."""
    cluster = options.cluster()
    admin = Admin(cluster)
    every = {info.name: info for info in admin.topics()}
    for name in options.named_topics or ():
        if name not in every:
            raise OptionError(
                f"Topic {name!r} does not exist; to list all topics, read the table topics without the option topic"
            )
    chosen = [every[name] for name in options.selects(every)]
    places = [(info.name, partition.index) for info in chosen for partition in info.partitions]
    ends = watermarks(cluster, places) if wanted & {"start", "end", "records"} else {}
    sizes = admin.sizes([info.name for info in chosen]) if "bytes" in wanted and chosen else {}
    first = _times(options, places, _FROM_ANY_TIME_MS) if "first_timestamp" in wanted else {}
    last = _times(options, places, At.MAX_TIMESTAMP) if "last_timestamp" in wanted else {}
    numbers = _numbers(options, [info.name for info in chosen]) if wanted & _BY_HTTP else {}
    for info in chosen:
        told = numbers.get(info.name)
        segments = {} if told is None else {each.partition: each.segments for each in told.partitions}
        rows: list[Row] = []
        for partition in info.partitions:
            place = (info.name, partition.index)
            start, end = ends.get(place, (None, None))
            rows.append(
                {
                    "topic": info.name,
                    "partition": partition.index,
                    "leader": partition.leader,
                    "replicas": list(partition.replicas),
                    "in_sync": list(partition.in_sync),
                    "start": start,
                    "end": end,
                    "records": None if start is None or end is None else end - start,
                    "bytes": sizes.get(place),
                    "segments": segments.get(partition.index),
                    "first_timestamp": first.get(place),
                    "last_timestamp": last.get(place),
                }
            )
        yield info, rows, told


def _times(options: TableOptions, places: Sequence[TopicPartition], at: int) -> dict[TopicPartition, datetime]:
    found = list_offsets(options.cluster(), dict.fromkeys(places, at))
    return {
        place: datetime.fromtimestamp(each.timestamp_ms / 1000, UTC)
        for place, each in found.items()
        if each.offset >= 0 and each.timestamp_ms >= 0
    }


def _numbers(options: TableOptions, topics: Iterable[str]) -> dict[str, TopicStats]:
    found: dict[str, TopicStats] = {}
    with options.numbers_if_any() as client:
        if client is None:
            return found
        for topic in topics:
            try:
                found[topic] = client.topic(topic)
            except RequestRefused:
                # One that was deleted meanwhile, or is the broker's own: it has no numbers to show.
                continue
    return found


def _sum(rows: Iterable[Row], column: str) -> int | None:
    known = [value for row in rows if isinstance(value := row[column], int)]
    return sum(known) if known else None


def _of_all(which: Callable[[list[datetime]], datetime], rows: Iterable[Row], column: str) -> datetime | None:
    known = [value for row in rows if isinstance(value := row[column], datetime)]
    return which(known) if known else None
