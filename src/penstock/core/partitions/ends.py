"""Up to which offsets partitions are known to be committed, whichever node leads them.

Everything that is appended later has the returned offset or a higher one. It should not be much higher, so the offset is the high watermark
of the copy on this node, if the copy is in sync, or what the leader reported since the start. Otherwise the leader is asked.
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
"""Partitions whose ends are remembered; a leader is asked for the others."""

Reached = Callable[[int | PenstockError], None]


class PartitionEnds:
    """Of all partitions."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._ends: dict[tuple[UUID, int], int] = {}

    def note(self, topic_id: UUID, index: int, end: int) -> None:
        """The partition has so much, committed."""
        place = topic_id, index
        end = max(end, self._ends.pop(place, -1))
        while len(self._ends) >= _ENDS_MAX:
            del self._ends[next(iter(self._ends))]
        # Behind the others: those that nobody asks for go first.
        self._ends[place] = end

    def reached(self, topic: Topic, index: int, done: Reached) -> None:
        """An offset that all that is appended from now on lies at or behind."""
        try:
            end = max(self._ends.get((topic.topic_id, index), -1), self._copied(topic, index))
            if end < 0:
                self._broker.peers.partition_status(topic, index, partial(self._told, topic, index, done))
                return
        except PenstockError as error:
            done(error)
            return
        done(end)

    def _copied(self, topic: Topic, index: int) -> int:
        """Where a copy here is known to end; -1 when there is none, or it may be far behind."""
        broker = self._broker
        record = broker.topics.partition(topic, index)
        if all(node != broker.node_id for node, _ in record.isr):
            return -1
        try:
            return broker.replica(topic.name, index).high_watermark
        except PenstockError:
            return -1

    def _told(self, topic: Topic, index: int, done: Reached, status: LeaderStatus | PenstockError) -> None:
        if isinstance(status, LeaderStatus):
            self.note(topic.topic_id, index, status.high_watermark)
            done(status.high_watermark)
        else:
            done(status)
