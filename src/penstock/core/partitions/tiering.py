"""How far each partition is archived in a lake: retention may remove archived records only.

A topic has a tier if ``penstock.tier.location`` is set. The broker never reads the lake. The pipeline that fills it commits its offsets
in the group ``penstock.tier.group``, each time after all records up to there are in the lake. Invariant: an offset counts as archived
only if that group has committed a greater one; without a commit, or while commits cannot be read, nothing is archived.

In a cluster, another node may coordinate the group. It is asked each time, and its previous answer is used meanwhile.
"""

from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.core.coordinators.topic import partition_of
from penstock.core.partitions.partition import Partition
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.types import GroupId, PartitionKey

if TYPE_CHECKING:
    from penstock.core.broker import Broker

NOTHING: Final = 0


class Tiering:
    """Used by retention. It also keeps the committed offsets of tiers from expiring."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._answers: dict[PartitionKey, tuple[UUID, GroupId, int]] = {}
        """The last answers of other coordinators: topic, group and offset."""
        broker.groups.kept_by.append(self._keeps)

    def archived_offset(self, partition: Partition) -> int | None:
        """All records below this offset are in the lake; None if the topic has no tier."""
        group = partition.topic.config.tier_group
        if group is None:
            return None
        key = PartitionKey(partition.topic.name, partition.index)
        try:
            committed = self._broker.groups.fetch_offsets(group, [key]).get(key)
        except PenstockError:
            self._ask(partition.topic, group, key)
            topic_id, of_group, offset = self._answers.get(key, (None, group, NOTHING))
            return offset if (topic_id, of_group) == (partition.topic.topic_id, group) else NOTHING
        self._answers.pop(key, None)
        return NOTHING if committed is None else committed.offset

    def _ask(self, topic: Topic, group: GroupId, key: PartitionKey) -> None:
        peers, offsets = self._broker.peers, self._broker.topics.get(OFFSETS_TOPIC)
        if offsets is None:
            return

        def received(offset: int | PenstockError | None) -> None:
            if not isinstance(offset, PenstockError):
                self._answers[key] = topic.topic_id, group, NOTHING if offset is None else offset

        peers.committed(partition_of(group, offsets.partition_count), group, key, received)

    def forget_topic(self, topic: Topic) -> None:
        """The topic is deleted."""
        for index in range(topic.partition_count):
            self._answers.pop(PartitionKey(topic.name, index), None)

    def _keeps(self, group: GroupId, key: PartitionKey) -> bool:
        topic = self._broker.topics.get(key.topic)
        return topic is not None and topic.config.tier_group == group
