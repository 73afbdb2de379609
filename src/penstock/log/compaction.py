"""Compaction (``cleanup.policy=compact``): only the last record of every key is kept.

Only closed segments are cleaned, never the active one. :func:`plan` decides on the event loop whether a run is worthwhile;
:func:`run` reads the old files and writes new ones beside them, in a thread; the log then puts the new files in place,
lowest offsets first, so that a crash in between never leaves a tombstone applied to some segments only.

Invariants
- A record keeps its offset, and a batch its base offset, last offset, producer and sequence. There may be gaps.
- The order of records does not change. The last record of a key is never removed unless it is an expired tombstone.
- A tombstone (a key with a null value) stays for ``delete.retention.ms`` after it was first cleaned, so that a reader that
  started before it can still see it. The batch itself stores the date, as in Kafka: attribute bit 6 says that the base
  timestamp is that date, and the records' timestamp deltas count from it. So it survives restarts and is copied to replicas.
- Records without a key are removed. Control batches stay. The last batch of each active producer stays, without records if
  necessary, so that its sequence numbers can be read from the log again.
- A batch whose CRC does not match stops the run: rewriting it would give damage a valid checksum.

Memory: the map of keys is bounded by ``keys_max``. When it is full, the run cleans up to that point and returns it as
``cleaned_to_offset``; the next run continues there.

On disk: ``<base offset>.log.cleaned``, whole and synced when :func:`run` returns, worthless before.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from typing import Final, NamedTuple

from penstock.errors import PenstockError, Reason
from penstock.limits import (
    COMPACTION_KEYS_MAX,
    COMPACTION_READ_BYTES,
    DECOMPRESSED_RATIO_MAX,
    MESSAGE_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
)
from penstock.log.config import LogConfig
from penstock.log.index import RELATIVE_OFFSET_MAX
from penstock.log.names import CLEANED
from penstock.ports import Disk, File
from penstock.records.batch import (
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    Compression,
    crc_matches,
    read_header,
)
from penstock.records.builder import encode_varint, seal
from penstock.records.records import RecordSpan, open_records, read_spans
from penstock.types import NO_TIMESTAMP, Buffer

_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One closed segment: its file and what the log knows without opening it."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to clean. Immutable, so that another thread may use it."""

    segments: tuple[SegmentFile, ...]
    """All segments that may be cleaned, from the start of the log."""
    first_dirty_offset: int
    now_ms: int
    config: LogConfig
    producer_offsets: Mapping[int, int]
    keys_max: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """One new file that replaces some neighbouring segments. It may be empty, and has the base offset of the first one."""

    sources: tuple[SegmentFile, ...]
    target: SegmentFile


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a run did. Segments that it did not change do not appear."""

    replacements: tuple[Replacement, ...]
    cleaned_to_offset: int
    """The next run's ``first_dirty_offset``."""
    tombstones_due_ms: int | None
    """When the first of the remaining tombstones may be removed; None if there is none."""


def plan(
    segments: Sequence[SegmentFile],
    config: LogConfig,
    first_dirty_offset: int,
    now_ms: int,
    *,
    producer_offsets: Mapping[int, int],
    tombstones_due_ms: int | None = None,
    keys_max: int = COMPACTION_KEYS_MAX,
) -> CompactionPlan | None:
    """What to clean now; None if it is not worthwhile yet.

    ``segments`` are the closed ones, in order; ``producer_offsets`` is :meth:`ProducerStates.last_offsets`;
    ``tombstones_due_ms`` comes from the last result, so that tombstones are removed on time even if nothing new is written.
    """
    assert keys_max > 0
    min_lag_ms, max_lag_ms = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    cleanable = tuple(takewhile(lambda each: min_lag_ms <= 0 or each.max_timestamp <= now_ms - min_lag_ms, segments))
    if not cleanable:
        return None
    dirty = [segment for segment in cleanable if segment.next_offset > first_dirty_offset]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    total_bytes = sum(segment.size_bytes for segment in cleanable)
    pays = dirty_bytes > 0 and dirty_bytes >= total_bytes * config.min_cleanable_dirty_ratio
    is_overdue = bool(dirty) and max_lag_ms >= 0 and now_ms - dirty[0].max_timestamp > max_lag_ms
    if not (pays or is_overdue or (tombstones_due_ms is not None and tombstones_due_ms <= now_ms)):
        return None
    return CompactionPlan(cleanable, first_dirty_offset, now_ms, config, dict(producer_offsets), keys_max)


def run(disk: Disk, plan: CompactionPlan) -> CompactionResult:
    """Clean the segments; blocks. OSError, or CORRUPT_RECORDS if a batch is damaged: then no file of the run remains."""
    return _Run(disk, plan).run()


def read_batches(file: File, segment: SegmentFile) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a closed segment, in order, whole and with a correct CRC."""
    position = 0
    needed = 0
    while position < segment.size_bytes:
        left = segment.size_bytes - position
        asked = min(max(COMPACTION_READ_BYTES, needed), left)
        chunk = memoryview(file.pread(asked, position))
        if len(chunk) < asked:
            raise _damaged(segment, position + len(chunk))
        needed = 0
        start = 0
        while asked - start >= HEADER_BYTES:
            header = read_header(chunk, start)
            size = header.size_bytes
            if header.magic != MAGIC or not HEADER_BYTES <= size <= left - start:
                raise _damaged(segment, position + start)
            if size > asked - start:
                needed = size
                break
            batch = chunk[start : start + size]
            if not crc_matches(batch):
                raise _damaged(segment, position + start)
            yield header, batch
            start += size
        if start == 0 and needed <= asked:
            # Fewer bytes than a header are left: the next read could only bring the same.
            raise _damaged(segment, position)
        position += start


class _CleanBatch(NamedTuple):
    """What is left of one batch."""

    data: Buffer | None
    """None if the batch is removed."""
    max_timestamp: int = NO_TIMESTAMP
    due_ms: int | None = None
    """When its tombstones may be removed."""


@dataclass(slots=True)
class _Output:
    """One new segment file that is being written."""

    file: File
    path: str
    sources: list[SegmentFile] = field(default_factory=list)
    # Copies, not views: a small batch must not keep the large chunk in memory that it was read with.
    buffer: bytearray = field(default_factory=bytearray)
    size_bytes: int = 0
    max_timestamp: int = NO_TIMESTAMP
    changed: bool = False

    def add(self, data: Buffer, max_timestamp: int) -> None:
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.buffer += data
        self.size_bytes += len(data)
        if len(self.buffer) >= COMPACTION_READ_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.buffer:
            self.file.pwritev([self.buffer], self.size_bytes - len(self.buffer))
            self.buffer = bytearray()

    def has_room_for(self, segment: SegmentFile, segment_bytes: int) -> bool:
        return (
            self.size_bytes + segment.size_bytes <= segment_bytes
            and segment.next_offset - self.sources[0].base_offset <= RELATIVE_OFFSET_MAX
        )


class _Run:
    """One pass over the dirty part to find the last record of each key, one over all segments to copy what stays."""

    def __init__(self, disk: Disk, plan: CompactionPlan) -> None:
        self._disk = disk
        self._plan = plan
        self._last_offsets: dict[bytes, int] = {}
        self._mapped_to_offset = 0
        self._due_ms: int | None = None

    def run(self) -> CompactionResult:
        self._mapped_to_offset = self._map_keys()
        segments = [segment for segment in self._plan.segments if segment.base_offset < self._mapped_to_offset]
        outputs: list[_Output] = []
        finished: list[Replacement | None] = []
        try:
            for segment in segments:
                if not outputs or not outputs[-1].has_room_for(segment, self._plan.config.segment_bytes):
                    finished.extend(self._finish(output) for output in outputs[-1:])
                    outputs.append(self._create(segment))
                self._clean(segment, outputs[-1])
            finished.extend(self._finish(output) for output in outputs[-1:])
        except BaseException:
            for output in outputs:
                output.file.close()
                self._disk.remove(output.path)
            raise
        return CompactionResult(
            replacements=tuple(replacement for replacement in finished if replacement is not None),
            cleaned_to_offset=self._mapped_to_offset,
            tombstones_due_ms=self._due_ms,
        )

    def _map_keys(self) -> int:
        """Fill the map from the dirty part; returns the offset up to which it is complete."""
        plan = self._plan
        last_offsets = self._last_offsets
        for segment in plan.segments:
            if segment.next_offset <= plan.first_dirty_offset:
                continue
            with closing(self._disk.open(segment.path)) as file:
                for header, batch in read_batches(file, segment):
                    if header.next_offset <= plan.first_dirty_offset or header.is_control or not header.record_count:
                        continue
                    # A batch may exceed the bound by its own keys. Otherwise a map smaller than one batch would make no progress.
                    if len(last_offsets) >= plan.keys_max:
                        return header.base_offset
                    for _, _, _, _, offset_delta, key, _, _ in self._spans(batch, header)[1]:
                        if key is not None:
                            last_offsets[_digest(key)] = header.base_offset + offset_delta
        return plan.segments[-1].next_offset

    def _create(self, segment: SegmentFile) -> _Output:
        path = segment.path + CLEANED
        self._disk.remove(path)
        return _Output(self._disk.open(path, create=True), path)

    def _clean(self, segment: SegmentFile, output: _Output) -> None:
        """Copy what stays of one segment."""
        output.sources.append(segment)
        left_bytes = segment.size_bytes
        with closing(self._disk.open(segment.path)) as file:
            for header, batch in read_batches(file, segment):
                left_bytes -= len(batch)
                clean = self._clean_batch(header, batch)
                grown_bytes = len(clean.data) - len(batch) if clean.data is not None else 0
                if grown_bytes > 0 and output.size_bytes + len(batch) + grown_bytes + left_bytes > SEGMENT_BYTES_MAX:
                    # Wider timestamp deltas or another version of a codec can make a batch grow. If the segment would become
                    # too large, the batch stays as it is, and a later run with more room cleans it.
                    clean = clean._replace(data=batch)
                if clean.data is not None:
                    output.add(clean.data, clean.max_timestamp)
                if clean.data is not batch:
                    output.changed = True
                if clean.due_ms is not None and (self._due_ms is None or clean.due_ms < self._due_ms):
                    self._due_ms = clean.due_ms

    def _clean_batch(self, header: BatchHeader, batch: memoryview) -> _CleanBatch:
        if header.is_control:
            return _CleanBatch(batch, header.max_timestamp)
        data, spans = self._spans(batch, header)
        horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
        kept = self._kept(header, spans, tombstones_served=horizon_ms is not None and horizon_ms <= self._plan.now_ms)
        if not kept:
            return self._empty_batch(header, batch)
        has_tombstone = any(span[6] is None for span in kept)
        new_horizon_ms: int | None = None
        # After the mapped part a later record may still replace the tombstone: its retention time has not begun.
        if has_tombstone and horizon_ms is None and header.next_offset <= self._mapped_to_offset:
            horizon_ms = new_horizon_ms = self._plan.now_ms + self._plan.config.delete_retention_ms
        due_ms = horizon_ms if has_tombstone else None
        if len(kept) == header.record_count and new_horizon_ms is None:
            return _CleanBatch(batch, header.max_timestamp, due_ms)
        clean_header = header._replace(record_count=len(kept))
        if not header.is_log_append_time:
            latest = header.base_timestamp + max(span[2] for span in kept)
            clean_header = clean_header._replace(max_timestamp=_as_int64(latest))
        if new_horizon_ms is None:
            body = b"".join([data[span[0] : span[1]] for span in kept])
        else:
            body = _move_timestamps(data, kept, header.base_timestamp - new_horizon_ms)
            clean_header = clean_header._replace(
                base_timestamp=new_horizon_ms, attributes=header.attributes | DELETE_HORIZON_BIT
            )
        return _CleanBatch(seal(body, clean_header, header.compression), clean_header.max_timestamp, due_ms)

    def _kept(self, header: BatchHeader, spans: Iterator[RecordSpan], *, tombstones_served: bool) -> list[RecordSpan]:
        """The records of a batch that stay."""
        last_offsets = self._last_offsets
        base_offset = header.base_offset
        kept: list[RecordSpan] = []
        for span in spans:
            _, _, _, _, offset_delta, key, value, _ = span
            if key is None or last_offsets.get(_digest(key), -1) > base_offset + offset_delta:
                continue
            if value is None and tombstones_served:
                continue
            kept.append(span)
        return kept

    def _empty_batch(self, header: BatchHeader, batch: memoryview) -> _CleanBatch:
        """What stays of a batch that has no record left."""
        if header.producer_id < 0 or self._plan.producer_offsets.get(header.producer_id) != header.base_offset:
            return _CleanBatch(None)
        if header.record_count:
            # Without the codec's bits: there is nothing to decompress, and clients would fail on it.
            empty = seal(b"", header._replace(record_count=0), Compression.NONE)
            return _CleanBatch(empty, header.max_timestamp)
        return _CleanBatch(batch, header.max_timestamp)

    def _spans(self, batch: memoryview, header: BatchHeader) -> tuple[bytes, Iterator[RecordSpan]]:
        bytes_max = max(MESSAGE_BYTES_DEFAULT, len(batch)) * DECOMPRESSED_RATIO_MAX
        data = open_records(batch, header, bytes_max)
        return data, read_spans(data, header)

    def _finish(self, output: _Output) -> Replacement | None:
        """Make a new file durable; None if nothing was changed and it was removed."""
        if not output.changed and len(output.sources) == 1:
            output.file.close()
            self._disk.remove(output.path)
            return None
        output.flush()
        output.file.seal()
        output.file.sync()
        output.file.close()
        target = SegmentFile(
            path=output.path,
            base_offset=output.sources[0].base_offset,
            next_offset=output.sources[-1].next_offset,
            size_bytes=output.size_bytes,
            max_timestamp=output.max_timestamp,
        )
        return Replacement(tuple(output.sources), target)


def _digest(key: bytes) -> bytes:
    # A short key is its own digest. It is shorter than any real digest, so it cannot be confused with one.
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _move_timestamps(data: bytes, spans: Sequence[RecordSpan], shift_ms: int) -> bytes:
    """The same records with timestamp deltas that count from a base ``shift_ms`` earlier."""
    parts: list[bytes] = []
    for _, end, timestamp_delta, offset_delta_at, _, _, _, _ in spans:
        delta = encode_varint(_as_int64(timestamp_delta + shift_ms))
        rest = data[offset_delta_at:end]
        parts += (encode_varint(1 + len(delta) + len(rest)), b"\x00", delta, rest)
    return b"".join(parts)


def _as_int64(number: int) -> int:
    """The nearest number of 64 bits: a client may send timestamps whose sum has more, which must not stop the run."""
    return min(max(number, -(2**63)), 2**63 - 1)


def _damaged(segment: SegmentFile, position: int) -> PenstockError:
    return PenstockError(
        Reason.CORRUPT_RECORDS,
        f"{segment.path} is damaged at byte {position}; it is not compacted. Check it with `penstock log verify`",
    )
