"""The broker's own compacted topics: where the rules keep what must outlive the process (groups, queues, idempotency keys).

In a cluster each partition is written by its leader alone, and by it only while it leads: from the moment that it resigns, an append is
refused with NOT_LEADER_OR_FOLLOWER, and so is a wait. Committed is what every replica in sync has.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.groups.storage import StoredDone, partition_of
from penstock.core.partition import Partition
from penstock.core.topic_names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, SINKS_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, MIB
from penstock.ports import Report
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.records.records import read_records
from penstock.types import Buffer, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_READ_BYTES: Final = 1 * MIB
"""Some milliseconds: a replay goes on in steps, but not within a read."""
_REFUSED_BELOW_MIN: Final = frozenset({OFFSETS_TOPIC, IDEMPOTENCY_TOPIC, SINKS_TOPIC})
"""Where whoever writes is told at once that too few replicas are in sync, and may come again. Queues wait instead: leases go on without."""

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
        target = self._led(partition)
        if self.name in _REFUSED_BELOW_MIN:
            target.check_in_sync()
        return target.append(builder.build(), now_ms, keys_checked=True, hurried=hurried) + len(records)

    def can_store(self, partition: int) -> bool:
        """Whether an append would not be refused for want of replicas in sync."""
        try:
            self._led(partition).check_in_sync()
        except PenstockError as error:
            return error.reason is not Reason.NOT_ENOUGH_REPLICAS
        return True

    def next_offset(self, partition: int) -> int:
        """The offset after the last record that was appended."""
        return self._led(partition).log.next_offset

    def hurry(self, partition: int) -> None:
        """Somebody waits for what was appended without hurry."""
        self._led(partition).hurry()

    def _led(self, partition: int) -> Partition:
        """The partition; whoever waited for it may be told that it is led no more before it is out of the broker's hands."""
        found = self._broker.partition(self.name, partition)
        if found.gone:
            raise PenstockError(Reason.NOT_LEADER_OR_FOLLOWER, f"{self.name}/{partition} is now led by another node.")
        return found

    def when_written(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Call ``done`` once everything below ``next_offset`` is with the operating system."""
        if (found := self._waited_for(partition, done)) is not None:
            found.when_written(next_offset, done)

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Committed as every partition counts it."""
        if (found := self._waited_for(partition, done)) is not None:
            found.when_committed(next_offset, done)

    def _waited_for(self, partition: int, done: StoredDone) -> Partition | None:
        """The partition; None when it is led here no more, and ``done`` was told so: nobody would ever tell it."""
        try:
            return self._led(partition)
        except PenstockError as error:
            done(error.reason)
            return None

    def replay(self, partition: int) -> Iterator[tuple[Buffer, Buffer | None]]:
        """Every committed record, oldest first."""
        for key, value, _ in self.replay_timed(partition):
            yield key, value

    def replay_timed(self, partition: int, *, written: bool = False) -> Iterator[tuple[Buffer, Buffer | None, int]]:
        """The same (or every record that is written), each with the time of its append by the clock of the node that led then.

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


def _records(data: Buffer, offset: int, bytes_max: int) -> Iterator[tuple[Buffer, Buffer | None, int]]:
    view = memoryview(data)
    position = 0
    while position < len(view):
        end = position + read_header(view, position).size_bytes
        for record in read_records(view[position:end], bytes_max):
            if record.offset >= offset and record.key is not None:
                yield record.key, record.value, record.timestamp
        position = end
