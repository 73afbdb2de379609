"""Groups that were registered for a topic before it was made.

When the topic is made, such a group gets offset 0 in each partition, and its registration becomes one of the topic. The registration is moved last, so
after a crash in between the node that coordinates the group starts again: when it has loaded its groups.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.types import GroupId

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_OFFSETS_AT_ONCE: Final = 2000
"""Offsets of one topic that are on their way to the log at the same time: some 50 ms of the event loop."""


class AwaitedGroups:
    """Asked when a topic is made and when groups are loaded."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def begin(self, topic: Topic) -> None:
        """Start the groups that waited for a topic, as far as this node coordinates them."""
        _Starts(self._broker, topic, self._broker.registry.awaiting(topic.name)).go_on()

    def begin_all(self) -> None:
        """The same for all topics: this node coordinates groups that it did not coordinate before."""
        for name in self._broker.registry.awaited_topics():
            topic = self._broker.topics.get(name)
            if topic is not None:
                self.begin(topic)


class _Starts:
    """The groups of one topic that start: a few at a time, because any number of them may have waited for any number of partitions."""

    def __init__(self, broker: "Broker", topic: Topic, groups: list[str]) -> None:
        self._broker = broker
        self._topic = topic
        self._left = deque(groups)
        self._at_once = max(1, _OFFSETS_AT_ONCE // topic.partition_count)
        self._under_way = 0
        self._is_going_on = False

    def go_on(self) -> None:
        """Start the next groups, unless the topic is gone."""
        if self._is_going_on:
            # A start that ended at once: the loop below sees it.
            return
        self._is_going_on = True
        while self._left and self._under_way < self._at_once and self._is_there():
            group = self._left.popleft()
            self._under_way += 1
            try:
                self._broker.groups.start_offsets(GroupId(group), self._topic.name, partial(self._started, group))
            except PenstockError:
                # Another node coordinates the group, or will when it has loaded it.
                self._under_way -= 1
        self._is_going_on = False

    def _is_there(self) -> bool:
        found = self._broker.topics.get(self._topic.name)
        return found is not None and found.topic_id == self._topic.topic_id

    def _started(self, group: str, reason: Reason | None) -> None:
        self._under_way -= 1
        if reason is None and self._is_there():
            self._broker.background(self._broker.registry.register(self._topic, group))
        self.go_on()
