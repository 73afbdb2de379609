"""The way of a sink's batches into one target: into the log, where this broker is alone, or to the leader, in a cluster.

In a cluster a leader forgets nothing that is committed, and refuses what does not follow on the producer's last batch. But a producer that it
does not know may begin anywhere. So of each target the first batch is waited for until it is committed, before the next is sent: from then on every
leader there will be knows the producer, and nothing can be left out.
"""

from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.coordinators.jobs import Outcome
from penstock.core.partitions.ends import peers_of
from penstock.core.partitions.partition import Partition
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.records.batch import set_offset
from penstock.types import NO_EPOCH, Acks

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class Tally(Outcome):
    """Told how several things ended: well if all did."""

    __slots__ = ("_left", "_problem")

    def __init__(self) -> None:
        super().__init__()
        self._left = 1
        self._problem: PenstockError | None = None

    def expect(self) -> None:
        """One more."""
        self._left += 1

    def ended(self, answer: object) -> None:
        """One of them ended: with a PenstockError, or well."""
        if self._problem is None and isinstance(answer, PenstockError):
            self._problem = answer
        self._left -= 1
        if not self._left:
            self(None if self._problem is None else self._problem.reason)

    def check(self) -> None:
        """Raise what the first of them failed with."""
        if self._problem is not None:
            raise self._problem

    def close(self) -> "Tally":
        """That was all."""
        self.ended(None)
        return self


class Line(Protocol):
    """To one target."""

    @property
    def is_gone(self) -> bool:
        """Whether the target's topic is deleted."""
        ...

    def append(self, batch: bytearray) -> None:
        """One batch, with its producer and sequence."""
        ...

    def committed(self) -> Outcome:
        """Told when all that was appended since this was last asked for is committed."""
        ...


class LineHere:
    """Into a log of this broker, which is alone."""

    def __init__(self, broker: "Broker", partition: Partition) -> None:
        self._clock = broker.clock
        self._partition = partition

    @property
    def is_gone(self) -> bool:
        """Whether the target's topic is deleted."""
        return self._partition.gone

    def append(self, batch: bytearray) -> None:
        """One batch; it was checked when it was promised."""
        self._partition.append_owed(batch, self._clock.now_ms())

    def committed(self) -> Outcome:
        """All that is in the log."""
        outcome = Outcome()
        self._partition.when_committed(self._partition.log.next_offset, outcome)
        return outcome


class LineToLeader:
    """To whoever leads the target. It may refuse what the topic's settings do not allow any more: then it is tried again until they do."""

    def __init__(self, broker: "Broker", topic: Topic, index: int) -> None:
        self._topics = broker.topics
        self._peers: Final = peers_of(broker)
        self._topic = topic
        self._index = index
        self._tally = Tally()

    @property
    def is_gone(self) -> bool:
        """Whether the target's topic is deleted."""
        return self._topics.get_by_id(self._topic.topic_id) is None

    def append(self, batch: bytearray) -> None:
        """One batch; a leader that has it already says where."""
        self._tally.expect()
        # Its place in the staging log means nothing to others.
        set_offset(batch, 0, NO_EPOCH)
        self._peers.produce(self._topic, self._index, batch, Acks.ALL, self._tally.ended)

    def committed(self) -> Outcome:
        """All that was sent since."""
        tally, self._tally = self._tally, Tally()
        return tally.close()
