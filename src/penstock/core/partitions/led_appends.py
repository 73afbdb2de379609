"""What a partition's leader does for other nodes, and for its own: append a batch, or those records of one that it lacks.

A broker built each batch. One that came from another node was checked when it arrived (``gateways/peers/appends.py``).

What is refused was not appended. What was appended and could not be kept to the end, because somebody else leads by now, is LINK_LOST:
nobody knows whether the new leader has it.

``append_once`` looks for marks (the values of one header, or for produce keys the digest of key and tenant) in the leader's own log, up to its end. What it has seen is remembered
for each partition, so that many calls in a row read the log once; a long log is gone through in pieces, driven by the clock.
"""

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

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
"""Remembered of one partition; beyond that the log is read again."""
_PARTITIONS_MAX: Final = 64
_PIECE_BYTES: Final = MIB
"""Of the log, looked through at a time: some ten milliseconds of work."""

_MOVED_ON: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE})


class _Marks:
    """The marks of one header in a stretch of one log."""

    __slots__ = ("end", "header", "offsets", "start")

    def __init__(self, header: str, start: int) -> None:
        self.header: Final = header
        self.start = start
        self.end = start
        self.offsets: dict[bytes, int] = {}
        """The last place of each."""

    def note(self, mark: bytes, offset: int) -> None:
        """It is there."""
        self.offsets[mark] = max(offset, self.offsets.get(mark, offset))


class _Call:
    """One append that shall not happen twice."""

    __slots__ = ("batch", "done", "header", "records", "search_from")

    def __init__(
        self, batch: bytearray, header: str, search_from: list[int], records: list[Record], done: AppendedOnce
    ) -> None:
        self.batch: Final = batch
        self.header: Final = header
        self.search_from: Final = search_from
        """Of each record."""
        self.records: Final = records
        self.done: Final = done


class LedAppends:
    """For all partitions that this node leads. All calls are made on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[tuple[Partition, str], _Marks] = {}
        self._calls: dict[Partition, deque[_Call]] = {}

    # -- a batch as it is

    def append(self, partition: Partition, batch: bytearray, acks: Acks, done: Produced) -> None:
        """Append it; ``done`` is told its offset once it counts as ``acks`` says. PenstockError when it is refused."""
        if acks is Acks.ALL:
            partition.check_in_sync()
        header, now_ms = read_header(batch), self._clock.now_ms()
        count = header.last_offset_delta + 1
        if header.producer_id == NO_PRODUCER_ID:
            offset = partition.append(batch, now_ms, is_sound=True)
        else:
            # Only sinks have a producer.
            offset = partition.append_promised(batch, header, now_ms)
        if acks is Acks.NONE:
            partition.acknowledged_offset = max(partition.acknowledged_offset, offset + count)
            done(offset)
            return
        wait = partition.when_committed if acks is Acks.ALL else partition.when_written
        wait(offset + count, partial(_settle, offset, done))

    # -- what is lacking of a batch

    def append_once(
        self, partition: Partition, batch: bytearray, header: str, search_from: list[int], done: AppendedOnce
    ) -> None:
        """Append what is not there, and tell ``done`` where each record is, once all are committed. PenstockError when it is refused."""
        records = list(read_records(batch, partition.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX))
        if any(_mark(record, header) is None for record in records):
            raise PenstockError(Reason.INVALID_RECORD, f"a record has no header {header}, by which it would be found")
        if len(search_from) not in (1, len(records)):
            raise PenstockError(
                Reason.INVALID_REQUEST, f"{len(search_from)} offsets are noted for {len(records)} records"
            )
        if len(search_from) == 1:
            search_from *= len(records)
        self._calls.setdefault(partition, deque()).append(_Call(batch, header, search_from, records, done))
        self._work(partition)

    def resign(self, partition: Partition) -> None:
        """Somebody else leads it: whoever waits is told."""
        for call in self._calls.pop(partition, ()):
            call.done(PenstockError(Reason.NOT_LEADER_OR_FOLLOWER))
        for key in [key for key in self._marks if key[0] is partition]:
            del self._marks[key]

    def next_deadline_ms(self) -> int | None:
        """At once, while logs are looked through."""
        return self._clock.monotonic_ms() if self._calls else None

    def tick(self, _: int) -> None:
        """Look through the next piece of each."""
        for partition in list(self._calls):
            self._work(partition)

    def _work(self, partition: Partition) -> None:
        """Do what can be done now, in the order in which it was asked for."""
        calls = self._calls.get(partition)
        while calls:
            call = calls[0]
            try:
                marks = self._looked_through(partition, call)
                if marks is None:
                    return
                calls.popleft()
                self._append_lacking(partition, call, marks)
            except PenstockError as error:
                if calls and calls[0] is call:
                    calls.popleft()
                call.done(error)
        self._calls.pop(partition, None)

    def _looked_through(self, partition: Partition, call: _Call) -> _Marks | None:
        """The marks from where the call wants them to the end of the log; None while there is more to read."""
        log = partition.log
        # What was appended in this turn is looked at too.
        log.write_pending()
        start = max(min(_within(log.next_offset, noted) for noted in call.search_from), log.start_offset)
        key = partition, call.header
        marks = self._marks.pop(key, None)
        if marks is None or start < marks.start or marks.end > log.next_offset or len(marks.offsets) > MARKS_MAX:
            marks = _Marks(call.header, start)
        # The order is that of use.
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
                # Nobody can read it, so nobody can have seen it either.
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
        # It may be in the log or not: what is there is read again.
        for key in [key for key in self._marks if key[0] is partition]:
            del self._marks[key]
        done(PenstockError(Reason.LINK_LOST if reason in _MOVED_ON else reason))


def _settle(offset: int, done: Produced, reason: Reason | None) -> None:
    if reason is None:
        done(offset)
    else:
        done(PenstockError(Reason.LINK_LOST if reason in _MOVED_ON else reason))


def _within(end: int, offset: int) -> int:
    """An offset behind the end is that of another topic, which had this name: then all is searched."""
    return offset if offset <= end else 0


def _mark(record: Record, header: str) -> bytes | None:
    if header == KEY_HEADER:
        # The same key of another tenant is another key.
        return digest_in(record.headers)
    return next((value for name, value in record.headers if name == header), None)
