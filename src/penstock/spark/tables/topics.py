"""Tables ``topics`` and ``partitions``: the number of records and bytes, the first and last timestamp, and the rates.

Offsets, sizes and times come from the Kafka protocol, so every broker has them. ``segments`` and the columns ``..._per_second`` (over
the last minute) come from the HTTP API and are null without it. ``first_timestamp`` is that of the first record that has one,
``last_timestamp`` the greatest of all records.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.client import Admin, At, RequestRefused, list_offsets, watermarks
from penstock.client.discovery import NoHttpListener
from penstock.client.status import StatusClient
from penstock.spark.errors import OptionError
from penstock.spark.schema import columns_of
from penstock.spark.tables.options import SELECTS_TOPICS
from penstock.spark.tables.table import Row, SnapshotTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql.types import StructType

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
    columns: ClassVar[StructType] = columns_of(
        "topic string not null, partition integer not null, leader integer, replicas integers, in_sync integers,"
        "start long, end long, records long, bytes long, segments long, first_timestamp timestamp, last_timestamp timestamp"
    )

    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """Of all topics, or of those that the query selects."""
        return [row for _, rows, _ in _selected(options, wanted) for row in rows]


class TopicsTable(SnapshotTable):
    """A row for each topic."""

    name: ClassVar[str] = "topics"
    takes: ClassVar[frozenset[str]] = SELECTS_TOPICS
    columns: ClassVar[StructType] = columns_of(
        "topic string not null, partitions integer not null, internal boolean not null, records long, bytes long, segments long,"
        "first_timestamp timestamp, last_timestamp timestamp, records_in_per_second double, bytes_in_per_second double,"
        "records_out_per_second double, bytes_out_per_second double"
    )

    def rows(self, options: TableOptions, wanted: frozenset[str]) -> Sequence[Row]:
        """All topics, or those that the query selects."""
        return [
            {
                "topic": info.name,
                "partitions": len(rows),
                "internal": info.internal,
                "records": _sum(rows, "records"),
                "bytes": _sum(rows, "bytes"),
                "segments": None if stats is None else stats.segments,
                "first_timestamp": _of_all(min, rows, "first_timestamp"),
                "last_timestamp": _of_all(max, rows, "last_timestamp"),
                **{name: None if stats is None else getattr(stats, name) for name in _RATES},
            }
            for info, rows, stats in _selected(options, wanted)
        ]


def _selected(
    options: TableOptions, wanted: frozenset[str]
) -> Iterable[tuple[TopicInfo, list[Row], TopicStats | None]]:
    """Each selected topic with a row for each partition, and with its statistics if they are wanted."""
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
    stats = _stats(options, [info.name for info in chosen]) if wanted & _BY_HTTP else {}
    for info in chosen:
        of_topic = stats.get(info.name)
        segments = {} if of_topic is None else {each.partition: each.segments for each in of_topic.partitions}
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
        yield info, rows, of_topic


def _times(options: TableOptions, places: Sequence[TopicPartition], at: int) -> dict[TopicPartition, datetime]:
    found = list_offsets(options.cluster(), dict.fromkeys(places, at))
    return {
        place: datetime.fromtimestamp(each.timestamp_ms / 1000, UTC)
        for place, each in found.items()
        if each.offset >= 0 and each.timestamp_ms >= 0
    }


def _stats(options: TableOptions, topics: Iterable[str]) -> dict[str, TopicStats]:
    found: dict[str, TopicStats] = {}
    try:
        address = options.http()
    except NoHttpListener:
        return found
    with StatusClient(address, security=options.security) as client:
        for topic in topics:
            try:
                found[topic] = client.topic(topic)
            except RequestRefused:
                # It was deleted in the meantime, or is internal: it has no statistics.
                continue
    return found


def _sum(rows: Iterable[Row], column: str) -> int | None:
    known = [value for row in rows if isinstance(value := row[column], int)]
    return sum(known) if known else None


def _of_all(which: Callable[[list[datetime]], datetime], rows: Iterable[Row], column: str) -> datetime | None:
    known = [value for row in rows if isinstance(value := row[column], datetime)]
    return which(known) if known else None
