"""Batch queries: the offsets are determined once, when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.spark.connections import with_retries
from penstock.spark.errors import OptionError, SourceError, report_data_loss
from penstock.spark.source.bounds import LATEST, Bound, show
from penstock.spark.source.offsets import Edges
from penstock.spark.source.plan import BrokerPart, LakePart, OffsetRange, tasks
from penstock.spark.source.pushdown import Constraints, push
from penstock.spark.source.selection import FoundPartitions, find

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.client.cluster import Cluster
    from penstock.spark.source.settings import SourceSettings


class RecordsReader(DataSourceReader):
    """Reads topics once. It goes to the executors with its tasks, so it has settings but no connection."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._constraints = Constraints()

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return with_retries(self._settings.options, self._plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task, in an executor."""
        return read_part(partition, self._settings, self._schema)

    def _plan(self, cluster: Cluster) -> list[InputPartition]:
        settings = self._settings
        found = find(cluster, settings.selection)
        check_found(found)
        edges = Edges(cluster, settings)
        start = edges.resolve(settings.start, found.partitions)
        end = edges.resolve(settings.end, found.partitions)
        ranges = [
            OffsetRange(
                *place,
                start.offsets[place],
                end.offsets[place],
                from_earliest=place in start.at_earliest,
                to_latest=place in end.at_latest and settings.end.mentions(LATEST),
            )
            for place in sorted(found.partitions)
        ]
        for each in ranges:
            if each.size < 0 and not each.from_earliest:
                raise _ends_before_it_starts(each, settings.start, settings.end)
        ranges = self._constraints.narrow(edges, ranges)
        return tasks(edges, self._clip(edges, ranges, end.at_latest), settings)

    def _clip(
        self, edges: Edges, ranges: list[OffsetRange], at_latest: frozenset[tuple[str, int]]
    ) -> list[OffsetRange]:
        """Limit ends that the query specifies as offsets to the records that exist."""
        given = [each.place for each in ranges if each.place not in at_latest]
        ends = edges.latest(given)
        clipped: list[OffsetRange] = []
        for each in ranges:
            end = ends.get(each.place, each.to_offset)
            if each.to_offset > end:
                report_data_loss(
                    f"{each.topic}/{each.partition} ends at offset {end}: {self._settings.end.option} asks for "
                    f"{each.to_offset}, and offsets {max(end, each.from_offset)} to {each.to_offset - 1} do not exist.",
                    fail=self._settings.fail_on_data_loss,
                )
                each = replace(each, to_offset=end)  # noqa: PLW2901  the part that exists
            clipped.append(each)
        return clipped


class FilteringRecordsReader(RecordsReader):
    """The same with filters from Spark. ``pushdown.py`` explains why this is a separate class."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Use the filters that limit what is read, and return those that must still be applied to rows."""
        self._constraints, rest = push(filters)
        return rest


def read_part(part: InputPartition, settings: SourceSettings, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of one task. If there is nothing to read, Spark makes a task without a range."""
    # Only in tasks: planning needs neither Arrow nor a decoder.
    from penstock.spark.source.task import read_lake_part, read_range

    if isinstance(part, BrokerPart):
        return read_range(part.range, settings, schema)
    if isinstance(part, LakePart):
        return read_lake_part(part, schema)
    return iter(())


def check_found(found: FoundPartitions) -> None:
    """Refuse a selection with topics or partitions that do not exist, so that none is missed silently."""
    if found.missing:
        raise missing(found.missing)
    if found.missing_partitions:
        raise SourceError(
            f"Partition {show(found.missing_partitions)} does not exist: correct the option assign, or add partitions to the topic"
        )


def missing(topics: Iterable[str]) -> SourceError:
    """The error for a query on topics that do not exist."""
    names = ", ".join(sorted(topics))
    return SourceError(
        f"Topic {names} does not exist: create it first (penstock topic create), or use subscribePattern, "
        "which includes topics as they are created"
    )


def _ends_before_it_starts(each: OffsetRange, start: Bound, end: Bound) -> OptionError:
    return OptionError(
        f"{each.topic}/{each.partition} would start at offset {each.from_offset} ({start.option}), after its end, {each.to_offset} ({end.option}). Start earlier, or check whether the topic was deleted and created again"
    )
