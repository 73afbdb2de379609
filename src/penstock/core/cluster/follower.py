"""A copy of a partition: it takes what its leader sends, exactly as it is, and cuts off what its leader does not have.

A follower asks for the offset behind what it has *for good* (synced, unless the node is told to leave that to the operating
system), so its question is its acknowledgement, and the leader may count it. Before it takes anything in a new leader's epoch, its
question names the epoch of its last batch; the leader answers with the batch's successor or with where the histories part.

A leader that was elected as it should be has everything that is committed, so nothing below the high watermark is ever cut off for it. If one asks for that, its disk has
lost something, or the agreed state has: then this copy may be the last, and nothing more is copied until an operator has decided. This is not so where an
election was allowed to lose records (by the topic's settings, or this once), and where records are not synced before they count.

An observer follows in the same way without being one of the replicas, and is sent committed records only.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.cluster.rules import ALL, Rules
from penstock.core.partitions.replica import Replica
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.log.log import Log
from penstock.ports import Flusher, Report
from penstock.records.batch import HEADER_BYTES, BatchHeader, crc_matches, read_header
from penstock.types import NO_EPOCH, Buffer, Flush

OnSettled = Callable[["Follower"], None]


class Follower(Replica):
    """The follower's rules for one log."""

    __slots__ = (
        "_dirty",
        "_flush",
        "_leader_high_watermark",
        "_leader_start",
        "_report",
        "_unclean_epoch",
        "has_heard",
        "is_observer",
        "leader",
        "on_settled",
        "rules",
        "stuck",
    )

    def __init__(
        self,
        topic: Topic,
        index: int,
        log: Log,
        flusher: Flusher,
        flush: Flush,
        report: Report,
        *,
        leader: int,
        leader_epoch: int,
        high_watermark: int,
        unclean_epoch: int = NO_EPOCH,
        is_observer: bool = False,
        rules: Rules = ALL,
    ) -> None:
        self.rules: Final = rules
        self.leader: Final = leader
        """The node that it copies."""
        self.is_observer: Final = is_observer
        self.on_settled: OnSettled | None = None
        """Told when what was taken is there for good: it may ask for more."""
        self._dirty = flusher.dirty
        self._report = report
        self._leader_high_watermark = high_watermark
        self._leader_start = 0
        self._unclean_epoch = unclean_epoch
        self.stuck: str | None = None
        """Why nothing is copied from this leader; None when it is."""
        self.has_heard = False
        """Whether its leader has told it anything yet."""
        self._flush = flush if rules.synced_before_counted else Flush.OS
        super().__init__(topic, index, log, leader_epoch, min(max(high_watermark, log.start_offset), log.next_offset))
        self.is_caught_up = False
        log.on_written = self._written
        log.on_synced = self._synced
        log.on_failed = self._failed
        if not rules.truncate_by_epoch and not is_observer:
            log.truncate_to(self.high_watermark)

    # Asking.

    @property
    def is_settled(self) -> bool:
        """Whether all that there is is here for good. Only then may it ask: its question says so."""
        log = self.log
        return (log.synced_offset if self._flush is Flush.SYNC else log.written_offset) == log.next_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch here; -1 when there is none, or when it is not to be compared."""
        if not self.rules.truncate_by_epoch:
            return NO_EPOCH
        return self.log.epochs.latest

    @property
    def first_offset(self) -> int:
        """Its leader's. An observer may have less, and does not know before it has heard."""
        return self._leader_start if self.is_observer else max(self._leader_start, self.log.start_offset)

    # Answers.

    def take(self, records: Buffer, high_watermark: int, leader_start: int) -> int:
        """Append what the leader sent, and believe what it calls committed; returns how many bytes were taken.

        CORRUPT_RECORDS when a batch is damaged: what came before it is kept, and the next question asks for it again.
        """
        if self.stuck is not None:
            return 0
        try:
            return self._append(memoryview(records))
        finally:
            self._leader_high_watermark = high_watermark
            self._leader_start = leader_start
            self._begin_later()
            self.has_heard = True
            self._commit()

    def _begin_later(self) -> None:
        """What was deleted at the leader, for good or by age, must not come back when this one leads."""
        start = min(self._leader_start, self.log.written_offset)
        if start > self.log.start_offset:
            self.log.delete_before(start, sync=False)

    def _append(self, view: memoryview) -> int:
        position = 0
        try:
            while position + HEADER_BYTES <= len(view):
                header = read_header(view, position)
                end = position + header.size_bytes
                if end > len(view):
                    break
                self._append_batch(view[position:end], header)
                position = end
        finally:
            # What came before a batch that cannot be taken is kept, and has to be made durable like any other.
            if position:
                self._dirty(self.log)
        return position

    def _append_batch(self, batch: memoryview, header: BatchHeader) -> None:
        if not crc_matches(batch):
            raise PenstockError(
                Reason.CORRUPT_RECORDS,
                f"the batch at offset {header.base_offset} of {self.topic.name}/{self.index} arrived damaged from node {self.leader}",
            )
        if header.next_offset > self.log.next_offset:
            if header.base_offset < self.log.next_offset == self.log.start_offset:
                # It was to begin in the middle of a batch, as its leader's log may.
                self.log.start_at(header.base_offset)
            self.log.append_copied(batch, header)

    def diverged(self, epoch: int, end_offset: int) -> bool:
        """The leader has records up to ``end_offset`` in ``epoch``, the last that it knows at or before this one's last: the rest goes.

        A leader in sync has all that is committed. One that was forced on the partition may not: then that is lost, and said. Of any other this
        is not believed: False, and ``stuck`` says why.
        """
        _, own_end = self.log.epochs.end_offset_for(epoch, self.log.next_offset)
        cut = end_offset if own_end < 0 else min(end_offset, own_end)
        if cut < self.high_watermark and self._keeps_committed:
            self._stop_at(cut)
            return False
        self.log.truncate_to(cut)
        end = self.log.next_offset
        if end < self.high_watermark:
            place = f"{self.topic.name}/{self.index}"
            self._report(
                f"{place}: it is copied again from offset {end} on: node {self.leader} cannot tell which of its records this node has, because some were compacted"
                if self.topic.config.is_compacted
                else f"{place}: node {self.leader} leads without offsets {end} to {self.high_watermark - 1}, which were committed; they are now lost here too"
            )
            self.high_watermark = self._leader_high_watermark = end
        return True

    @property
    def _keeps_committed(self) -> bool:
        """Whether no election can have lost what is known here to be committed.

        Of a compacted topic that is not to be told: a leader that copied what compaction left knows no epochs of which nothing was left, and says that its history
        parts from this one's where it does not. What is cut off then is copied again.
        """
        config = self.topic.config
        if self.is_observer or self._flush is not Flush.SYNC or config.unclean_election or config.is_compacted:
            return False
        return self._unclean_epoch <= self.log.epochs.latest

    def _stop_at(self, cut: int) -> None:
        if self.stuck is not None:
            return
        place = f"{self.topic.name}/{self.index}"
        self.stuck = (
            f"{place}: node {self.leader} leads without offsets {cut} to {self.high_watermark - 1}, which were committed and are here: this node keeps them, and copies nothing more from it. To keep them, stop the in-sync nodes, and elect this one (penstock cluster elect "
            f"{place} --unclean). To discard them, stop this node, remove {self.log.directory} and start it again."
        )
        self._report(self.stuck)

    def start_over(self, offset: int) -> None:
        """The leader has nothing before ``offset`` any more, and this one ends before it."""
        self.log.start_at(offset)
        self.high_watermark = self._leader_high_watermark = offset
        self._wake_readers()

    def _commit(self) -> None:
        committed = min(self._leader_high_watermark, self.log.written_offset)
        if committed > self.high_watermark:
            self.high_watermark = committed
            if self._readers:
                self._wake_readers()
        if self.has_heard and not self.is_caught_up:
            self.is_caught_up = self.high_watermark >= self._leader_high_watermark

    # What the log tells.

    def _written(self) -> None:
        if self._leader_start > self.log.start_offset:
            try:
                self._begin_later()
            except PenstockError as error:
                # It says so with its next question: its log begins where it did.
                self._report(
                    f"{self.topic.name}/{self.index}: records deleted by the leader could not be deleted here: {error.text}"
                )
        self._commit()
        if self._flush is not Flush.SYNC:
            self._settle()

    def _synced(self) -> None:
        if self._flush is Flush.SYNC:
            self._settle()

    def _settle(self) -> None:
        if self.on_settled is not None and not self.gone:
            self.on_settled(self)

    def _failed(self, error: PenstockError, from_offset: int) -> None:  # noqa: ARG002 - the log says so itself
        self._settle()

    def close(self, reason: Reason) -> None:
        """Follow no more."""
        log = self.log
        if log.on_written == self._written:
            log.on_written = log.on_synced = log.on_failed = None
        super().close(reason)
