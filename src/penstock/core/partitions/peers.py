"""Appending to partitions that other nodes lead, as the core sees it: the rules of what may be tried again are the caller's no concern.

A batch is built here and appended by the partition's leader, wherever that is, this node too. What certainly was not appended (nobody
leads, the wrong node was asked, nobody could be reached) is tried again for a few seconds while a new leader is found; what may have been is
answered with LINK_LOST: then it is known to nobody whether the records are there. For one topic and partition, batches
that are handed in one behind another are appended in that order.

:meth:`Peers.append_once` can be asked again whatever happened before. The leader looks in its own log, uncommitted records too, for
the mark that each record carries in a header, and appends only what it lacks. One leader at a time, one event loop: whoever asks twice, or two
that ask at once, get the same records.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.core.groups.requests import PartitionKey
from penstock.core.partitions.status import NO_PRODUCER, LeaderStatus, ProducerQuery
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.types import Acks, GroupId

Produced = Callable[[int | PenstockError], None]
"""Told the offset of the batch's first record, or why it is not there (LINK_LOST: why that is not known)."""


class AppendedRecords(NamedTuple):
    """The records of a batch are in the log, and committed."""

    offsets: list[int]
    """Of each record, in their order."""
    appended_from: int
    """Records below this offset were found, the others were appended."""


AppendedOnce = Callable[[AppendedRecords | PenstockError], None]
StatusDone = Callable[[LeaderStatus | PenstockError], None]
"""Told how a partition stands, or why that cannot be known now."""
CommittedDone = Callable[[int | PenstockError | None], None]
"""Told an offset, or that there is none, or why that cannot be known now."""


class Peers(Protocol):
    """The leaders of all partitions. ``done`` is called exactly once, perhaps before the call returns."""

    def holds(self, topic: Topic, index: int) -> bool:
        """Whether something waits for this partition's leader, so that what comes must wait behind it, though this node may lead by now."""
        ...

    def produce(self, topic: Topic, index: int, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Have a batch appended."""
        ...

    def append_once(
        self,
        topic: Topic,
        index: int,
        batch: bytearray,
        header: str,
        search_from: int | Sequence[int],
        done: AppendedOnce,
    ) -> None:
        """Have those records of a batch appended, as by acks=all, whose mark is not at or behind ``search_from`` yet (one for all, or each its own).

        Each record has a header of this name, whose value is the mark. LINK_LOST and every other error: ask again.
        """
        ...

    def partition_status(
        self, topic: Topic, index: int, done: StatusDone, producer: ProducerQuery = NO_PRODUCER
    ) -> None:
        """Ask the leader how a partition stands (:func:`penstock.core.partitions.status.partition_status`). It changes nothing: asked again for a few
        seconds, whatever happened.
        """
        ...

    def committed(self, offsets_partition: int, group: GroupId, key: PartitionKey, done: CommittedDone) -> None:
        """Ask the coordinator of this partition of the offsets topic how far a group is in a partition; without a name, how far that one of all
        its groups is that is least far. It changes nothing.
        """
        ...
