"""The part in an executor: reads one range of one partition as Arrow batches with exactly the requested columns.

Memory is bounded: one answer of the broker that is being decoded, one in transit, and a batch of rows for Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.client.cluster import Cluster
from penstock.client.consumer import OPENED_BYTES_MAX, Fetched
from penstock.client.errors import OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, BrokerRefused, RequestTimeout
from penstock.client.read_ahead import ReadAhead
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.records.columnar import decode
from penstock.spark.connections import connected, with_retries
from penstock.spark.errors import LOG, SourceError, report_data_loss
from penstock.spark.schema import arrow_schema
from penstock.spark.source.offsets import Edges
from penstock.spark.source.plan import LakePart, OffsetRange
from penstock.spark.source.tiers import Tiers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.lake.reading import LakeSplit
    from penstock.spark.source.settings import SourceSettings

ROWS_MAX: Final = 65_536
"""Rows of a batch, as in Spark's own Arrow readers: enough to make the cost per batch negligible."""
OPENED_TOGETHER_BYTES: Final = 16 * MIB
"""How much of a highly compressed answer is decoded at once."""
CONSTANT: Final = ("topic", "partition")


class PartitionRows:
    """Makes batches of one partition from the decoded columns and the two that are the same in every row."""

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._schema: Final = arrow_schema(schema)
        wanted = frozenset(self._schema.names) - set(CONSTANT)
        # Rows must be counted even if no column is requested: offsets are the cheapest to decode.
        self.columns: Final = wanted or frozenset({"offset"})
        self._constant: Final[dict[str, pa.Array]] = {}
        if "topic" in self._schema.names:
            self._constant["topic"] = pa.repeat(pa.scalar(topic, pa.string()), ROWS_MAX)
        if "partition" in self._schema.names:
            self._constant["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), ROWS_MAX)

    def batches(self, decoded: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The decoded and the constant columns in the order of the schema, at most ROWS_MAX rows each."""
        for start in range(0, decoded.num_rows, ROWS_MAX):
            some = decoded.slice(start, ROWS_MAX)
            columns = [
                self._constant[name].slice(0, some.num_rows) if name in self._constant else some.column(name)
                for name in self._schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def read_range(wanted: OffsetRange, settings: SourceSettings, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of a range. If some are missing, that is a data loss: an error, or the rest is read."""
    rows = PartitionRows(schema, wanted.topic, wanted.partition)
    left: OffsetRange | None = _bound_now(wanted, settings) if wanted.to_latest else wanted
    while left is not None:
        reading = left
        at = reading.from_offset
        try:
            # A new process fails at once if the broker is unavailable, but the broker may be restarting.
            with_retries(
                settings.options, partial(Cluster.leader_address, topic=wanted.topic, partition=wanted.partition)
            )
            with connected(settings.options) as cluster:
                reader = _reader(cluster, reading, settings)
                for fetched in reader:
                    for decoded in _decoded(fetched, rows.columns, reading):
                        yield from rows.batches(decoded)
                    at = reader.position
            return
        except BrokerRefused as error:
            if error.code not in (OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION):
                raise
            # After the first record was read, all following ones must exist.
            rest = replace(reading, from_offset=at, from_earliest=reading.from_earliest and at == reading.from_offset)
            left, archived = _what_is_left(rest, settings, error)
        except RequestTimeout as error:
            raise SourceError(
                f"{wanted}: {error}. Check whether the broker is overloaded or unavailable, and run the query again"
            ) from error
        for split in archived:
            yield from _read_split(split, rows)


def read_lake_part(part: LakePart, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of a part of a lake."""
    return _read_split(part.split, PartitionRows(schema, part.topic, part.partition))


def _read_split(split: LakeSplit, rows: PartitionRows) -> Iterator[pa.RecordBatch]:
    from penstock.spark.lake.tier import read_split

    for found in read_split(split, sorted(rows.columns)):
        yield from rows.batches(found)


def _reader(cluster: Cluster, wanted: OffsetRange, settings: SourceSettings) -> ReadAhead:
    return ReadAhead(
        cluster,
        wanted.topic,
        wanted.partition,
        wanted.from_offset,
        wanted.to_offset,
        bytes_max=settings.fetch_bytes_max,
        wait_ms_max=settings.fetch_wait_ms,
        timeout_ms=settings.poll_timeout_ms,
        read_committed=settings.read_committed,
    )


def _decoded(fetched: Fetched, columns: frozenset[str], wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The records of an answer. It is decoded as a whole, because the order of its batches shows which were aborted."""
    try:
        yield from decode(
            fetched.batches,
            columns=columns,
            from_offset=max(wanted.from_offset, fetched.from_offset),
            to_offset=wanted.to_offset,
            aborted=fetched.aborted,
            bytes_max=OPENED_BYTES_MAX,
            group_bytes=OPENED_TOGETHER_BYTES,
        )
    except PenstockError as error:
        at = f"{wanted.topic}/{wanted.partition} at or shortly after offset {fetched.from_offset}"
        raise SourceError(f"{at}: {error.text}") from error


def _edges(wanted: OffsetRange, settings: SourceSettings) -> tuple[int, int]:
    """Where the partition starts and ends now."""

    def ask(cluster: Cluster) -> tuple[int, int]:
        cluster.forget(wanted.topic)
        edges = Edges(cluster, settings)
        return edges.held_from([wanted.place])[wanted.place], edges.latest([wanted.place])[wanted.place]

    return with_retries(settings.options, ask)


def _bound_now(wanted: OffsetRange, settings: SourceSettings) -> OffsetRange | None:
    """The range up to the current end of the partition, and from its start if that decreased because the topic was created again."""
    try:
        first, last = _edges(wanted, settings)
    except BrokerRefused as gone:
        report_data_loss(f"{wanted} cannot be read: {gone}.", fail=settings.fail_on_data_loss)
        return None
    begin = min(first, wanted.from_offset) if wanted.from_earliest else wanted.from_offset
    bound = replace(wanted, from_offset=begin, to_offset=last, to_latest=False)
    if bound.size < 0 < wanted.size:
        report_data_loss(
            f"{wanted} cannot be read: the partition now ends at offset {last}.", fail=settings.fail_on_data_loss
        )
    return bound if bound.size > 0 else None


def _what_is_left(
    wanted: OffsetRange, settings: SourceSettings, error: BrokerRefused
) -> tuple[OffsetRange | None, Sequence[LakeSplit]]:
    """The part of a range that the broker still has, and the splits of the lake for the rest.

    Without a lake, the rest is a data loss, unless the range starts where the partition starts.
    """
    fail = settings.fail_on_data_loss
    try:
        first, last = _edges(wanted, settings)
    except BrokerRefused as gone:
        report_data_loss(f"{wanted} cannot be read: {gone}.", fail=fail)
        return None, ()
    left = replace(wanted, from_offset=max(first, wanted.from_offset), to_offset=min(wanted.to_offset, last))
    archived: Sequence[LakeSplit] = ()
    if wanted.from_offset < first:
        with connected(settings.options) as cluster:
            archived = Tiers(cluster, fail=fail).splits(wanted.place, wanted.from_offset, min(first, wanted.to_offset))
        if not archived and not wanted.from_earliest:
            report_data_loss(
                f"{wanted} cannot be read completely: the partition now starts at offset {first}.", fail=fail
            )
    elif last < wanted.to_offset:
        report_data_loss(f"{wanted} cannot be read completely: the partition now ends at offset {last}.", fail=fail)
    if left == wanted:
        raise error
    LOG.warning("reading %s instead of %s", left, wanted)
    return (left if left.size > 0 else None), archived
