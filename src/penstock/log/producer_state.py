"""The state of the idempotent producers of one partition, so that a batch sent twice is stored once.

For each producer id: its epoch, its last sequence number, and the offsets of its last five batches. Five, because a client
has at most five batches in flight; a repeated batch is answered with the offset of its first copy.

Invariant: an entry is a tuple and is never changed, only replaced; :meth:`ProducerStates.update` returns the entry it
replaced, and :meth:`ProducerStates.undo` restores exactly that if the append could not be written.

On disk (``<offset>.snapshot``, the state before that offset), big-endian::

    format 2 bytes | CRC-32C of the body 4 | length of the body 4 | body
    body: number of producers 4, then for each, longest idle first:
          producer id 8 | epoch 2 | last sequence 4 | last active 8 | batches 1 | (first sequence 4, last sequence 4, base offset 8)*

A snapshot only saves time: the state can always be rebuilt from the batch headers in the log.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import PenstockError, Reason
from penstock.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCER_IDS_PER_PARTITION_MAX
from penstock.log.checkpoint import NO_PRODUCERS, SNAPSHOT_UNKNOWN
from penstock.records.batch import CONTROL_BIT, NO_SEQUENCE, BatchHeader
from penstock.types import Buffer

SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequence numbers run from 0 to 2^31 - 1 and then start again at 0."""
EXPIRATION_MS_DEFAULT: Final = 24 * 60 * 60 * 1000
"""As Kafka's producer.id.expiration.ms."""

_FORMAT: Final = 1
_PREFIX: Final = struct.Struct(">HII")
_COUNT: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhiqB")
_BATCH: Final = struct.Struct(">iiq")
_KEPT_BEFORE_ADDING: Final = PRODUCER_BATCHES_REMEMBERED - 1

assert _KEPT_BEFORE_ADDING > 0

BatchPlace = tuple[int, int, int]
"""First sequence, last sequence, base offset."""

ProducerEntry = tuple[int, int, int, tuple[BatchPlace, ...]]
"""Epoch, last sequence, last active (ms), the last batches with the oldest first. A plain tuple: two are made per append."""


class ActiveProducer(NamedTuple):
    """One producer, for administrators."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_entries", "_producers_max", "snapshot_offset")

    def __init__(self, producers_max: int = PRODUCER_IDS_PER_PARTITION_MAX) -> None:
        assert producers_max > 0
        self._producers_max = producers_max
        # In the order of their last append, so the first has been idle longest.
        self._entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        self.snapshot_offset = SNAPSHOT_UNKNOWN
        """The offset of a snapshot with this state; SNAPSHOT_UNKNOWN if the state has changed since."""

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def highest_id(self) -> int:
        """The highest producer id that is remembered; -1 when there is none."""
        return max(self._entries, default=-1)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """The entry of a producer."""
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> int | None:
        """None if the batch is the producer's next one; its base offset if it is a repeated one; otherwise it is refused.

        An unknown producer may start with any sequence: its state may have expired while it was idle. A known one with a newer
        epoch starts at 0. A batch older than the remembered ones is refused as out of order, as in Kafka: if it were called a
        duplicate, clients would report it as stored, which is not certain any more.
        """
        first = header.base_sequence
        if first < 0:
            raise PenstockError(
                Reason.INVALID_RECORD,
                f"Producer {header.producer_id} sent a batch without a sequence number; use sequence numbers",
            )
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        epoch, last_sequence, _, batches = entry
        batch_epoch = header.producer_epoch
        if batch_epoch == epoch:
            if first == (last_sequence + 1) & SEQUENCE_MASK:
                return None
            last = header.last_sequence
            for known_first, known_last, base_offset in batches:
                if known_first == first and known_last == last:
                    return base_offset
            raise PenstockError(
                Reason.OUT_OF_ORDER_SEQUENCE,
                f"Producer {header.producer_id} sent sequence {first} after {last_sequence}; send again from"
                f" {(last_sequence + 1) & SEQUENCE_MASK}",
            )
        if batch_epoch < epoch:
            raise PenstockError(
                Reason.INVALID_PRODUCER_EPOCH,
                f"Producer {header.producer_id} now has epoch {epoch}, but the batch has {batch_epoch}; another instance has taken over: stop, or request a new epoch",
            )
        if first != 0:
            raise PenstockError(
                Reason.OUT_OF_ORDER_SEQUENCE,
                f"Producer {header.producer_id} started epoch {batch_epoch} at sequence {first}; a new epoch starts at 0",
            )
        return None

    def update(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> ProducerEntry | None:
        """Remember an appended batch; returns what :meth:`undo` needs. Undo several in reverse order.

        ``timestamp_ms`` is when the producer was last active, by this node's clock. A client's timestamps may be years old,
        so that an active producer would expire immediately.
        """
        self.snapshot_offset = SNAPSHOT_UNKNOWN
        producer_id = header.producer_id
        entries = self._entries
        previous = entries.get(producer_id)
        epoch = header.producer_epoch
        if header.attributes & CONTROL_BIT or header.base_sequence < 0:
            # Markers have no sequence: they only change the epoch, and a new epoch starts at 0.
            if previous is not None and previous[0] == epoch:
                entries[producer_id] = (epoch, previous[1], timestamp_ms, previous[3])
            else:
                entries[producer_id] = (epoch, NO_SEQUENCE, timestamp_ms, ())
        else:
            first = header.base_sequence
            last = (first + header.last_offset_delta) & SEQUENCE_MASK
            if previous is not None and previous[0] == epoch:
                batches = (*previous[3][-_KEPT_BEFORE_ADDING:], (first, last, base_offset))
                entries[producer_id] = (epoch, last, timestamp_ms, batches)
            else:
                entries[producer_id] = (epoch, last, timestamp_ms, ((first, last, base_offset),))
        if previous is None:
            while len(entries) > self._producers_max:
                entries.popitem(last=False)
        else:
            entries.move_to_end(producer_id)
        return previous

    def undo(self, producer_id: int, previous: ProducerEntry | None) -> None:
        """Undo the latest update of this producer; ``previous`` is what the update returned.

        A producer that was unknown before stays known, and must start with the same sequence again (:meth:`expect`).
        """
        if previous is not None:
            self._entries[producer_id] = previous
            return
        entry = self._entries.get(producer_id)
        if entry is not None:
            epoch, _, timestamp_ms, batches = entry
            self._entries[producer_id] = _start_at(epoch, batches[0][0] if batches else 0, timestamp_ms)

    def expect(self, header: BatchHeader, timestamp_ms: int) -> bool:
        """Let an unknown producer start with this batch only, which is refused for now; returns whether that is new.

        Otherwise it could start with any sequence, and the batches that it sent after the refused one would be accepted before
        that one is sent again. No other producer is forgotten for it.
        """
        if header.producer_id in self._entries or len(self._entries) >= self._producers_max:
            return False
        self._entries[header.producer_id] = _start_at(header.producer_epoch, header.base_sequence, timestamp_ms)
        self.snapshot_offset = SNAPSHOT_UNKNOWN
        return True

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS_DEFAULT) -> int:
        """Forget producers idle for longer than ``expiration_ms``; returns how many."""
        idle_since = now_ms - expiration_ms
        gone = [producer_id for producer_id, entry in self._entries.items() if entry[2] < idle_since]
        for producer_id in gone:
            del self._entries[producer_id]
            self.snapshot_offset = SNAPSHOT_UNKNOWN
        return len(gone)

    def active(self) -> Iterator[ActiveProducer]:
        """Every producer, by id."""
        for producer_id, (epoch, last_sequence, timestamp_ms, _) in sorted(self._entries.items()):
            yield ActiveProducer(producer_id, epoch, last_sequence, timestamp_ms)

    def last_offsets(self) -> dict[int, int]:
        """For each producer the base offset of its last batch, which compaction must keep."""
        return {producer_id: entry[3][-1][2] for producer_id, entry in self._entries.items() if entry[3]}

    def take_snapshot(self, offset: int) -> bytes | None:
        """The content of a snapshot at ``offset``, for the caller to write; None if none is needed."""
        if self.snapshot_offset != SNAPSHOT_UNKNOWN:
            return None
        self.snapshot_offset = offset if self._entries else NO_PRODUCERS
        return self.encode() if self._entries else None

    def encode(self) -> bytes:
        """The snapshot."""
        parts = [_COUNT.pack(len(self._entries))]
        for producer_id, (epoch, last_sequence, timestamp_ms, batches) in self._entries.items():
            parts.append(_PRODUCER.pack(producer_id, epoch, last_sequence, timestamp_ms, len(batches)))
            parts.extend([_BATCH.pack(*batch) for batch in batches])
        body = b"".join(parts)
        return _PREFIX.pack(_FORMAT, crc32c(body), len(body)) + body

    @classmethod
    def decode(cls, data: Buffer, producers_max: int = PRODUCER_IDS_PER_PARTITION_MAX) -> "ProducerStates":
        """The state in a snapshot; ValueError if it is damaged: then rebuild the state from the log."""
        view = memoryview(data)
        if len(view) < _PREFIX.size:
            raise ValueError(f"The producer snapshot has only {len(view)} bytes")
        version, crc, length = _PREFIX.unpack_from(view)
        if version != _FORMAT:
            raise ValueError(f"The producer snapshot has format {version}; this version reads {_FORMAT}")
        body = view[_PREFIX.size :]
        if len(body) != length:
            raise ValueError(f"The producer snapshot declares {length} bytes, but has {len(body)}")
        if crc32c(body) != crc:
            raise ValueError("The checksum of the producer snapshot does not match")
        states = cls(producers_max)
        try:
            states._decode_body(body)
        except struct.error as error:
            raise ValueError(f"The producer snapshot ends early: {error}") from None
        return states

    def _decode_body(self, body: memoryview) -> None:
        (count,) = _COUNT.unpack_from(body)
        position = _COUNT.size
        for _ in range(count):
            producer_id, epoch, last_sequence, timestamp_ms, batch_count = _PRODUCER.unpack_from(body, position)
            position += _PRODUCER.size
            batches: list[BatchPlace] = []
            for _ in range(batch_count):
                batches.append(_BATCH.unpack_from(body, position))
                position += _BATCH.size
            self._entries[producer_id] = (
                epoch,
                last_sequence,
                timestamp_ms,
                tuple(batches[-PRODUCER_BATCHES_REMEMBERED:]),
            )
            if len(self._entries) > self._producers_max:
                self._entries.popitem(last=False)
        if position != len(body):
            raise ValueError(f"The producer snapshot has {len(body) - position} extra bytes")


def _start_at(epoch: int, first_sequence: int, timestamp_ms: int) -> ProducerEntry:
    """The entry of a producer without batches that must start with this sequence."""
    return epoch, first_sequence - 1, timestamp_ms, ()
