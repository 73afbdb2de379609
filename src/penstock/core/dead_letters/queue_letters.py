"""Dead letters as the queue core sees them: records of a dead-letter topic that one group works.

What is open, and how a dead letter is finished: put back where it came from and finished, both or neither, or finished where it is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.groups.requests import PartitionKey
from penstock.core.publish import NewRecord
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.errors import Reason
from penstock.operations.dead_letters import DeadLetter
from penstock.types import TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class QueueLetters:
    """The dead letters of a node. PenstockError when something cannot be done; ``done`` is not called then."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def floor(self, topic: TopicName, partition: int) -> int:
        """What the group has committed, or the start of the log."""
        key = PartitionKey(topic, partition)
        committed = self._broker.groups.fetch_offsets(REDRIVE_GROUP, [key]).get(key)
        start = self._broker.observe(topic, partition).log.start_offset
        return start if committed is None else max(start, committed.offset)

    def is_open(self, topic: TopicName, partition: int, offset: int) -> bool:
        """Whether the group has not finished it."""
        return not self._broker.queues.is_finished(topic, REDRIVE_GROUP, partition, offset)

    def open_count(self, topic: TopicName) -> int:
        """By the numbers of the queue; without one nothing was ever redriven."""
        if self._broker.queues.get(topic, REDRIVE_GROUP) is None:
            found = self._broker.topics.require(topic)
            self._broker.queues.check_loaded(REDRIVE_GROUP)
            ends = (self._broker.observe(topic, index).high_watermark for index in range(found.partition_count))
            return sum(max(0, end - self.floor(topic, index)) for index, end in enumerate(ends))
        status = self._broker.queues.status(topic, REDRIVE_GROUP)
        return sum(max(0, partition.lag - partition.moving) for partition in status.partitions)

    def move_back(self, letter: DeadLetter, done: Callable[[Reason | None], None]) -> None:
        """To the partition it came from; one that is not there any more is chosen anew, as for a new record."""
        topic = self._broker.topics.require(letter.original_topic)
        index = letter.original_partition
        if index >= topic.partition_count:
            index = self._broker.publisher.choose_partition(topic, NewRecord(letter.key, letter.value))
        self._broker.queues.move(
            letter.topic, REDRIVE_GROUP, letter.partition, [letter.offset], letter.original_topic, index, done
        )

    def finish(self, letters: list[DeadLetter], done: Callable[[Reason | None], None]) -> None:
        """Finished where they lie."""
        first = letters[0]
        offsets = [letter.offset for letter in letters]
        self._broker.queues.finish(first.topic, REDRIVE_GROUP, first.partition, offsets, "purged", done)
