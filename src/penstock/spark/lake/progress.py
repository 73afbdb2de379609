"""The group of an archive: its committed offsets say what is in the lake, for lag in the console and for the broker's retention.

Committed after the lake's own commit, up to what that commit says is there and no further. Spark's own word that a batch is done comes a batch
late, and for the last one never: it would not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.client.group_admin import GroupAdmin
from penstock.spark.connections import connected
from penstock.spark.lake.manifests import Ends

if TYPE_CHECKING:
    from penstock.client.cluster import TopicPartition


def commit_archived(options: Mapping[str, str], group: str, archived: Ends) -> None:
    """Say that the lake has everything below these offsets."""
    ends: dict[TopicPartition, int] = {
        (topic, partition): end for topic, partitions in archived.items() for partition, end in partitions.items()
    }
    if not ends:
        return
    with connected(options) as cluster:
        admin = GroupAdmin(cluster)
        known = admin.offsets(group, ends)
        behind = {place: end for place, end in ends.items() if place not in known or known[place].offset < end}
        if behind:
            admin.commit(group, behind)
