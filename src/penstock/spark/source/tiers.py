"""The one place where reading asks whether a lake holds what the broker no longer has.

A lake that cannot be read is a data loss as any other: an error, or with ``failOnDataLoss`` false a warning and what the broker has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.spark.errors import LOG, DataLossError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.cluster import Cluster, TopicPartition
    from penstock.spark.lake.reading import LakeSplit
    from penstock.spark.lake.tier import Tier

T = TypeVar("T")


def earliest_in_lake(cluster: Cluster, place: TopicPartition, *, fail: bool) -> int | None:
    """The first offset that the topic's lake has of the partition; None when there is no lake, or nothing in it."""
    return _ask(cluster, place, lambda tier: tier.earliest(place[1]), None, fail=fail)


def first_in_lake(cluster: Cluster, place: TopicPartition, time_ms: int, *, fail: bool) -> int | None:
    """The first offset in the lake whose record is not older than a time."""
    return _ask(cluster, place, lambda tier: tier.offset_for_time(place[1], time_ms), None, fail=fail)


def lake_splits(
    cluster: Cluster, place: TopicPartition, from_offset: int, to_offset: int, *, fail: bool
) -> list[LakeSplit]:
    """What a lake holds of these offsets, in order; empty when there is no lake. Less than all is a data loss."""
    return _ask(cluster, place, lambda tier: tier.splits(place[1], from_offset, to_offset, whole=fail), [], fail=fail)


def _ask(cluster: Cluster, place: TopicPartition, ask: Callable[[Tier], T], nothing: T, *, fail: bool) -> T:
    # Most topics have no lake, and the libraries of lakes are slow to load.
    from penstock.spark.lake.tier import tier_of

    tier = tier_of(cluster, place[0])
    if tier is None:
        return nothing
    try:
        return ask(tier)
    except DataLossError as error:
        if fail:
            raise
        LOG.warning("%s The query goes on, for failOnDataLoss is false.", error)
        return nothing
