"""Sends the batches of a sink to the leaders of its targets.

A leader forgets nothing that is committed, and refuses a batch that does not follow the producer's last one. But a producer that it does not know
may begin with any sequence number. So the first batch for each target must be committed before the next one is sent: from then on every
later leader knows the producer, and no batch can be left out.
"""

from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.jobs import Outcome
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


class TargetWriter:
    """Writes to one target. The batches were checked when they were promised, so later settings of the topic do not refuse them."""

    def __init__(self, broker: "Broker", topic: Topic, index: int) -> None:
        self._topics = broker.topics
        self._peers: Final = broker.peers
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
