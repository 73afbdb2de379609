"""Reads the open dead letters of a topic in small steps, so that a million of them do not block other work.

A scan ends where each partition ended when the scan began: later dead letters are left for the next scan, and a record that is redriven and
fails again is not read twice. Partitions that other nodes lead are read from a copy: the scan asks each leader for the end, and
begins when the copies are complete.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.dead_letters.letters import is_wanted, read_dead_letter, within
from penstock.core.partitions.reading import read_from
from penstock.core.partitions.status import LeaderStatus
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.operations.dead_letters import DeadLetter, DeadLetterFilter
from penstock.types import PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_STEP_RECORDS: Final = 500
_STEP_BYTES: Final = 1 * MIB
_COPY_MS_MAX: Final = 10_000
"""The longest wait for the copies."""


def floor_of(broker: "Broker", topic: TopicName, partition: int) -> int:
    """The offset below which all dead letters are finished: the group's committed offset, or the start of the log."""
    key = PartitionKey(topic, partition)
    committed = broker.groups.fetch_offsets(REDRIVE_GROUP, [key]).get(key)
    start = broker.observe(topic, partition).log.start_offset
    return start if committed is None else max(start, committed.offset)


class Scan:
    """One pass over the partitions, one after the other, each in the order of its offsets."""

    def __init__(self, broker: "Broker", topic: Topic, wanted: DeadLetterFilter, count_max: int) -> None:
        self._broker = broker
        self._topic = topic
        self._wanted = wanted
        self._left = count_max
        self._stretches: deque[tuple[int, int, int]] = deque()
        self._waits_until_ms = broker.clock.monotonic_ms() + _COPY_MS_MAX
        self._ends: dict[int, int] = {}
        self._problem: PenstockError | None = None
        self.has_begun = False
        """Whether the ranges to read are known."""
        for index in range(topic.partition_count):
            broker.peers.partition_status(topic, index, partial(self._set_end, index))
        self._begin()

    def _set_end(self, index: int, status: LeaderStatus | PenstockError) -> None:
        if isinstance(status, PenstockError):
            self._problem = status
        else:
            self._ends[index] = status.high_watermark

    def _begin(self) -> None:
        """Begin if the copies are complete."""
        broker, topic = self._broker, self._topic
        if self._problem is not None:
            raise self._problem
        replicas = [broker.observe(topic.name, index) for index in range(topic.partition_count)]
        if len(self._ends) < len(replicas) or any(
            replica.high_watermark < self._ends[index] for index, replica in enumerate(replicas)
        ):
            if broker.clock.monotonic_ms() >= self._waits_until_ms:
                raise PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"Some records of {topic.name} are on other nodes, which do not answer; try again",
                )
            return
        self.has_begun = True
        for index, last in sorted(self._ends.items()):
            start, end = within(self._wanted, index, floor_of(broker, topic.name, index), last)
            if start < end:
                self._stretches.append((index, start, end))

    @property
    def is_over(self) -> bool:
        """Whether all dead letters were read."""
        return self.has_begun and (not self._stretches or self._left <= 0)

    def end(self) -> None:
        """Stop reading."""
        self.has_begun = True
        self._stretches.clear()

    def step(self, count_max: int = _STEP_RECORDS) -> list[DeadLetter]:
        """The next few selected dead letters, perhaps none even if there are more; see :attr:`is_over`."""
        found: list[DeadLetter] = []
        if not self.has_begun:
            self._begin()
        count_max = min(count_max, self._left)
        if not self.has_begun or self.is_over or count_max <= 0:
            return found
        index, offset, end = self._stretches.popleft()
        partition = self._broker.observe(self._topic.name, index)
        offset = max(offset, partition.log.start_offset)
        try:
            records = read_from(partition, offset, _STEP_RECORDS, _STEP_BYTES) if offset < end else []
        except PenstockError as error:
            if error.reason is not Reason.CORRUPT_RECORDS:
                raise
            # It cannot be read, but the others can.
            self._stretches.appendleft((index, offset + 1, end))
            return found
        next_offset = end
        for record in records:
            if record.offset >= end:
                next_offset = end
                break
            if len(found) == count_max:
                next_offset = record.offset
                break
            next_offset = record.offset + 1
            if not self._broker.queues.is_finished(self._topic.name, REDRIVE_GROUP, index, record.offset):
                letter = read_dead_letter(self._topic.name, index, record)
                if is_wanted(self._wanted, letter):
                    found.append(letter)
        if next_offset < end:
            self._stretches.appendleft((index, next_offset, end))
        self._left -= len(found)
        return found
