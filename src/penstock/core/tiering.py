"""What a tier holds of each partition: the broker may drop what is archived in a lake, and nothing else.

A topic has a tier when ``penstock.tier.location`` is set. The broker never looks into the lake: whoever fills it commits, as the
group ``penstock.tier.group``, up to where every record is there, and only after it is. Invariant: an offset is archived only if that group has
committed a greater one; without a commit, or while the commits cannot be read, nothing is.
"""

from typing import Final

from penstock.core.groups.coordinator import GroupCoordinator
from penstock.core.groups.requests import PartitionKey
from penstock.core.partition import Partition
from penstock.core.topics import Topics
from penstock.errors import PenstockError
from penstock.types import GroupId

NOTHING: Final = 0


class Tiering:
    """Asked by retention. Also keeps the offsets it goes by from expiring: an archive that rests for long has lost nothing."""

    def __init__(self, topics: Topics, groups: GroupCoordinator) -> None:
        self._topics = topics
        self._groups = groups
        groups.kept_by.append(self._keeps)

    def archived_offset(self, partition: Partition) -> int | None:
        """All below it is in the lake; None when the topic has no tier."""
        group = partition.topic.config.tier_group
        if group is None:
            return None
        key = PartitionKey(partition.topic.name, partition.index)
        try:
            committed = self._groups.fetch_offsets(group, [key]).get(key)
        except PenstockError:
            return NOTHING
        return NOTHING if committed is None else committed.offset

    def _keeps(self, group: GroupId, key: PartitionKey) -> bool:
        topic = self._topics.get(key.topic)
        return topic is not None and topic.config.tier_group == group
