"""A query that goes on: Spark asks where the topics end, and has what came since read, micro-batch by micro-batch.

Offsets are written to the checkpoint as Spark's Kafka connector writes them: ``{"orders": {"0": 123, "1": 7}}``.

Spark does not keep the offsets that a query began with until its first batch is written down, and asks for them again when that batch is
tried again: "latest" would then be later, and what came in between would be lost. So a query that starts at the latest offsets has a
first batch that is empty and ends where it starts: from then on the checkpoint knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

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
from penstock.spark.connections import connected, patiently
from penstock.spark.errors import LOG, report_data_loss
from penstock.spark.source.batch import check_found, missing, read_part
from penstock.spark.source.bounds import Offsets, parse_offsets, show
from penstock.spark.source.offsets import Edges
from penstock.spark.source.plan import Range, tasks
from penstock.spark.source.rates import Patience, share
from penstock.spark.source.selection import find

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.client.cluster import Cluster, TopicPartition
    from penstock.spark.source.settings import SourceSettings

JsonOffsets = dict[str, dict[str, int]]
NOT_BEGUN: Final[JsonOffsets] = {"": {}}
"""Where a query stands whose start the checkpoint does not know yet. No topic has an empty name."""


class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. One lives in a process of its own beside the driver, another goes to the executors to read."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._patience: Patience | None = None
        if settings.trigger_offsets_min is not None:
            self._patience = Patience(settings.trigger_offsets_min, settings.trigger_delay_ms)
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets = {}
        self._told_missing: frozenset[str] = frozenset()

    # What Spark asks of the driver's side

    def initialOffset(self) -> JsonOffsets:  # noqa: N802  Spark's name
        """Where a new query starts."""
        start, settled = patiently(self._settings.options, self._start)
        return dump(start) if settled else NOT_BEGUN

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """What a micro-batch takes unless the trigger says otherwise; Spark's limits name one bound, so a minimum is looked up again."""
        if self._settings.trigger_offsets_max is not None:
            return ReadMaxRows(self._settings.trigger_offsets_max)
        if self._settings.trigger_offsets_min is not None:
            return ReadMinRows(self._settings.trigger_offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix where the query ends: what comes later is for the next run."""
        self._target = patiently(self._settings.options, self._ends_now)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802  Spark's name
        """Where the next micro-batch ends; ``start`` again when there is nothing for it."""
        if start == NOT_BEGUN:
            return dump(patiently(self._settings.options, self._start)[0])
        known = load(start)
        # A batch is asked for only when the one before it is done, so its end is what the group has read.
        self._commit(known)
        return dump(patiently(self._settings.options, lambda cluster: self._next_end(cluster, known, limit)))

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802  Spark's name
        """Where the topics end, for the progress report: how far the query is behind."""
        return None if self._latest is None else dump(self._latest)

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """The tasks of one micro-batch."""
        if start == NOT_BEGUN:
            return []
        return patiently(self._settings.options, lambda cluster: self._plan(cluster, load(start), load(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task, in an executor."""
        return read_part(partition, self._settings, self._schema)

    def commit(self, end: JsonOffsets) -> None:
        """The batch that ended there is done."""
        self._commit(load(end))

    # How it is found out

    def _start(self, cluster: Cluster) -> tuple[Offsets, bool]:
        """The offsets of the options, and whether asking again would give the same."""
        settings = self._settings
        found = find(cluster, settings.selection)
        check_found(found)
        resolved = Edges(cluster, settings).resolve(settings.start, found.partitions, ends=self._target)
        return resolved.offsets, not resolved.at_latest

    def _there(self, cluster: Cluster, known: Offsets) -> frozenset[TopicPartition]:
        """The partitions that there are now. A topic that was read and is gone is left for the plan to report."""
        found = find(cluster, self._settings.selection)
        never_seen = found.missing - {topic for topic, _ in known}
        if never_seen and self._settings.fail_on_data_loss:
            raise missing(never_seen)
        if never_seen - self._told_missing:
            LOG.warning("there is no topic %s; the query goes on without it", ", ".join(sorted(never_seen)))
        self._told_missing = never_seen
        return found.partitions

    def _ends_now(self, cluster: Cluster) -> Offsets:
        # Whether a topic that is missing was ever read shows when Spark says where the query stands.
        return Edges(cluster, self._settings).latest(find(cluster, self._settings.selection).partitions)

    def _next_end(self, cluster: Cluster, known: Offsets, limit: ReadLimit) -> Offsets:
        settings = self._settings
        edges = Edges(cluster, settings)
        there = self._there(cluster, known)
        end = edges.latest_not_before(there, known) if self._target is None else self._target
        if settings.fail_on_data_loss:
            # Here, before Spark writes the end down: else a broker or a topic that was named by mistake would be in the checkpoint
            # for good, and naming the right one again would not help.
            _report_gone(frozenset(known.keys() - end.keys()), fail=True)
            for place in sorted(known.keys() & end.keys()):
                _report_back(place, known[place], end[place], fail=True)
        self._latest = end
        if isinstance(limit, ReadAllAvailable):
            return end
        # A run that ends with what is there now would wait for ever, or leave the last of it.
        if self._patience is not None and self._target is None:
            now_ms = int(monotonic() * 1000)
            if self._patience.holds_back(known, end, now_ms):
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
        ranges: list[Range] = []
        for place in sorted(readable):
            begin = begins[place]
            if _report_back(place, begin, end[place], fail=fail):
                # Whatever is in it now was never read.
                begin = edges.earliest([place])[place]
            ranges.append(Range(*place, begin, end[place]))
        return tasks(edges, ranges, self._settings)

    def _new(self, edges: Edges, places: frozenset[TopicPartition]) -> Offsets:
        """Partitions that appeared start where they begin, which is 0 unless records were dropped before they were read."""
        begins = edges.earliest(places)
        for (topic, partition), offset in begins.items():
            if offset:
                report_data_loss(
                    f"the new partition {topic}/{partition} begins at offset {offset}, not at 0.",
                    fail=self._settings.fail_on_data_loss,
                )
        return begins

    def _commit(self, offsets: Offsets) -> None:
        """Let the group's lag be seen. The checkpoint is what counts, so a commit that fails stops nothing."""
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
            f"{show(places)} {'is' if len(places) == 1 else 'are'} gone: the topic was deleted, or the options of the query do "
            "not name it any more.",
            fail=fail,
        )


def _report_back(place: TopicPartition, known: int, end: int, *, fail: bool) -> bool:
    """Whether a partition ends before what was read of it."""
    if end < known:
        report_data_loss(
            f"{place[0]}/{place[1]} ended at offset {known} and ends at {end} now: the topic was deleted and "
            "made anew, or the query was told to start beyond its end.",
            fail=fail,
        )
    return end < known


def dump(offsets: Mapping[TopicPartition, int]) -> JsonOffsets:
    """Offsets as they stand in a checkpoint, in order."""
    by_topic: JsonOffsets = {}
    for topic, partition in sorted(offsets):
        by_topic.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return by_topic


def load(stored: JsonOffsets) -> Offsets:
    """Offsets from a checkpoint, also from one that Spark's Kafka connector wrote."""
    return parse_offsets(json.dumps(stored), "checkpoint")
