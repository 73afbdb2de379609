"""Where partitions start and end now, and the offsets of a query's bounds.

Invariant: every offset from here is one that the broker returned. The earliest is the first offset that can be read, from the broker or
from the topic's lake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

from penstock.client.cluster import TopicPartition
from penstock.client.consumer import open_records
from penstock.client.offsets import list_offsets, watermarks
from penstock.client.read_ahead import ReadAhead
from penstock.spark.connections import RETRIES_DEFAULT, RETRY_INTERVAL_MS_DEFAULT
from penstock.spark.errors import LOG, OptionError
from penstock.spark.source.bounds import EARLIEST, LATEST, Bound, BoundKind, Offsets, show
from penstock.spark.source.tiers import Tiers

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster
    from penstock.spark.source.settings import SourceSettings


@dataclass(frozen=True, slots=True)
class Resolved:
    """A bound in offsets, and the partitions for which it was specified as earliest or latest."""

    offsets: Offsets
    at_earliest: frozenset[TopicPartition]
    at_latest: frozenset[TopicPartition]


class Edges:
    """The offsets of partitions, according to the query's settings."""

    def __init__(self, cluster: Cluster, settings: SourceSettings) -> None:
        self.cluster = cluster
        self.tiers = Tiers(cluster, fail=settings.fail_on_data_loss)
        self._settings = settings

    def held_from(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition in the broker."""
        return self._at(dict.fromkeys(partitions, EARLIEST))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition that can be read, from the broker or from its lake."""
        found = self.held_from(partitions)
        for place, held in found.items():
            # If the broker has a partition from offset 0, a lake has no more of it.
            archived = self.tiers.earliest(place, held) if held else None
            if archived is not None:
                found[place] = min(held, archived)
        return found

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset after the last record of each partition, or after the last committed one with read_committed."""
        return self._at(dict.fromkeys(partitions, LATEST), read_committed=self._settings.read_committed)

    def latest_not_before(self, partitions: Iterable[TopicPartition], known: Offsets) -> Offsets:
        """The latest offsets. They are requested again while one is below what was read already, because a broker may lag behind.

        Of a topic that was created again, the last answer is returned.
        """
        options = self._settings.options
        tries = options.integer("fetchOffset.numRetries", RETRIES_DEFAULT, at_least=1)
        interval_ms = options.integer("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS_DEFAULT)
        wanted = list(partitions)
        found: Offsets = {}
        for left in range(tries - 1, -1, -1):
            found = self.latest(wanted)
            back = {place: offset for place, offset in found.items() if offset < known.get(place, 0)}
            if not back or not left:
                break
            LOG.warning("the end of %s decreased; retrying in %d ms, %d more times", show(back), interval_ms, left)
            sleep(interval_ms / 1000)
        return found

    def first_at_or_after(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, from the broker or from the lake; None if there is none."""
        if not times_ms:
            return {}
        found = find_times(self.cluster, times_ms)
        for place, held in self.held_from(times_ms).items():
            archived = self.tiers.first_at_or_after(place, times_ms[place], held) if held else None
            if archived is not None and archived < held:
                found[place] = archived
        return found

    def resolve(self, bound: Bound, partitions: frozenset[TopicPartition], *, ends: Offsets | None = None) -> Resolved:
        """The bound for each partition. ``ends`` are latest offsets that are fixed already."""
        wanted = self._unresolved(bound, partitions)
        at_earliest = frozenset(place for place, offset in wanted.items() if offset == EARLIEST)
        at_latest = frozenset(place for place, offset in wanted.items() if offset == LATEST)
        known = {place: ends[place] for place in at_latest if place in ends} if ends else {}
        found = {**wanted, **self.earliest(at_earliest), **self.latest(at_latest - known.keys()), **known}
        return Resolved(found, at_earliest, at_latest)

    def _unresolved(self, bound: Bound, partitions: frozenset[TopicPartition]) -> Offsets:
        if bound.kind is BoundKind.EARLIEST:
            return dict.fromkeys(partitions, EARLIEST)
        if bound.kind is BoundKind.LATEST:
            return dict.fromkeys(partitions, LATEST)
        if bound.kind is BoundKind.TIMESTAMP:
            return self._by_time(bound, dict.fromkeys(partitions, bound.timestamp_ms))
        if bound.by_partition.keys() != partitions:
            raise OptionError(
                f"{bound.option} must name exactly the partitions that are read. It names "
                f"{show(bound.by_partition)}; there are {show(partitions)}. "
                "In startingOffsets and endingOffsets, -1 is latest and -2 earliest"
            )
        if bound.kind is BoundKind.TIMESTAMPS:
            return self._by_time(bound, bound.by_partition)
        return dict(bound.by_partition)

    def _by_time(self, bound: Bound, times_ms: Mapping[TopicPartition, int]) -> Offsets:
        offsets: Offsets = {}
        for place, offset in sorted(self.first_at_or_after(times_ms).items()):
            if offset is None and not bound.no_match_is_latest:
                raise OptionError(
                    f"{place[0]}/{place[1]} has no record at or after {times_ms[place]} ({bound.option}). Set startingOffsetsByTimestampStrategy to latest to start with new records, or use an earlier time"
                )
            offsets[place] = LATEST if offset is None else offset
        return offsets

    def _at(self, at: Mapping[TopicPartition, int], *, read_committed: bool = False) -> Offsets:
        if not at:
            return {}
        found = list_offsets(self.cluster, at, read_committed=read_committed)
        return {place: each.offset for place, each in found.items()}


def find_times(cluster: Cluster, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """The broker's first offset at or after a time; None if there is none.

    The protocol has no times before 1970, because -1 and -2 mean latest and earliest. For these, the request is for 1970, and the records
    before the answer are searched. There are none unless the partition starts with records before 1970.
    """
    asked = list_offsets(cluster, {place: max(0, time_ms) for place, time_ms in times_ms.items()})
    found = {place: None if each.offset < 0 else each.offset for place, each in asked.items()}
    early = [place for place, time_ms in times_ms.items() if time_ms < 0]
    for place, (first, end) in (watermarks(cluster, early) if early else {}).items():
        until = found[place]
        before = _search(cluster, place, first, end if until is None else until, times_ms[place])
        found[place] = until if before is None else before
    return found


def _search(cluster: Cluster, place: TopicPartition, first: int, until: int, time_ms: int) -> int | None:
    """The first offset in ``[first, until)`` at or after a time."""
    for fetched in ReadAhead(cluster, place[0], place[1], first, until):
        late = [each for each in fetched.batches if each[0].max_timestamp >= time_ms]
        for record in open_records(fetched._replace(batches=late)):
            if record.timestamp_ms >= time_ms and record.offset < until:
                return record.offset
    return None
