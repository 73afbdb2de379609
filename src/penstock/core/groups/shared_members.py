"""How the broker assigns the partitions of a topic to the readers of a group: partition p goes to reader p mod n.

The readers of a topic are ordered by id, so the assignment follows from the ids. This module knows neither time nor storage: a
reader that joins again after a restart gets the same partitions because it has the same id.

Invariant: ``topics`` has exactly the topics that some member reads, and ``held`` the partitions that each reader was last given.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct, pack
from typing import Final, NamedTuple

from penstock.core.coordinators.deadlines import Timer
from penstock.core.groups.stored import put_string
from penstock.types import TopicName

OnChange = Callable[[tuple[int, ...]], None]
"""Called with the partitions of one topic that a member has from now on."""

_HEAD: Final = Struct(">hi")
"""Version and a count."""
_NO_USER_DATA: Final = pack(">i", -1)
_VERSION: Final = 0


class Change(NamedTuple):
    """A member that follows its assignment has other partitions."""

    on_change: OnChange
    partitions: tuple[int, ...]


@dataclass(slots=True, eq=False)
class SharedMember:
    """One reader of the group."""

    consumer_id: str
    client: str
    session_timeout_ms: int | None
    session: Timer
    topics: dict[TopicName, OnChange | None] = field(default_factory=dict)


@dataclass(slots=True)
class _SharedTopic:
    """One topic of the group."""

    readers: list[str] = field(default_factory=list)
    """The ids, in order."""
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Only of readers with partitions."""


class SharedMembers:
    """The members of one group whose partitions the broker assigns."""

    __slots__ = ("members", "topics")

    def __init__(self) -> None:
        self.members: dict[str, SharedMember] = {}
        self.topics: dict[TopicName, _SharedTopic] = {}

    def __len__(self) -> int:
        return len(self.members)

    def clear(self) -> None:
        """Remove all members."""
        self.members.clear()
        self.topics.clear()

    def partitions(self, topic: TopicName, consumer_id: str) -> tuple[int, ...]:
        """The partitions of a topic that a member has."""
        shared = self.topics.get(topic)
        return () if shared is None else shared.held.get(consumer_id, ())

    def subscribe(
        self, member: SharedMember, topic: TopicName, on_change: OnChange | None, partition_count: int
    ) -> list[Change]:
        """Let a member read a topic. It replaces a reader with the same id, which has no partitions from now on."""
        self.members[member.consumer_id] = member
        changes = []
        if topic in member.topics:
            before = member.topics[topic]
            if before is not None and before != on_change:
                changes.append(Change(before, ()))
        else:
            insort(self.topics.setdefault(topic, _SharedTopic()).readers, member.consumer_id)
        changes += self.reassign(topic, partition_count)
        member.topics[topic] = on_change  # only now: the join itself returns the partitions
        return changes

    def unsubscribe(self, member: SharedMember, topic: TopicName, partition_count: int) -> list[Change]:
        """A member stops reading a topic; with its last topic it stops being a member."""
        del member.topics[topic]
        if not member.topics:
            del self.members[member.consumer_id]
        shared = self.topics[topic]
        shared.readers.remove(member.consumer_id)
        shared.held.pop(member.consumer_id, None)
        if not shared.readers:
            del self.topics[topic]
            return []
        return self.reassign(topic, partition_count)

    def reassign(self, topic: TopicName, partition_count: int) -> list[Change]:
        """Assign the partitions that exist now to the readers; returns the changes to announce."""
        shared = self.topics[topic]
        readers = len(shared.readers)
        before = shared.held
        shared.held = {
            consumer_id: tuple(range(place, partition_count, readers))
            for place, consumer_id in enumerate(shared.readers[:partition_count])
        }
        changes = []
        for consumer_id in dict.fromkeys((*before, *shared.held)):
            partitions = shared.held.get(consumer_id, ())
            on_change = self.members[consumer_id].topics.get(topic)
            if on_change is not None and partitions != before.get(consumer_id, ()):
                changes.append(Change(on_change, partitions))
        return changes

    def subscription(self, member: SharedMember) -> bytes:
        """The topics of a member, encoded as a Kafka consumer's subscription: version, names, no user data."""
        out = bytearray(_HEAD.pack(_VERSION, len(member.topics)))
        for topic in member.topics:
            put_string(out, topic)
        return bytes(out) + _NO_USER_DATA

    def assignment(self, member: SharedMember) -> bytes:
        """The partitions of a member, encoded as a Kafka consumer's assignment."""
        held = {
            topic: partitions for topic in member.topics if (partitions := self.partitions(topic, member.consumer_id))
        }
        out = bytearray(_HEAD.pack(_VERSION, len(held)))
        for topic, partitions in held.items():
            put_string(out, topic)
            out += pack(f">i{len(partitions)}i", len(partitions), *partitions)
        return bytes(out) + _NO_USER_DATA


def announce(changes: Iterable[Change]) -> None:
    """Call those who follow their assignment. All state must be consistent before: they may join and leave meanwhile."""
    for on_change, partitions in changes:
        on_change(partitions)
