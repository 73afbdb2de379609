"""One partition on its leader: which batches may be appended, which records are committed, and the callers that wait for that.

Invariant: ``log.start_offset <= high_watermark <= log.written_offset <= log.next_offset``. Readers see nothing at or above the high
watermark. With ``Flush.SYNC`` a replica has a record only after fdatasync, so a record that a reader has seen survives a power loss.
With ``Flush.OS`` it has a record once the operating system does. A record is committed once all in-sync replicas have it (``in_sync``).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.core.cluster.in_sync import NOT_YET, InSync
from penstock.core.partitions.replica import Replica, Wake
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX
from penstock.log.log import Log
from penstock.ports import Flusher
from penstock.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    check_produced,
    read_header,
    read_produced,
    set_log_append_time,
)
from penstock.records.records import check_keys
from penstock.types import NO_PRODUCER_ID, NO_TIMESTAMP, Buffer, Flush, TimestampType

__all__ = ["Done", "Partition", "Wake"]

Done = Callable[[Reason | None], None]
"""Called with None once the condition is met, or with the reason why it never will be."""

_FORGOTTEN_SPARE: Final = 64
"""Abandoned waiters are removed once there are more than this."""


class Partition(Replica):
    """The leader's rules for one log. All calls are made on the event loop."""

    __slots__ = (
        "_awaiting_commit",
        "_awaiting_start",
        "_awaiting_write",
        "_batch_bytes_max",
        "_copiers",
        "_dirty",
        "_forgotten",
        "_sync",
        "_timestamp_after_max_ms",
        "_timestamp_before_max_ms",
        "_unhurried",
        "acknowledged_offset",
        "in_sync",
        "is_compacted",
        "stamps",
        "wants_recompression",
    )

    def __init__(
        self,
        topic: Topic,
        index: int,
        log: Log,
        flusher: Flusher,
        flush: Flush,
        leader_epoch: int,
        *,
        in_sync: InSync,
        high_watermark: int = 0,
    ) -> None:
        self._dirty = flusher.dirty
        self._unhurried = flusher.unhurried
        self._sync = flush is Flush.SYNC
        self._awaiting_write: deque[tuple[int, Done]] = deque()
        self._awaiting_commit: deque[tuple[int, Done]] = deque()
        self._forgotten: dict[Done, None] = {}
        self._awaiting_start: dict[Done, int] = {}
        self._copiers: dict[Wake, None] = {}
        self.acknowledged_offset = in_sync.epoch_start
        """Records below this offset were acknowledged, perhaps before their commit (acks=0, acks=1), or by an earlier leader. Readers
        expect to see them."""
        self.in_sync: Final = in_sync
        high_watermark = min(max(high_watermark, log.start_offset), log.written_offset)
        super().__init__(topic, index, log, leader_epoch, high_watermark)
        log.on_written = self._written
        log.on_synced = self._synced
        log.on_failed = self._failed

    def reconfigure(self, topic: Topic) -> None:
        """Take over a change of the topic's settings."""
        super().reconfigure(topic)
        config = topic.config
        self.wants_recompression = config.compression is not None
        self.stamps = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        # Plain attributes, because every append reads them.
        self.is_compacted = config.is_compacted
        self._batch_bytes_max = config.max_message_bytes
        self._timestamp_before_max_ms = config.timestamp_before_max_ms
        self._timestamp_after_max_ms = config.timestamp_after_max_ms
        self.in_sync.min_in_sync = topic.min_in_sync_of(len(self.in_sync.replicas))
        self.recount()

    def check_in_sync(self, batch: Buffer | None = None) -> None:
        """NOT_ENOUGH_REPLICAS if too few replicas are in sync for a producer that requires all of them.

        A ``batch`` that is already in the log is not refused: it waits for its commit. Otherwise its producer could send so many later
        batches that this one is no longer known when it is retried. A refused batch is the only one that its producer may send next.
        """
        if self.in_sync.is_below_min and self.in_sync.rules.refuse_below_min:
            if batch is not None and self._is_repeated_or_expected(batch):
                return
            # Callers cannot choose other settings or acks for internal topics.
            others = (
                "" if self.topic.internal else ", or lower its min.insync.replicas, or send with acks=leader (acks=1)"
            )
            raise PenstockError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"Topic {self.topic.name} requires {self.in_sync.min_in_sync} in-sync replicas, but {self.topic.name}/{self.index} has {self.in_sync.count}; start the missing nodes (penstock cluster status){others}",
            )

    def _is_repeated_or_expected(self, batch: Buffer) -> bool:
        """True for a batch that is already in the log. Any other valid batch is expected next."""
        if len(batch) < HEADER_BYTES:
            return False
        header = read_header(batch)
        if header.producer_id == NO_PRODUCER_ID:
            return False
        try:
            if self.log.producers.check(header) is not None:
                return True
            check_produced(batch, header)
        except PenstockError:
            return False
        self.log.expect(header)
        return False

    def append(
        self,
        batch: bytearray | memoryview,
        now_ms: int,
        *,
        is_sound: bool = False,
        keys_checked: bool = False,
        hurried: bool = True,
    ) -> int:
        """Check one batch, append it and return its base offset; for a known duplicate, the offset of the first one.

        ``is_sound``: a broker built or checked the batch, so only the topic's settings are checked. ``keys_checked``: the records are
        known to have the keys that the topic requires. Without ``hurried``, no caller waits for the commit, so that the disk serves others
        first. The batch is not written yet when this returns: wait with :meth:`when_written` or :meth:`when_committed`.
        """
        header = read_header(batch) if is_sound else read_produced(batch)
        size = len(batch)
        if size > self._batch_bytes_max:
            raise too_large(size, self._batch_bytes_max)
        if self.is_compacted and not keys_checked:
            self.check_keys(batch, header)
        if self.stamps:
            set_log_append_time(batch, now_ms)
            header = read_header(batch)
        elif (
            header.max_timestamp - now_ms > self._timestamp_after_max_ms
            or now_ms - header.base_timestamp > self._timestamp_before_max_ms
        ) and header.max_timestamp != NO_TIMESTAMP:
            raise time_refused(header, now_ms)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        self._dirty(self.log)
        if not hurried:
            self._unhurried(self.log)
        return base_offset

    def append_promised(self, batch: bytearray, header: BatchHeader, now_ms: int) -> int:
        """Append a batch of a sink. It was checked before the commit began, so later changes of the topic's settings do not refuse it."""
        if self.stamps:
            set_log_append_time(batch, now_ms)
            header = read_header(batch)
        base_offset = self.log.append(batch, header, self.leader_epoch)
        self._dirty(self.log)
        return base_offset

    def hurry(self) -> None:
        """A caller waits for records that were appended without ``hurried``."""
        self._dirty(self.log)

    def check_keys(self, batch: bytearray | memoryview, header: BatchHeader) -> None:
        """Refuse a batch with records that have no key. It decodes the batch, and may run in any thread."""
        bad = check_keys(batch, header, self._batch_bytes_max * DECOMPRESSED_RATIO_MAX)
        if bad:
            raise PenstockError(
                Reason.INVALID_RECORD,
                f"Record {bad[0][0]} of the batch has no key, but topic {self.topic.name} is compacted: every record needs a key",
                bad,
            )

    def when_written(self, next_offset: int, done: Done) -> None:
        """Call ``done`` once all records below ``next_offset`` are written to the operating system, which acknowledges them."""
        self.acknowledged_offset = max(self.acknowledged_offset, next_offset)
        if self.log.written_offset >= next_offset:
            done(None)
        else:
            self._awaiting_write.append((next_offset, done))

    def when_committed(self, next_offset: int, done: Done) -> None:
        """Call ``done`` once all records below ``next_offset`` are committed."""
        if self.high_watermark >= next_offset:
            done(None)
        elif self.log.failed is not None:
            done(Reason.STORAGE_ERROR)
        else:
            self._awaiting_commit.append((next_offset, done))

    def forget_committed(self, done: Done) -> None:
        """``done`` need not be called any more. It may have been called already, and may still be called.

        While nothing is committed, clients time out and retry again and again. Without this, all their waiters would be kept.
        """
        forgotten, waiting = self._forgotten, self._awaiting_commit
        if not waiting:
            return
        forgotten[done] = None
        if len(forgotten) > max(_FORGOTTEN_SPARE, len(waiting) // 2):
            kept = [entry for entry in waiting if entry[1] not in forgotten]
            waiting.clear()
            waiting.extend(kept)
            forgotten.clear()

    def is_settling(self, offset: int) -> bool:
        """Whether acknowledged records below ``offset`` are not committed yet, but can be, so that readers should wait for them.

        False once the sync has failed, another node leads, or too few replicas are in sync.
        """
        return (
            self.high_watermark < min(offset, self.acknowledged_offset)
            and self.log.failed is None
            and not self.gone
            and self.in_sync.committed() != NOT_YET
        )

    def is_held_here(self, offset: int) -> bool:
        """Whether this replica has all records below ``offset``, whatever its followers have."""
        return (self.log.synced_offset if self._sync else self.log.written_offset) >= offset

    @property
    def low_watermark(self) -> int:
        """Records below this offset are deleted on every replica that may lead."""
        return self.in_sync.low_watermark(self.log.start_offset)

    def when_deleted(self, offset: int, done: Done) -> None:
        """Call ``done`` once the low watermark has reached ``offset``, unless :meth:`forget_deleted` comes first."""
        self._awaiting_start[done] = offset
        self._check_deleted()

    def forget_deleted(self, done: Done) -> None:
        """``done`` need not be called any more. It may have been called already."""
        self._awaiting_start.pop(done, None)

    def _check_deleted(self) -> None:
        start = self.low_watermark
        for done, offset in list(self._awaiting_start.items()):
            if offset <= start:
                del self._awaiting_start[done]
                self.in_sync.start_promised = max(self.in_sync.start_promised, offset)
                done(None)

    def watch_writes(self, wake: Wake) -> None:
        """Call ``wake`` whenever more is written or committed: for followers, which copy records before their commit."""
        self._copiers[wake] = None

    def unwatch_writes(self, wake: Wake) -> None:
        """Stop calling ``wake``. Does nothing if it was not registered."""
        self._copiers.pop(wake, None)

    def close(self, reason: Reason) -> None:
        """This node no longer leads the partition: answer all waiting callers."""
        log = self.log
        # The log may belong to a follower by now, which has its own hooks.
        if log.on_written == self._written:
            log.on_written = log.on_synced = log.on_failed = None
        self.gone = True
        self._refuse_from(-1, reason)
        deletions, self._awaiting_start = self._awaiting_start, {}
        for done in deletions:
            done(reason)
        self._wake_readers()
        self._wake_copiers()

    def started_later(self) -> None:
        """The oldest records were deleted, by age or on request: followers must delete them too."""
        if self._copiers:
            self._wake_copiers()

    def _wake_copiers(self) -> None:
        for wake in list(self._copiers):
            wake()

    def _written(self) -> None:
        offset = self.log.written_offset
        waiting = self._awaiting_write
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)
        if self._copiers:
            self._wake_copiers()
        if not self._sync:
            self._counted(offset)

    def _synced(self) -> None:
        if self._sync:
            self._counted(self.log.synced_offset)

    def _counted(self, offset: int) -> None:
        """This replica has all records below ``offset``."""
        self.in_sync.leader_end = offset
        self._advance(self.in_sync.committed())

    def recount(self) -> None:
        """A follower fetched, or the in-sync set changed: more may be committed, or deleted everywhere."""
        if not self.gone:
            self._advance(self.in_sync.committed())
            if self._awaiting_start:
                self._check_deleted()

    def _advance(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        waiting = self._awaiting_commit
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)
        if self._forgotten and not waiting:
            self._forgotten.clear()
        if self._readers:
            self._wake_readers()
        if self._copiers:
            self._wake_copiers()

    def _failed(self, error: PenstockError, from_offset: int) -> None:
        # Readers need not wait for lost records.
        self.acknowledged_offset = min(self.acknowledged_offset, from_offset)
        self._refuse_from(from_offset, error.reason)
        if self._readers:
            self._wake_readers()

    def _refuse_from(self, from_offset: int, reason: Reason) -> None:
        for waiting in (self._awaiting_write, self._awaiting_commit):
            # Not sorted: a duplicate waits for an earlier offset than the waiters before it.
            refused = [done for next_offset, done in waiting if next_offset > from_offset]
            kept = [entry for entry in waiting if entry[0] <= from_offset]
            waiting.clear()
            waiting.extend(kept)
            for done in refused:
                done(reason)


def too_large(size_bytes: int, bytes_max: int) -> PenstockError:
    """The refusal of a batch of that size."""
    return PenstockError(
        Reason.RECORDS_TOO_LARGE,
        f"A batch of {size_bytes} bytes is over the topic's max.message.bytes of {bytes_max}; "
        "send smaller batches or raise this setting of the topic",
    )


def time_refused(header: BatchHeader, now_ms: int) -> PenstockError:
    """The refusal of a batch whose time is far from the clock's."""
    return PenstockError(
        Reason.INVALID_TIMESTAMP,
        f"Timestamp {header.max_timestamp} is too far from the broker's clock ({now_ms}); check the producer's "
        "clock or the topic's message.timestamp.*.max.ms",
    )
