"""Calls to the leaders of partitions, on this node or another. Callers need not know the rules of retrying.

A batch is built here and appended by the partition's leader. If it certainly was not appended (there is no leader, or it could not be
reached, or another node was asked), the call is retried for a few seconds while a new leader is elected. If it may have been appended,
the answer is LINK_LOST: it is unknown whether the records are in the log. Batches for one partition are appended in the order of
the calls.

:meth:`Peers.append_once` can always be repeated. The leader searches its log, including uncommitted records, for the mark that each
record has in a header, and appends only the missing ones. So repeated and simultaneous calls all find the same records.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.core.partitions.status import NO_PRODUCER, LeaderStatus, ProducerQuery
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.types import Acks, GroupId, PartitionKey

Produced = Callable[[int | PenstockError], None]
"""Receives the offset of the batch's first record, or an error; LINK_LOST if it is unknown whether the batch was appended."""


class AppendedRecords(NamedTuple):
    """All records of a batch are in the log and committed."""

    offsets: list[int]
    """One for each record."""
    appended_from: int
    """Records below this offset were already there; the others were appended."""


AppendedOnce = Callable[[AppendedRecords | PenstockError], None]
StatusDone = Callable[[LeaderStatus | PenstockError], None]
"""Receives the status of a partition, or an error."""
CommittedDone = Callable[[int | PenstockError | None], None]
"""Receives an offset, None if there is none, or an error."""


class Peers(Protocol):
    """The leaders of all partitions. ``done`` is called exactly once, perhaps before the call returns."""

    @property
    def is_waiting(self) -> object:
        """Whether calls wait for any leader (as a truth value): saves publishers a call."""
        ...

    def holds(self, topic: Topic, index: int) -> bool:
        """Whether calls wait for this partition's leader. Later ones must then wait too, even if this node leads the partition by now."""
        ...

    def produce(self, topic: Topic, index: int, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Append a batch."""
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
        """Append the missing records of a batch with acks=all. ``search_from`` is where the search begins: one offset, or one per record.

        Each record has a header of this name, whose value is the mark. After any error, including LINK_LOST, the call can be repeated.
        """
        ...

    def partition_status(
        self, topic: Topic, index: int, done: StatusDone, producer: ProducerQuery = NO_PRODUCER
    ) -> None:
        """Ask the leader for the status of a partition. Retried for a few seconds after any error, since it changes nothing."""
        ...

    def committed(self, offsets_partition: int, group: GroupId, key: PartitionKey, done: CommittedDone) -> None:
        """Ask the coordinator of this partition of the offsets topic for the offset that a group has committed, or, if ``group`` is empty,
        for the lowest offset that any of its groups has committed. Retried like :meth:`partition_status`.
        """
        ...
