"""Groups that were registered for a topic before it was made.

When the topic is made, such a group gets offset 0 in each partition, and its registration becomes one of the topic. The registration is moved last, so
after a crash in between the node that coordinates the group starts again: when it has loaded its groups.
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
"""Offsets of one topic that are on their way to the log at the same time: some 50 ms of the event loop."""


class AwaitedGroups:
    """Asked when a topic is made and when groups are loaded."""

    def __init__(self, broker: "Broker", flusher: Flusher) -> None:
        self._broker = broker
        self._jobs = Jobs(flusher)

    def begin(self, topic: Topic) -> None:
        """Start the groups that waited for a topic, as far as this node coordinates them."""
        if groups := self._broker.registry.awaiting(topic.name):
            self._jobs.start(partial(self._start, topic, groups))

    def begin_all(self) -> None:
        """The same for all topics: this node coordinates groups that it did not coordinate before."""
        for name in self._broker.registry.awaited_topics():
            topic = self._broker.topics.get(name)
            if topic is not None:
                self.begin(topic)

    async def _start(self, topic: Topic, groups: list[str]) -> None:
        """A few at a time, because any number of groups may have waited for any number of partitions."""
        broker = self._broker
        at_once = max(1, _OFFSETS_AT_ONCE // topic.partition_count)
        for first in range(0, len(groups), at_once):
            under_way: list[tuple[str, Outcome]] = []
            for group in groups[first : first + at_once] if self._is_there(topic) else ():
                outcome = Outcome()
                try:
                    broker.groups.start_offsets(GroupId(group), topic.name, outcome)
                except PenstockError:
                    # Another node coordinates the group, or will when it has loaded it.
                    continue
                under_way.append((group, outcome))
            for group, outcome in under_way:
                await outcome.known()
                if outcome.reason is None and self._is_there(topic):
                    broker.background(broker.registry.register(topic, group))

    def _is_there(self, topic: Topic) -> bool:
        found = self._broker.topics.get(topic.name)
        return found is not None and found.topic_id == topic.topic_id
