"""Counts changes of this node's partitions: leaderships that begin and end, in-sync sets that grow and shrink.

Invariant: ``leaderless`` is the number of partitions with a replica here and without a leader. It is updated with each record, so that no
scan of all partitions is needed.
"""

from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.partitions.partition import Partition
from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic, Topics
from penstock.meters import Meters
from penstock.types import NodeId


class ReplicaMetering:
    """Called by hooks."""

    def __init__(self, node_id: NodeId, topics: Topics, meters: Meters) -> None:
        self._node_id = node_id
        self._topics = topics
        self._meters = meters
        self._in_sync: dict[TopicIdPartition, frozenset[int]] = {}
        """The agreed in-sync sets of partitions that are led here."""
        self._leaderless: set[TopicIdPartition] = set()

    @property
    def leaderless(self) -> int:
        """Partitions with a replica here and without a leader."""
        return len(self._leaderless)

    def begin(self) -> None:
        """The topics are loaded: count them, and follow their changes."""
        for topic in self._topics:
            self._look_at_all(topic)
        self._topics.on_created.append(self._look_at_all)
        self._topics.on_changed.append(self._look_at_all)
        self._topics.on_deleted.append(self._forget)
        self._topics.on_partition.append(self._changed)

    def lead(self, partition: Partition) -> None:
        """This node has become the leader of a partition."""
        self._meters.leaderships_begun += 1
        place = TopicIdPartition(partition.topic.topic_id, partition.index)
        self._in_sync[place] = frozenset(self._topics.partition(partition.topic, partition.index).in_sync)

    def resign(self, partition: Partition) -> None:
        """This node no longer leads it."""
        self._meters.leaderships_ended += 1
        self._in_sync.pop(TopicIdPartition(partition.topic.topic_id, partition.index), None)

    def _changed(self, topic: Topic, index: int) -> None:
        place = TopicIdPartition(topic.topic_id, index)
        record = self._topics.partition(topic, index)
        if record.leader == NO_LEADER and self._node_id in record.replicas:
            self._leaderless.add(place)
        else:
            self._leaderless.discard(place)
        before = self._in_sync.get(place)
        if before is not None:
            now = self._in_sync[place] = frozenset(record.in_sync)
            self._meters.in_sync_shrinks += bool(before - now)
            self._meters.in_sync_expands += bool(now - before)

    def _look_at_all(self, topic: Topic) -> None:
        for index in range(topic.partition_count):
            self._changed(topic, index)

    def _forget(self, topic: Topic) -> None:
        for index in range(topic.partition_count):
            self._leaderless.discard(TopicIdPartition(topic.topic_id, index))
