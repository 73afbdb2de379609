"""Groups that were registered for a topic before it existed.

When the topic is created, such a group gets offset 0 in each partition, and its registration becomes one of the topic. The registration
is moved last, so after a crash the group's coordinator starts again once it has loaded its groups.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.jobs import Jobs, Outcome
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.ports import Flusher
from penstock.types import GroupId

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_OFFSETS_AT_ONCE: Final = 2000
"""Offsets of one topic that are written at the same time: some 50 ms of the event loop."""


class AwaitedGroups:
    """Called when a topic is created and when groups are loaded."""

    def __init__(self, broker: "Broker", flusher: Flusher) -> None:
        self._broker = broker
        self._jobs = Jobs(flusher)

    def begin(self, topic: Topic) -> None:
        """Start the groups that wait for a topic and that this node coordinates."""
        if groups := self._broker.registry.awaiting(topic.name):
            self._jobs.start(partial(self._start, topic, groups))

    def begin_all(self) -> None:
        """The same for all topics, when this node becomes the coordinator of other groups."""
        for name in self._broker.registry.awaited_topics():
            topic = self._broker.topics.get(name)
            if topic is not None:
                self.begin(topic)

    async def _start(self, topic: Topic, groups: list[str]) -> None:
        """A few at a time, because many groups may wait for many partitions."""
        broker = self._broker
        at_once = max(1, _OFFSETS_AT_ONCE // topic.partition_count)
        for first in range(0, len(groups), at_once):
            under_way: list[tuple[str, Outcome]] = []
            for group in groups[first : first + at_once] if self._is_there(topic) else ():
                outcome = Outcome()
                try:
                    broker.groups.start_offsets(GroupId(group), topic.name, outcome)
                except PenstockError:
                    # Another node coordinates the group, or will once it has loaded it.
                    continue
                under_way.append((group, outcome))
            for group, outcome in under_way:
                await outcome.known()
                if outcome.reason is None and self._is_there(topic):
                    broker.background(broker.registry.register(topic, group))

    def _is_there(self, topic: Topic) -> bool:
        found = self._broker.topics.get(topic.name)
        return found is not None and found.topic_id == topic.topic_id
