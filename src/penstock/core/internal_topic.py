"""The broker's own compacted topics: where the rules keep what must outlive the process (groups, queues, idempotency keys)."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.groups.storage import StoredDone, partition_of
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, MIB
from penstock.ports import Report
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.records.records import read_records
from penstock.types import Buffer, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_READ_BYTES: Final = 4 * MIB

StateRecord = tuple[bytes, bytes | None]
"""A key and its state; None when there is none any more."""


class InternalTopic:
    """One of them. For groups it is the real :class:`penstock.core.groups.storage.OffsetsLog`."""

    def __init__(self, broker: "Broker", name: TopicName, partitions: int, report: Report) -> None:
        self.name: Final = name
        self._broker = broker
        self._partitions = partitions
        self._report = report

    @property
    def partition_count(self) -> int:
        """How many partitions it has, or will have when it is made."""
        topic = self._broker.topics.get(self.name)
        return self._partitions if topic is None else topic.partition_count

    def partition_for(self, owner: str) -> int:
        """The partition of all records of one owner (a group), by the hash of its id."""
        return partition_of(owner, self.partition_count)

    def append(self, partition: int, records: Sequence[StateRecord], *, hurried: bool = True) -> int:
        """One batch; returns the offset behind it. Without ``hurried`` nobody waits for it to be committed."""
        now_ms = self._broker.clock.now_ms()
        builder = BatchBuilder()
        for key, value in records:
            builder.add(now_ms, key, value)
        target = self._broker.partition(self.name, partition)
        return target.append(builder.build(), now_ms, keys_checked=True, hurried=hurried) + len(records)

    def hurry(self, partition: int) -> None:
        """Somebody waits for what was appended without hurry."""
        self._broker.partition(self.name, partition).hurry()

    def when_written(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Call ``done`` once everything below ``next_offset`` is with the operating system."""
        self._broker.partition(self.name, partition).when_written(next_offset, done)

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Committed as every partition counts it."""
        self._broker.partition(self.name, partition).when_committed(next_offset, done)

    def replay(self, partition: int, *, written: bool = False) -> Iterator[tuple[Buffer, Buffer | None]]:
        """Every committed record (or every one that is written), oldest first.

        Damaged ones are passed over: the others must not suffer for them.
        """
        source = self._broker.partition(self.name, partition)
        bytes_max = source.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        log = source.log
        offset, end = log.start_offset, log.written_offset if written else source.high_watermark
        damaged = False
        while offset < end:
            try:
                data, next_offset = log.read(offset, _READ_BYTES, end)
            except PenstockError as error:
                if error.reason is not Reason.CORRUPT_RECORDS:
                    raise
                if not damaged:
                    self._report(f"{self.name}/{partition}, replayed without the damaged records: {error.text}")
                damaged = True
                offset += 1
                continue
            damaged = False
            yield from _records(data, offset, bytes_max)
            # Compaction leaves gaps, so the end of what was read is not always the end of a batch.
            offset = next_offset


def _records(data: Buffer, offset: int, bytes_max: int) -> Iterator[tuple[Buffer, Buffer | None]]:
    view = memoryview(data)
    position = 0
    while position < len(view):
        end = position + read_header(view, position).size_bytes
        for record in read_records(view[position:end], bytes_max):
            if record.offset >= offset and record.key is not None:
                yield record.key, record.value
        position = end
