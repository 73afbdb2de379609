"""One partition on this node, as readers see it: its log up to the high watermark.

:class:`penstock.core.partitions.partition.Partition` is the leader's, :class:`penstock.core.cluster.follower.Follower` a follower's.

Invariant: ``log.start_offset <= high_watermark <= log.next_offset``, and the high watermark of an object never decreases. Readers
see nothing at or above it.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.topics.names import is_staging
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.log.log import Log, Slice

Wake = Callable[[], None]
"""Called when the high watermark has moved, or the partition is gone."""


class Replica:
    """A partition that can be read here. All calls are made on the event loop."""

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
        """Whether this copy once had, in its present role, everything that the leader reported as committed. Always true for the leader."""
        self._readers: dict[Wake, None] = {}
        self.reconfigure(topic)

    def reconfigure(self, topic: Topic) -> None:
        """Apply a change of the topic's settings."""
        self.topic = topic
        self.is_staging = is_staging(topic.name)
        self.log.reconfigure(topic.config.log)

    @property
    def stable_offset(self) -> int:
        """The last stable offset; without transactions it is the high watermark."""
        return self.high_watermark

    @property
    def first_offset(self) -> int:
        """The offset of the partition's oldest record on its leader."""
        return self.log.start_offset

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> Slice:
        """Batches from the one that contains ``offset`` up to the high watermark. Staging topics of sinks cannot be read.

        Empty between the high watermark and the end of the log: after an election, a new leader learns a moment later what is committed.
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
        """Refuse a request for another leader epoch; -1 is accepted in any."""
        if leader_epoch < 0 or leader_epoch == self.leader_epoch:
            return
        older = leader_epoch < self.leader_epoch
        raise PenstockError(Reason.FENCED_LEADER_EPOCH if older else Reason.UNKNOWN_LEADER_EPOCH)

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """The greatest known epoch up to ``leader_epoch``, and the end offset of its records; (-1, -1) for an epoch in the future."""
        epochs, end = self.log.epochs, self.log.next_offset
        if leader_epoch == self.leader_epoch:
            return leader_epoch, end
        if epochs.latest < leader_epoch < self.leader_epoch:
            # There are no records after the latest epoch; this leader will append its first one here.
            return (leader_epoch if epochs.latest < 0 else epochs.latest), end
        return epochs.end_offset_for(leader_epoch, end)

    def watch(self, wake: Wake) -> None:
        """Call ``wake`` whenever there is more to read, until :meth:`unwatch`."""
        self._readers[wake] = None

    @property
    def is_watched(self) -> bool:
        """Whether any reader waits for more."""
        return bool(self._readers)

    def unwatch(self, wake: Wake) -> None:
        """Stop calling ``wake``. Does nothing if it was not registered."""
        self._readers.pop(wake, None)

    def close(self, reason: Reason) -> None:  # noqa: ARG002 - readers do not need the reason
        """End this role: the topic is deleted, or another node leads."""
        self.gone = True
        self._wake_readers()

    def _wake_readers(self) -> None:
        for wake in list(self._readers):
            wake()
