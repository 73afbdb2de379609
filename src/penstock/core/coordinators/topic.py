"""The broker's compacted topics for the state of groups, queues, produce keys and sinks.

Only the leader of a partition writes to it: as soon as it is no longer the leader, appends and waits fail with NOT_LEADER_OR_FOLLOWER.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import mul
from struct import unpack
from typing import TYPE_CHECKING, Final

from penstock.core.partitions.partition import Partition
from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, GROUP_ID_CHARS_MAX, MIB
from penstock.ports import Report
from penstock.records.batch import batches_in
from penstock.records.builder import BatchBuilder
from penstock.records.records import read_records
from penstock.types import Buffer, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_MASK: Final = 0xFFFFFFFF
_POWERS: Final = tuple(pow(31, at, 1 << 32) for at in range(2 * GROUP_ID_CHARS_MAX))
"""For Java's hash: one for each unit that a name may have."""
_READ_BYTES: Final = 1 * MIB
"""Some milliseconds: a replay pauses between reads, not within one."""

StoredDone = Callable[[Reason | None], None]
"""Called with None once the records are committed, or with the reason why they are not."""
StateRecord = tuple[bytes, bytes | None]
"""A key and its state; None removes the key."""


class UnreadableRecord(ValueError):
    """A stored record that is damaged, or of an unknown version."""


class InternalTopic:
    """One internal topic. Within a partition, answers come in the order of the appends."""

    def __init__(self, broker: "Broker", name: TopicName, report: Report, partitions: int | None = None) -> None:
        """Without ``partitions``, it has as many partitions as the offsets topic."""
        self.name: Final = name
        self._broker = broker
        self._partitions = partitions
        self.report: Final = report

    @property
    def partition_count(self) -> int:
        """How many partitions it has, or will have when it is created."""
        topic = self._broker.topics.get(self.name)
        if topic is not None:
            return topic.partition_count
        if self._partitions is not None:
            return self._partitions
        offsets = self._broker.topics.get(OFFSETS_TOPIC)
        return self._broker.settings.groups.offsets_topic_partitions if offsets is None else offsets.partition_count

    def partition_for(self, owner: str) -> int:
        """The partition of all records of one owner (a group), by the hash of its id."""
        return partition_of(owner, self.partition_count)

    def append(self, partition: int, records: Sequence[StateRecord], *, hurried: bool = True) -> int:
        """Append one batch and return the offset after it. Without ``hurried`` no caller waits for its commit."""
        now_ms = self._broker.clock.now_ms()
        builder = BatchBuilder()
        for key, value in records:
            builder.add(now_ms, key, value)
        target = self._led(partition)
        if self.name != QUEUE_STATE_TOPIC:
            # The caller can try again. Queues wait instead: existing leases continue meanwhile.
            target.check_in_sync()
        offset = target.append(builder.build(), now_ms, is_sound=True, keys_checked=True, hurried=hurried)
        return offset + len(records)

    def gather(self, action: Callable[[], None]) -> None:
        """Call ``action`` at the end of this turn, to append what the turn brought."""
        self._broker.flusher.gather(action)

    def can_store(self, partition: int) -> bool:
        """Whether enough replicas are in sync for an append."""
        try:
            self._led(partition).check_in_sync()
        except PenstockError as error:
            return error.reason is not Reason.NOT_ENOUGH_REPLICAS
        return True

    def next_offset(self, partition: int) -> int:
        """The offset after the last record that was appended."""
        return self._led(partition).log.next_offset

    def hurry(self, partition: int) -> None:
        """A caller waits for what was appended without ``hurried``."""
        self._led(partition).hurry()

    def _led(self, partition: int) -> Partition:
        """The partition, unless it is closed: its waiters may be called before the broker removes it."""
        found = self._broker.partition(self.name, partition)
        if found.gone:
            raise PenstockError(Reason.NOT_LEADER_OR_FOLLOWER, f"{self.name}/{partition} is now led by another node")
        return found

    def when_written(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Call ``done`` once everything below ``next_offset`` is written to the operating system."""
        if (found := self._waited_for(partition, done)) is not None:
            found.when_written(next_offset, done)

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Call ``done`` once everything below ``next_offset`` is committed."""
        if (found := self._waited_for(partition, done)) is not None:
            found.when_committed(next_offset, done)

    def _waited_for(self, partition: int, done: StoredDone) -> Partition | None:
        """The partition; None if this node no longer leads it, and then ``done`` has been called."""
        try:
            return self._led(partition)
        except PenstockError as error:
            done(error.reason)
            return None

    def replay(self, partition: int, *, written: bool = False) -> Iterator[tuple[Buffer, Buffer | None, int]]:
        """All committed (or all written) records, oldest first, with the time of their append. Damaged batches are skipped."""
        if not self._broker.logs.has_records(self._broker.topics.require(self.name).topic_id, partition):
            # An empty log need not be opened.
            return
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
                    self.report(f"{self.name}/{partition}, replayed without the damaged records: {error.text}")
                damaged = True
                offset += 1
                continue
            damaged = False
            yield from _records(data, offset, bytes_max)
            offset = next_offset


def _records(data: Buffer, offset: int, bytes_max: int) -> Iterator[tuple[Buffer, Buffer | None, int]]:
    for _, batch in batches_in(data):
        for record in read_records(batch, bytes_max):
            if record.offset >= offset and record.key is not None:
                yield record.key, record.value, record.timestamp


def partition_of(owner: str, partitions: int) -> int:
    """The partition for a group, as Kafka chooses it: by Java's hash of the name, whose units are UTF-16."""
    # No group has a longer name, and hashing what a client sends must not take longer.
    encoded = owner[:GROUP_ID_CHARS_MAX].encode("utf-16-be", "surrogatepass")
    units = unpack(f">{len(encoded) // 2}H", encoded)
    value: int = sum(map(mul, reversed(units), _POWERS)) & _MASK
    if value >= 1 << 31:
        value = (1 << 32) - value  # the absolute value of a negative 32-bit number
        if value == 1 << 31:
            value = 0  # the lowest number has none
    return value % partitions
