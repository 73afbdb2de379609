"""Going over the open dead letters of a topic, in small steps, so that a million of them hold nobody up.

A scan ends where each partition ended when it began: what dies meanwhile is for the next one, and a record that is redriven
and dies again is not met twice. What other nodes lead is read from a copy: the scan asks each leader for the end, and begins when all of it is here.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.dead_letters.letters import is_wanted, read_dead_letter, within
from penstock.core.partitions.reading import read_from
from penstock.core.partitions.status import PartitionStatus
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.operations.dead_letters import DeadLetter, DeadLetterFilter

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_STEP_RECORDS: Final = 500
_STEP_BYTES: Final = 1 * MIB
_COPY_MS_MAX: Final = 10_000
"""So long is waited for what must be copied first."""

IsOpen = Callable[[int, int], bool]
"""Whether the record at this partition and offset is open."""
Floor = Callable[[int], int]
"""Below it all of a partition is finished."""


class Scan:
    """One pass. Partitions are gone over one after the other, each in the order of its offsets."""

    def __init__(
        self, broker: "Broker", topic: Topic, wanted: DeadLetterFilter, count_max: int, floor: Floor, is_open: IsOpen
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._wanted = wanted
        self._is_open = is_open
        self._floor = floor
        self._left = count_max
        self._stretches: deque[tuple[int, int, int]] = deque()
        self._waits_until_ms = broker.clock.monotonic_ms() + _COPY_MS_MAX
        self._ends: dict[int, int] = {}
        self._problem: PenstockError | None = None
        self.has_begun = False
        """Whether it is known what there is to go over."""
        for index in range(topic.partition_count):
            broker.peers.partition_status(topic, index, partial(self._told, index))
        self._begin()

    def _told(self, index: int, status: PartitionStatus | PenstockError) -> None:
        if isinstance(status, PenstockError):
            self._problem = status
        else:
            self._ends[index] = status.high_watermark

    def _begin(self) -> None:
        """If all is here that there was when it was asked for."""
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
                    f"the records of {topic.name} are partly on other nodes, which do not answer; try again",
                )
            return
        self.has_begun = True
        for index, last in sorted(self._ends.items()):
            start, end = within(self._wanted, index, self._floor(index), last)
            if start < end:
                self._stretches.append((index, start, end))

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to come."""
        return self.has_begun and (not self._stretches or self._left <= 0)

    def end(self) -> None:
        """Nothing more is wanted."""
        self.has_begun = True
        self._stretches.clear()

    def step(self, count_max: int = _STEP_RECORDS) -> list[DeadLetter]:
        """The next few that are meant, perhaps none of them; ask :attr:`is_over`."""
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
            # Nobody can read it; the others are not to suffer.
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
            if self._is_open(index, record.offset):
                letter = read_dead_letter(self._topic.name, index, record)
                if is_wanted(self._wanted, letter):
                    found.append(letter)
        if next_offset < end:
            self._stretches.appendleft((index, next_offset, end))
        self._left -= len(found)
        return found
