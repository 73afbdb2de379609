"""Where partitions begin and end at the moment, and what the bounds of a query are there.

Invariant: an offset that comes out of here was the broker's word at one moment. Earliest is the first offset that can be read at all: a
tier's, when a lake holds what the broker dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

from penstock.client.cluster import TopicPartition
from penstock.client.offsets import At, list_offsets
from penstock.spark.connections import RETRIES_DEFAULT, RETRY_INTERVAL_MS_DEFAULT
from penstock.spark.errors import LOG, OptionError
from penstock.spark.source.bounds import EARLIEST, LATEST, Bound, Kind, Offsets, show
from penstock.spark.source.tiers import earliest_in_lake

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster
    from penstock.spark.options import Options


@dataclass(frozen=True, slots=True)
class Resolved:
    """A bound in offsets, and for which partitions it was asked for as a place that moves."""

    offsets: Offsets
    at_earliest: frozenset[TopicPartition]
    at_latest: frozenset[TopicPartition]


def earliest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Offsets:
    """The first offset of each partition that can be read, from the broker or from its lake."""
    held = held_from(cluster, partitions)
    return {place: earliest_in_lake(cluster, place, offset) for place, offset in held.items()}


def held_from(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Offsets:
    """The first offset of each partition that the broker itself has."""
    return _at(cluster, dict.fromkeys(partitions, EARLIEST), read_committed=False)


def latest(cluster: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool) -> Offsets:
    """The offset behind the last record of each partition: the last one that is committed, when asked so."""
    return _at(cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed)


def latest_not_before(
    cluster: Cluster, partitions: Iterable[TopicPartition], known: Offsets, options: Options, *, read_committed: bool
) -> Offsets:
    """The latest offsets; asked for again while one is below what was read already, for a broker may know it late.

    A topic that was made anew does not get better by asking: what it says at last is returned.
    """
    tries = options.integer("fetchOffset.numRetries", RETRIES_DEFAULT, at_least=1)
    interval_ms = options.integer("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS_DEFAULT)
    wanted = list(partitions)
    found: Offsets = {}
    for left in range(tries - 1, -1, -1):
        found = latest(cluster, wanted, read_committed=read_committed)
        behind = {place: offset for place, offset in found.items() if offset < known.get(place, 0)}
        if not behind or not left:
            break
        LOG.warning("the end of %s went back; asking again in %d ms, %d times more", show(behind), interval_ms, left)
        sleep(interval_ms / 1000)
    return found


def resolve(
    cluster: Cluster,
    bound: Bound,
    partitions: frozenset[TopicPartition],
    *,
    read_committed: bool,
    ends: Offsets | None = None,
) -> Resolved:
    """The bound for each partition. ``ends`` are the latest offsets where they are known and must not move on."""
    wanted = _unresolved(cluster, bound, partitions)
    at_earliest = frozenset(place for place, offset in wanted.items() if offset == EARLIEST)
    at_latest = frozenset(place for place, offset in wanted.items() if offset == LATEST)
    found = dict(wanted)
    if at_earliest:
        found.update(earliest(cluster, at_earliest))
    if at_latest:
        known = {place: ends[place] for place in at_latest if place in ends} if ends else {}
        found.update(known)
        found.update(latest(cluster, at_latest - known.keys(), read_committed=read_committed))
    return Resolved(found, at_earliest, at_latest)


def first_at_or_after(cluster: Cluster, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """The first offset whose record is not older than a time; None where there is none."""
    if not times_ms:
        return {}
    # A time before 1970 would read as one of the protocol's places: everything is at or after it.
    found = list_offsets(cluster, {place: max(0, time_ms) for place, time_ms in times_ms.items()})
    return {place: None if each.offset < 0 else each.offset for place, each in found.items()}


def _unresolved(cluster: Cluster, bound: Bound, partitions: frozenset[TopicPartition]) -> Offsets:
    if bound.kind is Kind.EARLIEST:
        return dict.fromkeys(partitions, EARLIEST)
    if bound.kind is Kind.LATEST:
        return dict.fromkeys(partitions, LATEST)
    if bound.kind is Kind.TIMESTAMP:
        return _by_time(cluster, bound, dict.fromkeys(partitions, bound.timestamp_ms))
    if bound.by_partition.keys() != partitions:
        raise OptionError(
            f"{bound.option} must name every partition that is read, and no other. It names {show(bound.by_partition)}; "
            f"there are {show(partitions)}. In startingOffsets and endingOffsets, -1 is latest and -2 earliest"
        )
    if bound.kind is Kind.TIMESTAMPS:
        return _by_time(cluster, bound, bound.by_partition)
    return dict(bound.by_partition)


def _by_time(cluster: Cluster, bound: Bound, times_ms: Mapping[TopicPartition, int]) -> Offsets:
    offsets: Offsets = {}
    for place, offset in first_at_or_after(cluster, times_ms).items():
        if offset is None and not bound.no_match_is_latest:
            raise OptionError(
                f"{place[0]}/{place[1]} has no record at or after {times_ms[place]} ({bound.option}). Set "
                "startingOffsetsByTimestampStrategy to latest to start with what comes next, or give an earlier time"
            )
        offsets[place] = LATEST if offset is None else offset
    return offsets


def _at(cluster: Cluster, at: Mapping[TopicPartition, int], *, read_committed: bool) -> Offsets:
    if not at:
        return {}
    found = list_offsets(cluster, at, read_committed=read_committed)
    return {place: each.offset for place, each in found.items()}


assert (int(At.EARLIEST), int(At.LATEST)) == (EARLIEST, LATEST)
