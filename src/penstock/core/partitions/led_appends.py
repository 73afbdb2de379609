"""The appends of batches that a broker built, this one or another: a whole batch, or only those of its records that the log lacks.

A batch from another node was checked when it arrived (``gateways/peers/appends.py``).

A refused batch was not appended. LINK_LOST means that the batch was appended, but the leader changed before it was committed, so it is
unknown whether the new leader has it.

``append_once`` searches the leader's log to its end for marks: the values of one header, or for produce keys the digest of key and
tenant. The marks are remembered for each partition, so that many calls in a row read the log once. If they are too many, only those that
calls wait for are. A long log is read in pieces, driven by the clock, and all searches of a node share the size of a piece.
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
"""Marks remembered for one partition."""
_PARTITIONS_MAX: Final = 64
_PIECE_BYTES: Final = MIB
"""Searched in a turn: about ten milliseconds of work."""

_LEADER_CHANGED: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE})


class _Marks:
    """The marks of one header in a range of one log."""

    __slots__ = ("end", "header", "offsets", "start", "wanted")

    def __init__(self, header: str, start: int) -> None:
        self.header: Final = header
        self.wanted: frozenset[bytes] | None = None
        """Only these are remembered, because all of them would be too many."""
        self.start = start
        self.end = start
        self.offsets: dict[bytes, int] = {}
        """The last offset of each mark."""

    def note(self, mark: bytes, offset: int) -> None:
        """A record with this mark is at the offset."""
        if self.wanted is not None and mark not in self.wanted:
            return
        self.offsets[mark] = max(offset, self.offsets.get(mark, offset))


class _Call(NamedTuple):
    """One call of ``append_once`` or ``find``."""

    header: str
    marks: list[bytes]
    search_from: list[int]
    """For each mark."""
    records: list[Record]
    batch: bytearray | None
    """None if nothing is to be appended."""
    done: AppendedOnce


class LedAppends:
    """The appends to all partitions that this node leads. All calls are made on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[tuple[Partition, str], _Marks] = {}
        self._calls: dict[Partition, deque[_Call]] = {}
        self._left = _PIECE_BYTES
        """The bytes that may still be searched in this turn."""
        self._turn_ms = -1

    # A whole batch.

    def append(self, partition: Partition, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Append a batch, and pass its offset to ``done`` once it is acknowledged according to ``acks``. PenstockError if it is refused."""
        header, now_ms = read_header(batch), self._clock.now_ms()
        count = header.last_offset_delta + 1
        # Only the batches of sinks have a producer id.
        is_promised = header.producer_id != NO_PRODUCER_ID
        if acks is Acks.ALL and not (is_promised and partition.in_sync.has_all):
            partition.check_in_sync()
        if not is_promised:
            offset = partition.append(batch, now_ms, is_sound=True)
        else:
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
        marks = [mark for record in records if (mark := _mark(record, header)) is not None]
        if len(marks) < len(records):
            raise PenstockError(Reason.INVALID_RECORD, f"A record has no header {header}, which is needed to find it")
        if len(search_from) not in (1, len(records)):
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"There are {len(search_from)} offsets for {len(records)} records; send one, or one for each record",
            )
        if len(search_from) == 1:
            search_from *= len(records)
        self._calls.setdefault(partition, deque()).append(_Call(header, marks, search_from, records, batch, done))
        now_ms = self._clock.monotonic_ms()
        if now_ms != self._turn_ms:
            self._turn_ms, self._left = now_ms, _PIECE_BYTES
        self._work(partition)

    def find(
        self, partition: Partition, header: str, marks: list[bytes], search_from: list[int], done: AppendedOnce
    ) -> None:
        """Search for marks later, and append nothing: the offset of a mark that is not there is -1."""
        self._calls.setdefault(partition, deque()).append(_Call(header, marks, search_from, [], None, done))

    def resign(self, partition: Partition) -> None:
        """Another node leads the partition now: answer all waiting calls."""
        calls = self._calls.pop(partition, deque[_Call]())
        while calls:
            # Taken out first: an answer may come back to this partition.
            calls.popleft().done(PenstockError(Reason.NOT_LEADER_OR_FOLLOWER))
        for key in [key for key in self._marks if key[0] is partition]:
            del self._marks[key]

    def next_deadline_ms(self) -> int | None:
        """Now, while a log is being searched."""
        return self._clock.monotonic_ms() if self._calls else None

    def tick(self, now_ms: int) -> None:
        """Search the next piece, of one log after the other."""
        self._turn_ms, self._left = now_ms, _PIECE_BYTES
        for partition in list(self._calls):
            if self._left <= 0:
                break
            self._work(partition)
            if partition in self._calls:
                self._calls[partition] = self._calls.pop(partition)

    def _work(self, partition: Partition) -> None:
        """Do what can be done now, in the order of the calls."""
        calls = self._calls.get(partition)
        header = calls[0].header if calls else ""
        while calls:
            call = calls[0]
            header = call.header
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
        marks = self._marks.get((partition, header))
        if marks is not None and marks.wanted is not None:
            del self._marks[partition, header]

    def _search(self, partition: Partition, call: _Call) -> _Marks | None:
        """The marks from the offset that the call needs to the end of the log; None while there is more to read."""
        log = partition.log
        # Records appended in this turn are included.
        log.write_pending()
        start = _start_of(partition, call)
        key = partition, call.header
        marks = self._marks.pop(key, None)
        if (
            marks is None
            or start < marks.start
            or marks.end > log.next_offset
            or not (marks.wanted is None or marks.wanted.issuperset(call.marks))
        ):
            marks = _Marks(call.header, min(_start_of(partition, each) for each in self._waiting(partition, call)))
        # Least recently used first.
        self._marks[key] = marks
        while len(self._marks) > _PARTITIONS_MAX:
            del self._marks[next(iter(self._marks))]
        marks.end = max(marks.end, log.start_offset)
        while marks.end < log.next_offset:
            if self._left <= 0:
                return None
            try:
                data, next_offset = log.read(marks.end, self._left, log.next_offset)
            except PenstockError as error:
                if error.reason is not Reason.CORRUPT_RECORDS:
                    raise
                # Skip a damaged batch: no reader can have seen it.
                marks.end += 1
                continue
            self._note_all(partition, marks, data)
            if marks.wanted is None and len(marks.offsets) > MARKS_MAX:
                marks.wanted = frozenset(mark for each in self._waiting(partition, call) for mark in each.marks)
                marks.offsets = {mark: marks.offsets[mark] for mark in marks.wanted if mark in marks.offsets}
            self._left -= len(data)
            marks.end = max(next_offset, marks.end + 1)
        return marks

    def _waiting(self, partition: Partition, call: _Call) -> list[_Call]:
        """The calls that can share a search with this one."""
        return [each for each in self._calls.get(partition, (call,)) if each.header == call.header]

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
        places = [
            offset if (offset := marks.offsets.get(mark, -1)) >= _within(end, noted, call.header) else -1
            for mark, noted in zip(call.marks, call.search_from, strict=True)
        ]
        lacking = [record for record, offset in zip(call.records, places, strict=False) if offset < 0]
        if lacking and call.batch is not None:
            if call.header == KEY_HEADER or not partition.in_sync.has_all:
                partition.check_in_sync()
            batch = call.batch
            if len(lacking) < len(call.records):
                batch = build_batch(lacking, compression=read_header(call.batch).compression)
            offset = appended_from = partition.append(batch, self._clock.now_ms(), is_sound=True)
            for at, mark in enumerate(call.marks):
                if places[at] < 0:
                    places[at] = offset
                    marks.note(mark, offset)
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


def _start_of(partition: Partition, call: _Call) -> int:
    """Where the search of a call begins."""
    end = partition.log.next_offset
    return max(min(_within(end, noted, call.header) for noted in call.search_from), partition.log.start_offset)


def _within(end: int, offset: int, header: str) -> int:
    """An offset after the end belongs to a deleted topic of the same name: then the whole log is searched. Keys are those of one topic."""
    return offset if offset <= end or header == KEY_HEADER else 0


def _mark(record: Record, header: str) -> bytes | None:
    if header == KEY_HEADER:
        # Tenants may use the same keys.
        return digest_in(record.headers)
    return next((value for name, value in record.headers if name == header), None)
