"""Appends records with produce keys that may be in their partition already, or whose partition another node leads.

Before the leader appends a record, it searches its log for the record's key, from the offset of the intent (``core/partitions/peers.py``).
So this node and later coordinators of the key can send the same record repeatedly, and it is appended once.

The offset must not be above that of the record, and should not be far below it (``core/partitions/ends.py``).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from penstock.core.idempotency.attempts import Attempt
from penstock.core.idempotency.stored import KEY_HEADER
from penstock.core.partitions.ends import PartitionEnds
from penstock.core.partitions.peers import AppendedRecords
from penstock.core.publish import NewRecord
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import PUBLISHED_BATCH_BYTES_MAX
from penstock.ports import Flusher
from penstock.records.batch import Compression
from penstock.records.builder import BatchBuilder

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class Appended(NamedTuple):
    """A record is committed in its partition."""

    offset: int
    size_bytes: int
    """Its share of the batch."""
    is_new: bool
    """Whether this call appended it."""


AppendDone = Callable[[Appended | PenstockError], None]
_Place = tuple[UUID, int]


class _PendingAppend(NamedTuple):
    """A record to be appended, for a key in use."""

    attempt: Attempt
    record: NewRecord
    search_from: int
    done: AppendDone


class OnceAppends:
    """All appends for this node's keys. The appends of one turn to a partition are one batch, if they fit."""

    def __init__(self, broker: "Broker", flusher: Flusher) -> None:
        self._broker = broker
        self._flusher = flusher
        self.ends: Final = PartitionEnds(broker)
        self._pending: dict[_Place, list[_PendingAppend]] = {}

    def check(self, topic: Topic, record: NewRecord) -> None:
        """Refuse a record that no leader would append."""
        if topic.internal:
            raise PenstockError(Reason.INVALID_TOPIC, f"{topic.name} is an internal topic; publish to another topic")
        self._broker.publisher.check(topic, record)

    def append(self, attempt: Attempt, topic: Topic, record: NewRecord, search_from: int, done: AppendDone) -> None:
        """Append a record that has its partition and timestamp, unless it is there. After any error, the call can be repeated."""
        assert record.partition is not None and record.timestamp_ms is not None
        if not self._pending:
            self._flusher.gather(self._append_pending)
        pending = _PendingAppend(attempt, record, search_from, done)
        self._pending.setdefault((topic.topic_id, record.partition), []).append(pending)

    def _append_pending(self) -> None:
        gathered, self._pending = self._pending, {}
        for place, added in gathered.items():
            # Another node may coordinate the keys by now.
            pending = [each for each in added if not each.attempt.over]
            topic = self._broker.topics.get_by_id(place[0])
            if topic is not None and pending:
                self._append_all(topic, place, pending)

    def _append_all(self, topic: Topic, place: _Place, pending: list[_PendingAppend]) -> None:
        bytes_max = min(topic.config.max_message_bytes, PUBLISHED_BATCH_BYTES_MAX)
        builder, batched = BatchBuilder(), list[_PendingAppend]()
        for each in pending:
            key, value, headers, _, timestamp_ms = each.record
            alone = BatchBuilder()
            alone.add(timestamp_ms or 0, key, value, headers)
            if batched and builder.size_bytes + alone.size_bytes > bytes_max:
                self._append_batch(topic, place, builder, batched)
                builder, batched = BatchBuilder(), []
            builder.add(timestamp_ms or 0, key, value, headers)
            batched.append(each)
        self._append_batch(topic, place, builder, batched)

    def _append_batch(self, topic: Topic, place: _Place, builder: BatchBuilder, pending: list[_PendingAppend]) -> None:
        batch = builder.build(compression=topic.config.compression or Compression.NONE)
        # One offset per record: before the record of a key, there may be an older one of the same key, from an earlier window.
        search_from = [each.search_from for each in pending]
        done = partial(self._appended, place, pending, len(batch) // len(pending))
        self._broker.peers.append_once(topic, place[1], batch, KEY_HEADER, search_from, done)

    def _appended(
        self, place: _Place, pending: list[_PendingAppend], size_bytes: int, answer: AppendedRecords | PenstockError
    ) -> None:
        if isinstance(answer, PenstockError):
            for each in pending:
                each.done(answer)
            return
        self.ends.note(*place, max(answer.offsets) + 1)
        for each, offset in zip(pending, answer.offsets, strict=True):
            each.done(Appended(offset, size_bytes, is_new=offset >= answer.appended_from))
