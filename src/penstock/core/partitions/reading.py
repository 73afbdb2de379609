"""Reading single records, for the gateways that return decoded records: from an offset, or following a topic live.

Only committed records are visible. For each partition that is followed, one read of its log is kept in memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.core.partitions.replica import Replica
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, KIB
from penstock.records.batch import CONTROL_BIT, batches_in
from penstock.records.records import Record, read_records

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_READ_BYTES: Final = 256 * KIB
_RECORD_OVERHEAD_BYTES: Final = 32
"""What a record counts for in addition to its key and value, so that the number of empty records is limited too."""
_PORTION_RECORDS: Final = 256
"""How many records are taken from one partition before the next."""


def read_from(partition: Replica, offset: int, max_records: int, max_bytes: int) -> list[Record]:
    """Records from ``offset`` on: at most ``max_records``, and about ``max_bytes`` but at least one. Empty at the end.

    OFFSET_OUT_OF_RANGE before the first record and after the end. A batch that cannot be decoded raises an error only if it is the
    first one; otherwise the records before it are returned.
    """
    found: list[Record] = []
    left = max_bytes
    try:
        while len(found) < max_records:
            data, next_offset = partition.read(offset, min(max(left, 1), _READ_BYTES))
            if not data:
                break
            for record in _open(partition, data, offset):
                found.append(record)
                left -= record_bytes(record)
                if len(found) == max_records or left <= 0:
                    return found
            offset = next_offset
    except PenstockError:
        if not found:
            raise
    return found


def copied_here(broker: "Broker", topic: str, index: int, from_offset: int = 0) -> Replica:
    """A copy on this node with all committed records from an offset on; LEADER_NOT_AVAILABLE while they are being copied."""
    found = broker.observe(topic, index, from_offset)
    if not found.is_caught_up:
        raise PenstockError(
            Reason.LEADER_NOT_AVAILABLE,
            f"The records of {topic}/{index} are being copied to this node; try again in a moment",
        )
    return found


def record_bytes(record: Record) -> int:
    """The approximate size of a record in a response."""
    return (
        _RECORD_OVERHEAD_BYTES
        + len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name) + len(value or b"") for name, value in record.headers)
    )


def _open(partition: Replica, data: bytes | memoryview, offset: int) -> Iterator[Record]:
    """The records of a read from ``offset`` on, without control records. The first batch may begin before ``offset``."""
    bytes_max = partition.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX
    for header, batch in batches_in(data):
        if not header.attributes & CONTROL_BIT:
            for record in read_records(batch, bytes_max):
                if record.offset >= offset:
                    yield record


class _Position:
    """The position of a tail in one partition."""

    __slots__ = ("_read_to", "_records", "_tail", "next_offset", "partition", "queued")

    def __init__(self, tail: "Tail", partition: Replica, offset: int) -> None:
        self._tail = tail
        self._records: Iterator[Record] = iter(())
        self._read_to = offset
        self.partition: Final = partition
        self.next_offset = offset
        self.queued = False

    def wake(self) -> None:
        """The high watermark moved, or the partition is gone."""
        self._tail.woken(self)

    def next(self) -> Record | None:
        """The next record; None at the end. PenstockError at a record that cannot be decoded, and again at each later call."""
        while True:
            try:
                record = next(self._records, None)
            except PenstockError:
                self._read_to = self.next_offset
                raise
            if record is not None:
                self.next_offset = record.offset + 1
                return record
            # After what was read, even if it had only control batches or was compacted away.
            self.next_offset = max(self.next_offset, self._read_to)
            partition = self.partition
            # Retention may have overtaken a slow reader: it continues with the oldest record.
            offset = max(self.next_offset, partition.log.start_offset)
            if offset >= partition.high_watermark:
                return None
            try:
                data, self._read_to = partition.read(offset, _READ_BYTES)
            except PenstockError as error:
                if error.reason is not Reason.OFFSET_OUT_OF_RANGE:
                    raise
                return None
            self._records = _open(partition, data, offset)


class Tail:
    """Follows partitions live. ``take`` returns the records that are there; if there are none, ``wake`` is called once there are more.

    ``wake`` is called while the log is being written, so it should only schedule a look (``EndOfTurn.look``). Deleted partitions
    are added to ``gone``.
    """

    def __init__(self, positions: Iterable[tuple[Replica, int]], wake: Callable[[], None]) -> None:
        self._places: dict[Replica, _Position] = {}
        self._ready: deque[_Position] = deque()
        self._wake = wake
        self._armed = False
        self.gone: Final[list[Replica]] = []
        for partition, offset in positions:
            self.add(partition, offset)

    def add(self, partition: Replica, offset: int) -> None:
        """Follow one more partition, or continue at another offset in one."""
        self.remove(partition)
        place = self._places[partition] = _Position(self, partition, offset)
        partition.watch(place.wake)
        self.woken(place)

    def remove(self, partition: Replica) -> None:
        """Stop following a partition. Does nothing if it is not followed."""
        place = self._places.pop(partition, None)
        if place is not None:
            partition.unwatch(place.wake)
            if place.queued:
                self._ready.remove(place)

    def close(self) -> None:
        """Stop following all partitions."""
        for partition in list(self._places):
            self.remove(partition)

    def next_offset(self, partition: Replica) -> int:
        """The offset of the next record of a followed partition."""
        return self._places[partition].next_offset

    def take(self, max_records: int, max_bytes: int) -> list[tuple[Replica, Record]]:
        """Records of all partitions in turn: at most ``max_records``, and about ``max_bytes`` but at least one.

        PenstockError if the next record cannot be decoded; all records before it have been returned.
        """
        taken: list[tuple[Replica, Record]] = []
        left = max_bytes
        while self._ready and len(taken) < max_records and left > 0:
            place = self._ready.popleft()
            place.queued = False
            partition = place.partition
            if partition.gone:
                self.remove(partition)
                self.gone.append(partition)
                continue
            for _ in range(min(_PORTION_RECORDS, max_records - len(taken))):
                try:
                    record = place.next()
                except PenstockError:
                    # The next call begins with this record.
                    self._queue(place)
                    self._ready.rotate(1)
                    self._armed = False
                    if not taken:
                        raise
                    return taken
                if record is None:
                    break
                taken.append((partition, record))
                left -= record_bytes(record)
                if left <= 0:
                    break
            else:
                self._queue(place)
                continue
            if record is not None:
                self._queue(place)
        self._armed = not taken and not self.gone
        return taken

    def woken(self, place: _Position) -> None:
        """There may be more records in this partition."""
        self._queue(place)
        if self._armed:
            self._armed = False
            self._wake()

    def _queue(self, place: _Position) -> None:
        if not place.queued:
            place.queued = True
            self._ready.append(place)
