"""One partition as it lies on this node, for whoever reads it: its log up to the high watermark, whoever leads it.

:class:`penstock.core.partitions.partition.Partition` is the leader's, :class:`penstock.core.cluster.follower.Follower` a copy's.

Invariant: ``log.start_offset <= high_watermark <= log.next_offset`` once it is known, and it never goes back while this object lives.
Readers see nothing at or above it.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.topics.names import is_staging
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.log.log import Log, Slice

Wake = Callable[[], None]
"""Told that the high watermark moved, or that the partition is gone."""


class Replica:
    """What can be read here. All calls are made on the event loop."""

    __slots__ = (
        "_readers",
        "gone",
        "high_watermark",
        "index",
        "is_caught_up",
        "is_staging",
        "leader_epoch",
        "log",
        "topic",
    )

    def __init__(self, topic: Topic, index: int, log: Log, leader_epoch: int, high_watermark: int) -> None:
        self.index: Final = index
        self.log: Final = log
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.gone = False
        self.is_caught_up = True
        """Whether everything was here, at one time in this role, that the leader called committed; the leader's own copy always is."""
        self._readers: dict[Wake, None] = {}
        self.reconfigure(topic)

    def reconfigure(self, topic: Topic) -> None:
        """Take over a change of the topic's settings."""
        self.topic = topic
        self.is_staging = is_staging(topic.name)
        self.log.reconfigure(topic.config.log)

    @property
    def stable_offset(self) -> int:
        """Readers of committed transactions stop here; without transactions it is the high watermark."""
        return self.high_watermark

    @property
    def first_offset(self) -> int:
        """The oldest record that there is, wherever the partition is led."""
        return self.log.start_offset

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> Slice:
        """Batches from the one that holds ``offset`` up to the high watermark. What is staged for a sink is shown to nobody.

        Empty between the high watermark and the end of the log: after an election what is committed is known a moment later.
        """
        if self.is_staging:
            raise PenstockError(
                Reason.INVALID_TOPIC,
                f"{self.topic.name} contains records that a sink has not committed yet; read the sink's target topics",
            )
        if self.high_watermark < offset <= self.log.next_offset:
            return Slice(b"", offset)
        return self.log.read(offset, max_bytes, self.high_watermark, at_least_one=at_least_one)

    def check_epoch(self, leader_epoch: int) -> None:
        """Refuse a caller that follows another leader; -1 is one that does not care."""
        if leader_epoch < 0 or leader_epoch == self.leader_epoch:
            return
        older = leader_epoch < self.leader_epoch
        raise PenstockError(Reason.FENCED_LEADER_EPOCH if older else Reason.UNKNOWN_LEADER_EPOCH)

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """The greatest epoch at or below ``leader_epoch`` and where its records end; (-1, -1) for one nobody led in yet."""
        epochs, end = self.log.epochs, self.log.next_offset
        if leader_epoch == self.leader_epoch:
            return leader_epoch, end
        if epochs.latest < leader_epoch < self.leader_epoch:
            # Nobody has written since that latest epoch: this leader will, from here on.
            return (leader_epoch if epochs.latest < 0 else epochs.latest), end
        return epochs.end_offset_for(leader_epoch, end)

    def watch(self, wake: Wake) -> None:
        """Call ``wake`` whenever there is more to read, until :meth:`unwatch`."""
        self._readers[wake] = None

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for more."""
        return bool(self._readers)

    def unwatch(self, wake: Wake) -> None:
        """The reader is gone; fine when it was not there."""
        self._readers.pop(wake, None)

    def close(self, reason: Reason) -> None:  # noqa: ARG002 - nobody who only reads is told why
        """It is not this any more: the topic is deleted, or somebody else leads."""
        self.gone = True
        self._wake_readers()

    def _wake_readers(self) -> None:
        for wake in list(self._readers):
            wake()
