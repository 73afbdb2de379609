"""A copy of a partition: it appends what its leader sends, unchanged, and truncates what its leader does not have.

A follower fetches at the offset after the last record that is durable here (synced, unless syncing is left to the operating system). So
its fetch is its acknowledgement, which the leader may count. Each fetch has the epoch of the follower's last batch, and the leader
responds with the next records, or with the offset from which the logs diverge.

A leader has all committed records unless the election was unclean, so a follower never truncates below its high watermark. If a leader
requires that, its disk has lost records, or the metadata store has. Then this copy may be the last one, and nothing more is copied until
an operator decides. This does not apply where unclean elections are allowed, or where records count before they are synced.

An observer follows in the same way without being a replica, and receives committed records only.
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
        """The node that it copies from."""
        self.is_observer: Final = is_observer
        self.on_settled: OnSettled | None = None
        """Called when all records are durable here, so that more can be fetched."""
        self._dirty = flusher.dirty
        self._report = report
        self._leader_high_watermark = high_watermark
        self._leader_start = 0
        self._unclean_epoch = unclean_epoch
        self.stuck: str | None = None
        """Why nothing is copied from this leader; None if it is copied."""
        self.has_heard = False
        """Whether its leader has sent anything yet."""
        self._flush = flush if rules.synced_before_counted else Flush.OS
        super().__init__(topic, index, log, leader_epoch, min(max(high_watermark, log.start_offset), log.next_offset))
        self.is_caught_up = False
        log.on_written = self._written
        log.on_synced = self._synced
        log.on_failed = self._failed
        if not rules.truncate_by_epoch and not is_observer:
            log.truncate_to(self.high_watermark)

    # Fetching.

    @property
    def is_settled(self) -> bool:
        """Whether all records here are durable. Only then may it fetch, since a fetch acknowledges them."""
        log = self.log
        return (log.synced_offset if self._flush is Flush.SYNC else log.written_offset) == log.next_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch here; -1 if there is none, or if it must not be compared."""
        if not self.rules.truncate_by_epoch:
            return NO_EPOCH
        return self.log.epochs.latest

    @property
    def first_offset(self) -> int:
        """The leader's first offset. An observer may have fewer records, and does not know it before its first response."""
        return self._leader_start if self.is_observer else max(self._leader_start, self.log.start_offset)

    # Responses.

    def take(self, records: Buffer, high_watermark: int, leader_start: int) -> int:
        """Append the records from the leader, and take over its high watermark; returns how many bytes were appended.

        CORRUPT_RECORDS if a batch is damaged: the batches before it are kept, and the next fetch requests it again.
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
        """Delete what the leader has deleted: it must not reappear when this node leads."""
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
            # Even after an error, the batches before it are kept and must be made durable.
            if position:
                self._dirty(self.log)
        return position

    def _append_batch(self, batch: memoryview, header: BatchHeader) -> None:
        if not crc_matches(batch):
            raise PenstockError(
                Reason.CORRUPT_RECORDS,
                f"The batch at offset {header.base_offset} of {self.topic.name}/{self.index} arrived damaged from node {self.leader}",
            )
        if header.next_offset > self.log.next_offset:
            if header.base_offset < self.log.next_offset == self.log.start_offset:
                # This log begins in the middle of a batch, as the leader's may.
                self.log.start_at(header.base_offset)
            self.log.append_copied(batch, header)

    def diverged(self, epoch: int, end_offset: int) -> bool:
        """Truncate this log. The leader's ends at ``end_offset`` in ``epoch``, its last epoch that is not above this log's last.

        After an unclean election, the leader may lack committed records; these are lost, which is reported. Otherwise the log is not
        truncated below the high watermark: returns False, and ``stuck`` has the reason.
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
        """Whether no election can have lost records that are known here to be committed.

        Unknown for a compacted topic: a leader that copied it after compaction does not know epochs without remaining records, so it may
        report that the logs diverge where they do not. The truncated records are then copied again.
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
        """Begin again at ``offset``: the leader has no records before it, and this log ends before it."""
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

    # Called by the log.

    def _written(self) -> None:
        if self._leader_start > self.log.start_offset:
            try:
                self._begin_later()
            except PenstockError as error:
                # The next fetch reports the start of this log to the leader.
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
        """Stop following."""
        log = self.log
        if log.on_written == self._written:
            log.on_written = log.on_synced = log.on_failed = None
        super().close(reason)
