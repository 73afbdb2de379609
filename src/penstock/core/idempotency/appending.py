"""Appending records with produce keys that may be in their partition already, or whose partition another node leads.

Before the leader appends a record, it looks for the record's key in its own log (``core/partitions/peers.py``), from the offset of the intent. So the
same record can be sent again and again, by this node and by later coordinators of the key, and is there once.

The offset must not be above that of the record, and should not be far below it: it is where the partition was known to be committed
(``core/partitions/ends.py``).
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
    """A record is in its partition, committed."""

    offset: int
    size_bytes: int
    """Its part of the batch."""
    is_new: bool
    """Whether the log did not have it before."""


AppendDone = Callable[[Appended | PenstockError], None]
_Place = tuple[UUID, int]


class _Owed(NamedTuple):
    """A record that is to be appended, for a key that is in use."""

    attempt: Attempt
    record: NewRecord
    search_from: int
    done: AppendDone


class OnceAppends:
    """All appends of this node's keys. What one turn brings for a partition is one batch, if it fits."""

    def __init__(self, broker: "Broker", flusher: Flusher) -> None:
        self._broker = broker
        self._flusher = flusher
        self.ends: Final = PartitionEnds(broker)
        self._owed: dict[_Place, list[_Owed]] = {}

    def check(self, topic: Topic, record: NewRecord) -> None:
        """Refuse what no leader would append."""
        if topic.internal:
            raise PenstockError(Reason.INVALID_TOPIC, f"{topic.name} is an internal topic; publish to another topic")
        self._broker.publisher.check(topic, record)

    def append(self, attempt: Attempt, topic: Topic, record: NewRecord, search_from: int, done: AppendDone) -> None:
        """Have a record (with its partition and its time) in its partition. Any error: it may be there or not, ask again."""
        assert record.partition is not None and record.timestamp_ms is not None
        if not self._owed:
            self._flusher.gather(self._append_owed)
        owed = _Owed(attempt, record, search_from, done)
        self._owed.setdefault((topic.topic_id, record.partition), []).append(owed)

    def _append_owed(self) -> None:
        gathered, self._owed = self._owed, {}
        for place, all_owed in gathered.items():
            # Somebody else may speak for the keys by now.
            owed = [each for each in all_owed if not each.attempt.over]
            topic = self._broker.topics.get_by_id(place[0])
            if topic is not None and owed:
                self._append_all(topic, place, owed)

    def _append_all(self, topic: Topic, place: _Place, owed: list[_Owed]) -> None:
        bytes_max = min(topic.config.max_message_bytes, PUBLISHED_BATCH_BYTES_MAX)
        builder, batched = BatchBuilder(), list[_Owed]()
        for each in owed:
            key, value, headers, _, timestamp_ms = each.record
            alone = BatchBuilder()
            alone.add(timestamp_ms or 0, key, value, headers)
            if batched and builder.size_bytes + alone.size_bytes > bytes_max:
                self._append_batch(topic, place, builder, batched)
                builder, batched = BatchBuilder(), []
            builder.add(timestamp_ms or 0, key, value, headers)
            batched.append(each)
        self._append_batch(topic, place, builder, batched)

    def _append_batch(self, topic: Topic, place: _Place, builder: BatchBuilder, owed: list[_Owed]) -> None:
        batch = builder.build(compression=topic.config.compression or Compression.NONE)
        # Each its own: a key whose window was over has an older record before its own.
        search_from = [each.search_from for each in owed]
        done = partial(self._appended, place, owed, len(batch) // len(owed))
        self._broker.peers.append_once(topic, place[1], batch, KEY_HEADER, search_from, done)

    def _appended(
        self, place: _Place, owed: list[_Owed], size_bytes: int, answer: AppendedRecords | PenstockError
    ) -> None:
        if isinstance(answer, PenstockError):
            for each in owed:
                each.done(answer)
            return
        self.ends.note(*place, max(answer.offsets) + 1)
        for each, offset in zip(owed, answer.offsets, strict=True):
            each.done(Appended(offset, size_bytes, is_new=offset >= answer.appended_from))
