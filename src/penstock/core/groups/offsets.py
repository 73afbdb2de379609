"""The committed offsets of one group, by topic and partition.

The offsets here are durable. A commit is *in flight* from its append until it is durable or has failed: it cannot be read yet, but
a deletion that is appended after it must cover it.
"""

from collections.abc import Iterable, Iterator

from penstock.core.groups.requests import CommittedOffset
from penstock.types import PartitionKey, TopicId, TopicName


class GroupOffsets:
    """The offsets from which a group continues to read."""

    __slots__ = ("_by_topic", "_in_flight")

    def __init__(self) -> None:
        self._by_topic: dict[TopicName, dict[int, CommittedOffset]] = {}
        self._in_flight: dict[PartitionKey, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no offset, and none in flight."""
        return not self._by_topic and not self._in_flight

    def get(self, key: PartitionKey) -> CommittedOffset | None:
        """The durable offset of a partition."""
        return self._by_topic.get(key.topic, _NOTHING).get(key.partition)

    def items(self) -> Iterator[tuple[PartitionKey, CommittedOffset]]:
        """Every durable offset, topic by topic."""
        for topic, partitions in self._by_topic.items():
            for partition, committed in partitions.items():
                yield PartitionKey(topic, partition), committed

    def topics(self) -> list[TopicName]:
        """The topics with durable offsets."""
        return list(self._by_topic)

    def of_others(self, topic: TopicName, topic_id: TopicId | None) -> list[PartitionKey]:
        """The partitions with offsets of an earlier topic of this name."""
        found = self._by_topic.get(topic, _NOTHING).items()
        return [PartitionKey(topic, at) for at, committed in found if committed.topic_id not in (None, topic_id)]

    def set(self, key: PartitionKey, committed: CommittedOffset) -> None:
        """A commit is durable."""
        self._by_topic.setdefault(key.topic, {})[key.partition] = committed

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """A deletion is durable. Offsets that do not exist are ignored."""
        for key in keys:
            partitions = self._by_topic.get(key.topic)
            if partitions is not None and partitions.pop(key.partition, None) is not None and not partitions:
                del self._by_topic[key.topic]

    def sent(self, keys: Iterable[PartitionKey]) -> None:
        """Commits of these partitions were appended."""
        for key in keys:
            self._in_flight[key] = self._in_flight.get(key, 0) + 1

    def settled(self, keys: Iterable[PartitionKey]) -> None:
        """Those commits are durable, or have failed."""
        for key in keys:
            count = self._in_flight.pop(key) - 1
            if count:
                self._in_flight[key] = count

    def is_in_flight(self, key: PartitionKey) -> bool:
        """Whether a commit of this partition is in flight."""
        return key in self._in_flight

    def is_in_log(self, key: PartitionKey) -> bool:
        """Whether the log has a commit of this partition, durable or not."""
        return key in self._in_flight or self.get(key) is not None

    def keys_in_log(self, topic: TopicName | None = None) -> list[PartitionKey]:
        """The partitions (of one topic or of all) of which the log has a commit, durable or not."""
        topics = self._by_topic if topic is None else (topic,)
        keys = {PartitionKey(name, at): None for name in topics for at in self._by_topic.get(name, _NOTHING)}
        keys |= {key: None for key in self._in_flight if topic is None or key.topic == topic}
        return list(keys)


_NOTHING: dict[int, CommittedOffset] = {}
