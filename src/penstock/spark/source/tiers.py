"""Finds in the lakes of topics what the broker no longer has.

A lake that cannot be read is a data loss: an error, or, if ``failOnDataLoss`` is false, a warning.
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


class Tiers:
    """The lakes of a query's topics. What is known of them is valid for one plan only: topics get tiers, and lakes grow."""

    def __init__(self, cluster: Cluster, *, fail: bool) -> None:
        self._cluster = cluster
        self._fail = fail
        self._known: dict[str, Tier | None] = {}

    def earliest(self, place: TopicPartition, held: int) -> int | None:
        """The first offset of the partition in the topic's lake; None if there is no lake or nothing in it.

        ``held`` is the broker's first offset at an earlier moment: the lake has what was below it then.
        """
        return self._ask(place, lambda tier: tier.earliest(place[1], held), None)

    def first_at_or_after(self, place: TopicPartition, time_ms: int, held: int) -> int | None:
        """The first offset in the lake at or after a time."""
        return self._ask(place, lambda tier: tier.offset_for_time(place[1], time_ms, held), None)

    def splits(self, place: TopicPartition, from_offset: int, to_offset: int) -> list[LakeSplit]:
        """What a lake has of these offsets, in order; empty without a lake. Less than all is a data loss."""
        return self._ask(place, lambda tier: tier.splits(place[1], from_offset, to_offset, whole=self._fail), [])

    def _ask(self, place: TopicPartition, ask: Callable[[Tier], T], nothing: T) -> T:
        topic = place[0]
        if topic not in self._known:
            # Most topics have no lake, and the libraries of lakes are slow to load.
            from penstock.spark.lake.tier import read_tier

            self._known[topic] = read_tier(self._cluster, topic)
        tier = self._known[topic]
        if tier is None:
            return nothing
        try:
            return ask(tier)
        except DataLossError as error:
            if self._fail:
                raise
            LOG.warning("%s The query continues, because failOnDataLoss is false.", error)
            return nothing
