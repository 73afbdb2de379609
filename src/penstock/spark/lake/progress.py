"""The group of an archive: its committed offsets say what is in the lake, for lag in the console and for the broker's retention.

Committed after the lake's own commit, up to what that commit says is there and no further. Spark's own word that a batch is done comes a batch
late, and for the last one never: it would not do.

A topic may be deleted and made anew under a running archive, with offsets that mean other records. So before a batch goes into the lake, all of it read, the
topics must still be those that the lake holds; and the group's offsets are committed for those and for no others of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.client.errors import NOT_FOUND_CODES, BrokerRefused
from penstock.client.group_admin import GroupAdmin
from penstock.spark.connections import connected
from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.manifests import Ends

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster, TopicPartition
    from penstock.spark.lake.lake import Lake


def check_same(options: Mapping[str, str], lake: Lake, topics: Iterable[str]) -> None:
    """Refuse to go on when a topic is not the one any more whose records the lake holds."""
    with connected(options) as cluster:
        for topic in topics:
            claimed = lake.topic_id(topic)
            if claimed is not None and claimed != str(_topic_id(cluster, topic)):
                raise _made_anew(topic, lake.location)


def commit_archived(options: Mapping[str, str], group: str, archived: Ends, lake: Lake) -> None:
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
        for topic in {topic for topic, _ in behind}:
            of_topic = {place: end for place, end in behind.items() if place[0] == topic}
            claimed = lake.topic_id(topic)
            try:
                admin.commit(group, of_topic, topic_ids=None if claimed is None else {topic: UUID(claimed)})
            except BrokerRefused as error:
                if error.code not in NOT_FOUND_CODES:
                    raise
                raise _made_anew(topic, lake.location) from error


def _topic_id(cluster: Cluster, topic: str) -> UUID | None:
    """As the broker has it now; None when there is no such topic."""
    info = cluster.describe([topic])
    return info.topics[topic].topic_id if topic in info.topics else None


def _made_anew(topic: str, location: str) -> LakeError:
    return LakeError(
        f"The topic {topic} was deleted, or deleted and created again, while it was archived, and {location} contains records of the old one. Archive the new "
        "one to another place, with another --name"
    )
