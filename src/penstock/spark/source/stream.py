"""Streams: Spark asks where the topics end, and reads new records micro-batch by micro-batch.

Offsets in the checkpoint have the format of Spark's Kafka connector: ``{"orders": {"0": 123, "1": 7}}``.

Spark does not store the initial offsets of a query before its first batch is planned, and asks for them again if that batch is retried:
"latest" would then be later, and the records in between would be lost. So a query that starts at the latest offsets has an empty first
batch, which stores these offsets in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.errors import ClientError
from penstock.client.group_admin import GroupAdmin
from penstock.spark.connections import connected, with_retries
from penstock.spark.errors import LOG, report_data_loss
from penstock.spark.source.batch import check_found, missing, read_part
from penstock.spark.source.bounds import JsonOffsets, Offsets, by_place, show
from penstock.spark.source.offsets import Edges
from penstock.spark.source.plan import OffsetRange, tasks
from penstock.spark.source.rates import BatchDelay, share
from penstock.spark.source.selection import find

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.client.cluster import Cluster, TopicPartition
    from penstock.spark.source.settings import SourceSettings

StoredOffsets = dict[str, dict[str, int]]
NOT_BEGUN: Final[StoredOffsets] = {"": {}}
"""The offsets of a query whose start is not yet in the checkpoint. No topic has an empty name."""


class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow. One instance runs in a separate process next to the driver, others read in the executors."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._delay: BatchDelay | None = None
        if settings.trigger_offsets_min is not None:
            self._delay = BatchDelay(settings.trigger_offsets_min, settings.trigger_delay_ms)
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets = {}
        self._reported_missing: frozenset[str] = frozenset()

    def initialOffset(self) -> StoredOffsets:  # noqa: N802  Spark's name
        """Where a new query starts."""
        start, settled = with_retries(self._settings.options, self._start)
        return dump(start) if settled else NOT_BEGUN

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """The limit of a micro-batch by default. Spark's limits have one bound, so the minimum is read from the settings again."""
        if self._settings.trigger_offsets_max is not None:
            return ReadMaxRows(self._settings.trigger_offsets_max)
        if self._settings.trigger_offsets_min is not None:
            return ReadMinRows(self._settings.trigger_offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix where the query ends. Later records are for the next run."""
        self._target = with_retries(self._settings.options, self._ends_now)

    def latestOffset(self, start: StoredOffsets, limit: ReadLimit) -> StoredOffsets:  # noqa: N802  Spark's name
        """Where the next micro-batch ends; ``start`` if there is nothing to read."""
        if start == NOT_BEGUN:
            return dump(with_retries(self._settings.options, self._start)[0])
        known = load(start)
        # Spark asks for a batch when the previous one is done, so that is what the group has read.
        self._commit(known)
        return dump(with_retries(self._settings.options, lambda cluster: self._next_end(cluster, known, limit)))

    def reportLatestOffset(self) -> StoredOffsets | None:  # noqa: N802  Spark's name
        """Where the topics end, for the lag in progress reports."""
        return None if self._latest is None else dump(self._latest)

    def partitions(self, start: StoredOffsets, end: StoredOffsets) -> list[InputPartition]:
        """The tasks of one micro-batch."""
        if start == NOT_BEGUN:
            return []
        return with_retries(self._settings.options, lambda cluster: self._plan(cluster, load(start), load(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task, in an executor."""
        return read_part(partition, self._settings, self._schema)

    def commit(self, end: StoredOffsets) -> None:
        """The batch with this end is done."""
        self._commit(load(end))

    def _start(self, cluster: Cluster) -> tuple[Offsets, bool]:
        """The offsets according to the options, and whether they would be the same if requested again."""
        settings = self._settings
        found = find(cluster, settings.selection)
        check_found(found)
        resolved = Edges(cluster, settings).resolve(settings.start, found.partitions, ends=self._target)
        return resolved.offsets, not resolved.at_latest

    def _there(self, cluster: Cluster, known: Offsets) -> frozenset[TopicPartition]:
        """The partitions that exist now. The plan reports topics that were read and are missing now."""
        found = find(cluster, self._settings.selection)
        never_seen = found.missing - {topic for topic, _ in known}
        if never_seen and self._settings.fail_on_data_loss:
            raise missing(never_seen)
        if never_seen - self._reported_missing:
            LOG.warning("topic %s does not exist; the query continues without it", ", ".join(sorted(never_seen)))
        self._reported_missing = never_seen
        return found.partitions

    def _ends_now(self, cluster: Cluster) -> Offsets:
        # Whether a missing topic was ever read is known when Spark passes the start of the batch.
        return Edges(cluster, self._settings).latest(find(cluster, self._settings.selection).partitions)

    def _next_end(self, cluster: Cluster, known: Offsets, limit: ReadLimit) -> Offsets:
        settings = self._settings
        edges = Edges(cluster, settings)
        there = self._there(cluster, known)
        end = edges.latest_not_before(there, known) if self._target is None else self._target
        if settings.fail_on_data_loss:
            # Before Spark stores the end. Otherwise a wrong broker or topic would stay in the checkpoint, and correcting the name would
            # not help.
            _report_gone(frozenset(known.keys() - end.keys()), fail=True)
            for place in sorted(known.keys() & end.keys()):
                _report_back(place, known[place], end[place], fail=True)
        self._latest = end
        if isinstance(limit, ReadAllAvailable):
            return end
        # A run with a fixed end would wait forever, or leave the last records.
        if self._delay is not None and self._target is None:
            now_ms = int(monotonic() * 1000)
            if self._delay.must_wait(known, end, now_ms):
                return known
        if settings.trigger_offsets_max is None:
            return end
        begins = {**edges.earliest(end.keys() - known.keys()), **known}
        return share(settings.trigger_offsets_max, begins, end)

    def _plan(self, cluster: Cluster, start: Offsets, end: Offsets) -> list[InputPartition]:
        fail = self._settings.fail_on_data_loss
        there = find(cluster, self._settings.selection).partitions
        gone = frozenset((start.keys() | end.keys()) - there) | frozenset(start.keys() - end.keys())
        _report_gone(gone, fail=fail)
        readable = frozenset(end) - gone
        edges = Edges(cluster, self._settings)
        begins = {**self._new(edges, readable - start.keys()), **start}
        ranges: list[OffsetRange] = []
        for place in sorted(readable):
            begin = begins[place]
            if _report_back(place, begin, end[place], fail=fail):
                # None of its current records was read.
                begin = edges.earliest([place])[place]
            ranges.append(OffsetRange(*place, begin, end[place]))
        return tasks(edges, ranges, self._settings)

    def _new(self, edges: Edges, places: frozenset[TopicPartition]) -> Offsets:
        """Where new partitions start: at 0, unless records were deleted before they were read."""
        begins = edges.earliest(places)
        for (topic, partition), offset in begins.items():
            if offset:
                report_data_loss(
                    f"the new partition {topic}/{partition} starts at offset {offset}, not at 0.",
                    fail=self._settings.fail_on_data_loss,
                )
        return begins

    def _commit(self, offsets: Offsets) -> None:
        """Commit for the group, which shows the lag. The query uses only the checkpoint, so a failure is only logged."""
        group = self._settings.group
        if group is None or not offsets or offsets == self._committed:
            return
        try:
            with connected(self._settings.options) as cluster:
                GroupAdmin(cluster).commit(group, offsets)
        except ClientError as error:
            LOG.warning("could not commit the offsets of the group %s: %s", group, error)
        self._committed = offsets


def _report_gone(places: frozenset[TopicPartition], *, fail: bool) -> None:
    if places:
        report_data_loss(
            f"{show(places)} {'is' if len(places) == 1 else 'are'} missing: the topic was deleted, or the options of the query no longer include it.",
            fail=fail,
        )


def _report_back(place: TopicPartition, known: int, end: int, *, fail: bool) -> bool:
    """Whether a partition ends before the offset that was read."""
    if end < known:
        report_data_loss(
            f"{place[0]}/{place[1]} ended at offset {known} and now ends at {end}: the topic was deleted and created again, or the query started past its end.",
            fail=fail,
        )
    return end < known


def dump(offsets: Mapping[TopicPartition, int]) -> StoredOffsets:
    """Offsets as in a checkpoint, in order."""
    by_topic: StoredOffsets = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return by_topic


def load(stored: StoredOffsets) -> Offsets:
    """Offsets from a checkpoint, also from one of Spark's Kafka connector."""
    return by_place(msgspec.convert(stored, JsonOffsets, str_keys=True))
