"""A lower bound for the offsets of the records that will be appended to a partition, whichever node leads it.

It should be close to the end of the log. So it is the high watermark of this node's copy, if that is in sync, or one that the leader
has reported since the start. Otherwise the leader is asked.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.core.partitions.status import LeaderStatus
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_ENDS_MAX: Final = 10_000
"""Partitions whose ends are remembered; for others, the leader is asked again."""

Reached = Callable[[int | PenstockError], None]


class PartitionEnds:
    """The known ends of all partitions."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._ends: dict[tuple[UUID, int], int] = {}

    def note(self, topic_id: UUID, index: int, end: int) -> None:
        """All records of the partition below ``end`` are committed."""
        place = topic_id, index
        end = max(end, self._ends.pop(place, -1))
        while len(self._ends) >= _ENDS_MAX:
            del self._ends[next(iter(self._ends))]
        # Last in the order: the least recently used are removed first.
        self._ends[place] = end

    def reached(self, topic: Topic, index: int, done: Reached) -> None:
        """Pass an offset to ``done`` that no record appended from now on is below."""
        try:
            end = max(self._ends.get((topic.topic_id, index), -1), self._copied(topic, index))
            if end < 0:
                self._broker.peers.partition_status(topic, index, partial(self._received, topic, index, done))
                return
        except PenstockError as error:
            done(error)
            return
        done(end)

    def _copied(self, topic: Topic, index: int) -> int:
        """The high watermark of the copy on this node; -1 if there is none, or it may lag far behind."""
        broker = self._broker
        record = broker.topics.partition(topic, index)
        if all(node != broker.node_id for node, _ in record.isr):
            return -1
        try:
            return broker.replica(topic.name, index).high_watermark
        except PenstockError:
            return -1

    def _received(self, topic: Topic, index: int, done: Reached, status: LeaderStatus | PenstockError) -> None:
        if isinstance(status, LeaderStatus):
            self.note(topic.topic_id, index, status.high_watermark)
            done(status.high_watermark)
        else:
            done(status)
