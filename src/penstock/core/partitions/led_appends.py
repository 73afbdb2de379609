"""The appends of batches that a broker built, this one or another: a whole batch, or only those of its records that the log lacks.

A batch from another node was checked when it arrived (``gateways/peers/appends.py``).

A refused batch was not appended. LINK_LOST means that the batch was appended, but the leader changed before it was committed, so it is
unknown whether the new leader has it.

``append_once`` searches the leader's log to its end for marks: the values of one header, or for produce keys the digest of key and
tenant. The marks are remembered for each partition, so that many calls in a row read the log once. A long log is read in pieces, driven
by the clock.
"""

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from penstock.core.idempotency.stored import KEY_HEADER, digest_in
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.peers import AppendedOnce, AppendedRecords, Produced
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, MIB
from penstock.ports import Clock
from penstock.records.batch import CONTROL_BIT, batches_in, read_header
from penstock.records.builder import build_batch
from penstock.records.records import Record, read_records
from penstock.types import NO_PRODUCER_ID, Acks, Buffer

MARKS_MAX: Final = 100_000
"""Marks remembered for one partition; if there are more, the log is read again."""
_PARTITIONS_MAX: Final = 64
_PIECE_BYTES: Final = MIB
"""Searched at a time: about ten milliseconds of work."""

_LEADER_CHANGED: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE})


class _Marks:
    """The marks of one header in a range of one log."""

    __slots__ = ("end", "header", "offsets", "start")

    def __init__(self, header: str, start: int) -> None:
        self.header: Final = header
        self.start = start
        self.end = start
        self.offsets: dict[bytes, int] = {}
        """The last offset of each mark."""

    def note(self, mark: bytes, offset: int) -> None:
        """A record with this mark is at the offset."""
        self.offsets[mark] = max(offset, self.offsets.get(mark, offset))


class _Call(NamedTuple):
    """One call of ``append_once``."""

    batch: bytearray
    header: str
    search_from: list[int]
    """For each record."""
    records: list[Record]
    done: AppendedOnce


class LedAppends:
    """The appends to all partitions that this node leads. All calls are made on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[tuple[Partition, str], _Marks] = {}
        self._calls: dict[Partition, deque[_Call]] = {}

    # A whole batch.

    def append(self, partition: Partition, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Append a batch, and pass its offset to ``done`` once it is acknowledged according to ``acks``. PenstockError if it is refused."""
        if acks is Acks.ALL:
            partition.check_in_sync()
        header, now_ms = read_header(batch), self._clock.now_ms()
        count = header.last_offset_delta + 1
        if header.producer_id == NO_PRODUCER_ID:
            offset = partition.append(batch, now_ms, is_sound=True)
        else:
            # Only the batches of sinks have a producer id.
            offset = partition.append_promised(batch, header, now_ms)
        if acks is Acks.NONE:
            partition.acknowledged_offset = max(partition.acknowledged_offset, offset + count)
            done(offset)
            return
        wait = partition.when_committed if acks is Acks.ALL else partition.when_written
        wait(offset + count, partial(_settle, offset, done))

    # The missing records of a batch.

    def append_once(
        self, partition: Partition, batch: bytearray, header: str, search_from: list[int], done: AppendedOnce
    ) -> None:
        """Append the missing records, and pass all offsets to ``done`` once they are committed. PenstockError if the batch is refused."""
        records = list(read_records(batch, partition.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX))
        if any(_mark(record, header) is None for record in records):
            raise PenstockError(Reason.INVALID_RECORD, f"A record has no header {header}, which is needed to find it")
        if len(search_from) not in (1, len(records)):
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"There are {len(search_from)} offsets for {len(records)} records; send one, or one for each record",
            )
        if len(search_from) == 1:
            search_from *= len(records)
        self._calls.setdefault(partition, deque()).append(_Call(batch, header, search_from, records, done))
        self._work(partition)

    def resign(self, partition: Partition) -> None:
        """Another node leads the partition now: answer all waiting calls."""
        for call in self._calls.pop(partition, ()):
            call.done(PenstockError(Reason.NOT_LEADER_OR_FOLLOWER))
        for key in [key for key in self._marks if key[0] is partition]:
            del self._marks[key]

    def next_deadline_ms(self) -> int | None:
        """Now, while a log is being searched."""
        return self._clock.monotonic_ms() if self._calls else None

    def tick(self, _: int) -> None:
        """Search the next piece of each log."""
        for partition in list(self._calls):
            self._work(partition)

    def _work(self, partition: Partition) -> None:
        """Do what can be done now, in the order of the calls."""
        calls = self._calls.get(partition)
        while calls:
            call = calls[0]
            try:
                marks = self._search(partition, call)
                if marks is None:
                    return
                calls.popleft()
                self._append_lacking(partition, call, marks)
            except PenstockError as error:
                if calls and calls[0] is call:
                    calls.popleft()
                call.done(error)
        self._calls.pop(partition, None)

    def _search(self, partition: Partition, call: _Call) -> _Marks | None:
        """The marks from the offset that the call needs to the end of the log; None while there is more to read."""
        log = partition.log
        # Records appended in this turn are included.
        log.write_pending()
        start = max(min(_within(log.next_offset, noted) for noted in call.search_from), log.start_offset)
        key = partition, call.header
        marks = self._marks.pop(key, None)
        if marks is None or start < marks.start or marks.end > log.next_offset or len(marks.offsets) > MARKS_MAX:
            marks = _Marks(call.header, start)
        # Least recently used first.
        self._marks[key] = marks
        while len(self._marks) > _PARTITIONS_MAX:
            del self._marks[next(iter(self._marks))]
        left = _PIECE_BYTES
        marks.end = max(marks.end, log.start_offset)
        while marks.end < log.next_offset:
            if left <= 0:
                return None
            try:
                data, next_offset = log.read(marks.end, left, log.next_offset)
            except PenstockError as error:
                if error.reason is not Reason.CORRUPT_RECORDS:
                    raise
                # Skip a damaged batch: no reader can have seen it.
                marks.end += 1
                continue
            self._note_all(partition, marks, data)
            left -= len(data)
            marks.end = max(next_offset, marks.end + 1)
        return marks

    @staticmethod
    def _note_all(partition: Partition, marks: _Marks, data: Buffer) -> None:
        bytes_max = partition.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        for header, batch in batches_in(data):
            if not header.attributes & CONTROL_BIT:
                with suppress(PenstockError):
                    for record in read_records(batch, bytes_max):
                        mark = _mark(record, marks.header)
                        if mark is not None:
                            marks.note(mark, record.offset)

    def _append_lacking(self, partition: Partition, call: _Call, marks: _Marks) -> None:
        end = appended_from = partition.log.next_offset
        places: list[int] = []
        lacking: list[Record] = []
        for record, noted in zip(call.records, call.search_from, strict=True):
            offset = marks.offsets.get(_mark(record, call.header) or b"", -1)
            if offset < _within(end, noted):
                offset = -1
                lacking.append(record)
            places.append(offset)
        if lacking:
            partition.check_in_sync()
            batch = call.batch
            if len(lacking) < len(call.records):
                batch = build_batch(lacking, compression=read_header(call.batch).compression)
            offset = appended_from = partition.append(batch, self._clock.now_ms(), is_sound=True)
            for at, record in enumerate(call.records):
                if places[at] < 0:
                    places[at] = offset
                    marks.note(_mark(record, call.header) or b"", offset)
                    offset += 1
            marks.end = partition.log.next_offset
        end = max(places, default=-1) + 1
        found = AppendedRecords(places, appended_from)
        partition.when_committed(end, partial(self._settle_once, partition, found, call.done))

    def _settle_once(
        self, partition: Partition, found: AppendedRecords, done: AppendedOnce, reason: Reason | None
    ) -> None:
        if reason is None:
            done(found)
            return
        # It is unknown whether the records are in the log, so it must be read again.
        for key in [key for key in self._marks if key[0] is partition]:
            del self._marks[key]
        done(PenstockError(Reason.LINK_LOST if reason in _LEADER_CHANGED else reason))


def _settle(offset: int, done: Produced, reason: Reason | None) -> None:
    if reason is None:
        done(offset)
    else:
        done(PenstockError(Reason.LINK_LOST if reason in _LEADER_CHANGED else reason))


def _within(end: int, offset: int) -> int:
    """An offset after the end belongs to a deleted topic of the same name: then the whole log is searched."""
    return offset if offset <= end else 0


def _mark(record: Record, header: str) -> bytes | None:
    if header == KEY_HEADER:
        # Tenants may use the same keys.
        return digest_in(record.headers)
    return next((value for name, value in record.headers if name == header), None)
