"""The one place where reading asks whether a lake holds what the broker no longer has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.client.cluster import Cluster, TopicPartition


def earliest_in_lake(cluster: Cluster, place: TopicPartition, held_from: int) -> int:
    """The first offset that can be read: the lake's when it has older records, else the broker's."""
    if held_from == 0:
        return 0
    tier = _tier_of(cluster, place[0])
    archived_from = None if tier is None else tier.earliest(place[1])
    return held_from if archived_from is None else min(held_from, archived_from)


def lake_splits(cluster: Cluster, place: TopicPartition, from_offset: int, to_offset: int) -> list[Any]:
    """What a lake holds of these offsets, in order; empty when there is no lake for the topic, or nothing in it."""
    tier = _tier_of(cluster, place[0])
    return [] if tier is None else list(tier.splits(place[1], from_offset, to_offset))


def read_lake(split: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records of one split."""
    from penstock.spark.lake.tier import read_split

    return read_split(split, columns)


def _tier_of(cluster: Cluster, topic: str) -> Any:
    from penstock.spark.lake.tier import tier_of

    return tier_of(cluster, topic)
